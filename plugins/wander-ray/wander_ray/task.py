"""The task that plays one shard on the node that Ray chose.

The folder has the finished rollouts, so a restarted task continues. Errors are returned as plain values,
because pickle loses parts of our exceptions.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import secrets
import socket
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from wander.evals.run.budget import SharedBudget
from wander.wire.run_record import Shard
from wander_client.context import CommonOptions, Invocation
from wander_client.errors import ClientError
from wander_client.models.pool import ModelChoice, ModelPool
from wander_client.runs.lookup import SUITE_FILE
from wander_client.suites.file import Suite
from wander_client.suites.play import play_suite, prepare, share_budget
from wander_client.suites.progress import SuiteProgress
from wander_client.terminal.output import Output

from wander_ray.cluster import NodeError, Versions
from wander_ray.models import Actors, RayModelClient, key_of

if TYPE_CHECKING:
    from wander.clients.base import Client
    from wander.evals.run.stopping import StopRequest
    from wander_client.environments.location import Location

PROOF_FILE = "shared"
"""Name of a file with a word, which proves that a node sees the same folder."""
_REPORT_SECONDS = 0.25
_LOCK_SECONDS = 120.0
"""Seconds that the process of an earlier attempt may take to exit after its node was lost."""


@dataclass(frozen=True)
class ShardJob:
    """One shard, as a node receives it."""

    suite: str
    """The whole suite, as JSON."""
    folder: str
    """Folder of the shards, on a file system that all nodes share."""
    number: int
    of: int
    proof: str
    """The word in `PROOF_FILE`."""
    versions: Versions = field(default_factory=Versions)
    variables: dict[str, str] = field(default_factory=dict, repr=False)
    """Keys and addresses of the endpoints: the only variables of the driver that a shard's process gets."""


class _ToldBudget(SharedBudget):
    """The part of a budget that this shard spent. The coordinator knows the total."""

    said: str | None = None

    @property
    def spent(self) -> str | None:
        """The budget that is spent, in words; None if there is some left."""
        return self.said


class _Seat:
    """This shard's connection to the coordinator."""

    def __init__(self, coordinator: Any, number: int) -> None:
        self._coordinator, self._number, self._attempt = coordinator, number, secrets.token_hex(8)
        self.budget: _ToldBudget | None = None

    async def begin(self) -> None:
        """Register the shard."""
        await self._coordinator.begin.remote(self._number, self._attempt)

    async def report(self, shown: SuiteProgress, folders: list[str]) -> int:
        """Report the progress, read the state of the budget, and return the number of requested stops."""
        progress = {
            folder: row.progress
            for folder, row in zip(folders, shown.rows, strict=True)
            if row.progress is not None
        }
        stop, said = await self._coordinator.report.remote(
            self._number, self._attempt, progress, *self._spent()
        )
        if self.budget is not None:
            self.budget.said = said
        return int(stop)

    def _spent(self) -> tuple[int, float]:
        return (0, 0.0) if self.budget is None else (self.budget.spent_tokens, self.budget.spent_usd)


class _RayPool(ModelPool):
    """Uses the models that Ray has placed."""

    def __init__(self, context: Invocation, concurrency: int, number: int, actors: Actors) -> None:
        super().__init__(context, concurrency)
        self._number, self._actors = number, actors

    @contextlib.asynccontextmanager
    async def client(
        self, choice: ModelChoice, location: Location | None, *, name: str, log_path: Path
    ) -> AsyncIterator[Client]:
        """Yield the client of an evaluation: that of an actor, if its model has one."""
        if actors := self._actors.get(key_of(choice)):
            actor = actors[self._number % len(actors)]
            asking = RayModelClient(actor, f"{self._number}/{name}/")
            async with asking.opened(), choice.join(self._context, asking, location) as client:
                yield client
            return
        async with super().client(choice, location, name=name, log_path=log_path) as client:
            yield client


def play_shard(job: ShardJob, coordinator: Any, actors: Actors | None = None) -> list[NodeError]:
    """Play a shard to its end, or until a stop is requested; return the problems.

    `actors` have the models that the shard does not load itself.
    """
    try:
        os.environ.update(job.variables)
        _require_like_driver(job)
        return asyncio.run(_play(job, _Seat(coordinator, job.number), actors or {}))
    except Exception as error:  # noqa: BLE001 - returned, and raised by the driver
        return [NodeError.of(error)]


def _require_like_driver(job: ShardJob) -> None:
    job.versions.require()
    here = socket.gethostname()
    proof = Path(job.folder, PROOF_FILE)
    if not proof.is_file() or proof.read_text() != job.proof:
        raise ClientError(
            f"node `{here}` does not see `{job.folder}` as the driver does: the folder is not shared",
            hint="choose a folder on a file system that all nodes mount: `--out /shared/RUN`",
            code="folder_not_shared",
        )


async def _play(job: ShardJob, seat: _Seat, actors: Actors) -> list[NodeError]:
    from wander.evals.run.stopping import StopRequest

    stop, folder = StopRequest(), Path(job.folder, str(job.number))
    context = Invocation(CommonOptions(mode="quiet"), Output("quiet"))
    shard = Shard(first=job.number, end=job.number + 1, of=job.of)
    suite = Suite.model_validate_json(job.suite).model_copy(update={"shard": shard})
    if not (folder / SUITE_FILE).exists():
        suite.write(folder)
    with alone(folder, _LOCK_SECONDS):
        await seat.begin()
        ready = prepare(context, suite, folder, allow_changed_code=False)
        shared = share_budget(suite, ready)
        if shared is not None:
            seat.budget = _ToldBudget(shared.tokens, shared.usd, shared.earlier)
        folders = [each.run.folder for each in ready]
        shown = SuiteProgress(context.output, [each.run.name for each in ready])
        async with _reporting(seat, shown, folders, stop):
            pool = _RayPool(context, suite.concurrency, job.number, actors)
            outcomes = await play_suite(context, suite, ready, shown, seat.budget, models=pool, stop=stop)
    # If all rollouts failed, the merged record reports it.
    broken = [each for each in outcomes if each.error is not None and each.summary is None]
    return [NodeError.of(each.error, each.run.name) for each in broken if each.error is not None]


@contextlib.asynccontextmanager
async def _reporting(
    seat: _Seat, shown: SuiteProgress, folders: list[str], stop: StopRequest
) -> AsyncIterator[None]:
    """Report four times a second while the block runs, and at its end."""
    asked = 0

    async def report() -> None:
        nonlocal asked
        now = await seat.report(shown, folders)
        for _ in range(now - asked):
            stop.request()
        asked = max(asked, now)

    async def keep_reporting() -> None:
        while True:
            await report()
            await asyncio.sleep(_REPORT_SECONDS)

    await report()
    reporting = asyncio.create_task(keep_reporting())
    try:
        yield
    finally:
        reporting.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await reporting
        await report()


@contextlib.contextmanager
def alone(folder: Path, seconds: float) -> Iterator[None]:
    """Wait until no other process plays in this folder, such as that of an earlier attempt."""
    lock = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        deadline = time.monotonic() + seconds
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise ClientError(
                        f"another process plays `{folder}`", hint="end it, then resume the run"
                    ) from None
                time.sleep(0.5)
        yield
    finally:
        os.close(lock)
