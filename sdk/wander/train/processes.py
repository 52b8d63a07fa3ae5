"""One run in several processes: what each of them is, and how they agree.

Started by `torchrun` or `accelerate launch`, every process runs the same program. Each plays its share of a
step's groups; the gradients are averaged; whatever decides what happens next (which examples, whether to
stop) is computed by all of them from the same values. Only the main one writes the run's folder: the others
write what they would into a folder of their own that is thrown away, so that nothing else has to know.

A process that fails tells the others at their next exchange, and they end too. One that dies closes its
connections, which ends them as well. The main process says what happened: the others stay until it has, since
launchers kill all processes as soon as the first is gone.
"""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from wander.errors import ConfigError, RunError
from wander.train.config import GRPOSettings
from wander.train.launcher import is_launched

Result = TypeVar("Result")
Item = TypeVar("Item")

EXCHANGE_LIMIT = timedelta(hours=24)
"""How long processes wait for one whose rollouts take longer."""

LEAVING_LIMIT = timedelta(minutes=5)
"""How long the others stay for a main process that says what happened."""


class PeerFailed(RunError):
    """Another process of the run failed."""


class PeerLost(PeerFailed):
    """Another process of the run ended without a word."""


class _Failure(NamedTuple):
    """What a process tells the others of its error."""

    words: str
    hint: str | None


class World:
    """The processes of a run, seen from one of them. Alone, everything here is immediate."""

    def __init__(self, rank: int = 0, size: int = 1, group: Any = None) -> None:
        self.rank = rank
        self.size = size
        self._group = group
        self._failure_is_known = False

    @property
    def is_main(self) -> bool:
        """True in the process that writes the run."""
        return self.rank == 0

    def exchange(self, items: list[Any]) -> list[Any]:
        """Return the items of all processes, in the order of their ranks.

        Raises `PeerFailed` where another process failed instead of coming here.
        """
        return [item for own in self._gathered(items, None) for item in own]

    def any(self, flag: bool) -> bool:
        """Return whether the flag is set in any process."""
        return any(self.exchange([flag]))

    def together(self, work: Callable[[], Result]) -> Result:
        """Do a piece of work in every process; where it fails in one, it fails in all."""
        try:
            result = work()
        except PeerFailed:
            raise
        except BaseException as error:
            self._tell(error)
            raise
        self._gathered([], None)
        return result

    def from_main(self, make: Callable[[], Result]) -> Result:
        """Return what the main process makes, in all of them."""
        return self.exchange([self.together(make if self.is_main else _nothing)])[0]  # type: ignore[no-any-return]

    @contextlib.contextmanager
    def in_main(self, make: Callable[[], AbstractContextManager[Sequence[Item]]]) -> Iterator[Sequence[Item]]:
        """Enter a context that yields several things in the main process; elsewhere there are none."""
        if not self.is_main:
            yield []
            return
        with make() as made:
            yield made

    def wait(self) -> None:
        """Go on when every process is here."""
        self.exchange([])

    def outlast_main(self) -> bool:
        """Return whether the main process tells of the failure that ends this one; stay until it has ended.

        Of the main process itself, or one whose failure nobody heard of, it is False at once.
        """
        if self.is_main or not self._failure_is_known:
            return False
        from torch import distributed

        with contextlib.suppress(RuntimeError):  # the main process never comes: it ends
            distributed.monitored_barrier(group=self._group, timeout=LEAVING_LIMIT)
        return True

    def _tell(self, error: BaseException) -> None:
        try:
            self._gathered([], _Failure(_words(error), getattr(error, "hint", None)))
        except PeerLost:
            return
        except PeerFailed:
            pass  # both failed, and both know
        self._failure_is_known = True

    def _gathered(self, items: list[Any], failure: _Failure | None) -> list[list[Any]]:
        if self.size == 1:
            return [items]
        from torch import distributed

        found: list[Any] = [None] * self.size
        try:
            distributed.all_gather_object(found, (items, failure), group=self._group)
        except RuntimeError as error:
            raise PeerLost("another process of the run ended without telling why") from error
        for rank, (_, told) in enumerate(found):
            if told is not None and rank != self.rank:
                self._failure_is_known = True
                raise PeerFailed(f"process {rank} of {self.size} failed: {told.words}", hint=told.hint)
        return [own for own, _ in found]


def _nothing() -> Any:
    return None


def _words(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


_world: World | None = None


def current_world(device: str | None = None) -> World:
    """Return the processes that this one is of; the first call of a launched process joins them.

    `device` is that of the settings: `cpu` makes gloo carry gradients too.
    """
    global _world
    if not is_launched():
        return World()
    if _world is None:
        from accelerate import PartialState  # type: ignore[import-untyped]
        from torch import distributed

        from wander.models.loading import torch_device

        state = PartialState(cpu=torch_device(device).type == "cpu")
        # Objects go over gloo whatever carries the gradients: they need no GPU and may wait for long.
        group = distributed.new_group(backend="gloo", timeout=EXCHANGE_LIMIT)
        _world = World(state.process_index, state.num_processes, group)
    return _world


def joined_world() -> World:
    """Return the processes that this one has joined; alone where it has joined none."""
    return _world or World()


def require_divisible(settings: GRPOSettings, world: World) -> None:
    """Raise `ConfigError` when the groups of a step cannot be shared out evenly."""
    batch = settings.batch
    if batch.groups % world.size:
        raise ConfigError(
            f"{batch.groups} groups a step cannot be shared by {world.size} processes",
            hint=f"make `batch.rollouts` a multiple of {world.size * batch.group_size}, "
            "processes x group_size",
        )


def rows_and_accumulation(settings: GRPOSettings, size: int) -> tuple[int, int]:
    """Return how many rows one process computes at once, and how often it does so for one update."""
    share = settings.batch.rollouts // size
    rows = min(settings.batch.rows_at_once, share)
    while share % rows:
        rows -= 1
    return rows, share // rows


@contextlib.contextmanager
def own_folder(folder: Path, world: World) -> Iterator[Path]:
    """Yield the folder that this process writes to: the run's, or one to be thrown away.

    The latter begins with what a run that is resumed has written so far, since later steps may depend on it.
    """
    if world.is_main:
        yield folder
        return
    with tempfile.TemporaryDirectory(prefix=f"wander-process-{world.rank}-") as scratch:
        own = Path(scratch) / folder.name
        if folder.is_dir():
            own.mkdir()
            for file in folder.glob("*.json*"):
                if not file.name.startswith(("run.json", "rollouts")):
                    shutil.copy2(file, own / file.name)
        yield own
