"""In how many processes an environment runs, and on which machines."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from wander_client.engines import EngineAddress, load_engine, names_engine
from wander_client.errors import UsageError

if TYPE_CHECKING:
    from wander.train.sections import EnvironmentSection
    from wander.worker.remote.address import WorkerAddress, WorkerPlace

    from wander_client.environments.location import Location

AUTOMATIC = 0
"""As a number of workers: one for 256 rollouts at once, at most one a core."""
MOST_WORKERS = 256
"""Each is a process; a machine that bears more is rare, and a slip of the finger is not."""


def expand_addresses(words: Sequence[str]) -> list[str]:
    """Return addresses of workers with one for each that is asked of a cluster; raises `UsageError`."""
    found: list[str] = []
    for word in words:
        if not names_engine(word):
            found.append(word)
            continue
        address = EngineAddress.parse(word)
        if (count := address.count or 1) > MOST_WORKERS:
            raise UsageError(f"`{word}` asks for too many workers", hint=f"{MOST_WORKERS} are the most")
        found += [str(address)] * count
    return found


def absolute_path(word: str) -> str:
    """Return the path that a word names, to hold in any folder."""
    return str(Path(word).expanduser().resolve())


def read_addresses(words: Sequence[str], token_file: str | None) -> tuple[WorkerAddress | EngineAddress, ...]:
    """Return where workers listen, with the token of a file; raises `ConfigError` for what is none."""
    from wander.worker.remote.address import WorkerAddress, read_token

    token = None if token_file is None else read_token(Path(token_file))
    if token is not None and not words:
        raise UsageError(
            "`worker_token_file` needs a worker elsewhere", hint="add `--worker tcp://HOST:PORT`"
        )
    return tuple(
        EngineAddress.parse(each) if names_engine(each) else WorkerAddress.parse(each, token)
        for each in expand_addresses(words)
    )


@dataclass(frozen=True)
class WorkerChoice:
    """The processes that play an environment."""

    count: int = 1
    addresses: tuple[WorkerAddress | EngineAddress, ...] = ()
    """Where they listen; empty starts them here."""
    rollout_timeout: float | None = None

    @classmethod
    def of(cls, workers: int | Sequence[str], section: EnvironmentSection) -> WorkerChoice:
        """Return the processes of a training run: their number here, or their addresses elsewhere.

        `section` has the token of addresses, and the limit of a rollout. Raises `ConfigError`.
        """
        if isinstance(workers, int):
            return cls(workers, rollout_timeout=section.rollout_timeout)
        addresses = read_addresses(workers, section.worker_token_file)
        return cls(len(addresses), addresses, section.rollout_timeout)

    def require_together(self, *, in_process: bool, pass_environ: Iterable[str]) -> None:
        """Refuse what cannot be had beside workers on other machines, or without a worker."""
        if in_process and (self.addresses or self.count > 1 or self.rollout_timeout):
            raise UsageError(
                "`in_process` has no workers: `--workers`, `--worker` and `rollout_timeout` need one",
                hint="leave `in_process` out",
            )
        if self.addresses and list(pass_environ):
            raise UsageError(
                "`--pass-env` is for workers of this machine; `--worker` names another one",
                hint="`wander worker --help` tells what can be said there",
            )


@contextlib.contextmanager
def placed(location: Location, workers: WorkerChoice) -> Iterator[Sequence[WorkerPlace]]:
    """Yield where the workers of an environment listen; those of a cluster end with the block."""
    addresses = workers.addresses
    clusters = {each for each in addresses if isinstance(each, EngineAddress)}
    if not clusters:
        yield [each for each in addresses if not isinstance(each, EngineAddress)]
        return
    if len(clusters) > 1:
        raise UsageError("workers of two clusters are asked for", hint="name one cluster alone")
    (cluster,) = clusters
    number = max(workers.count, len(addresses))
    wanted = [addresses[turn % len(addresses)] for turn in range(number)]
    count = sum(each == cluster for each in wanted)
    with load_engine(cluster.engine).place_workers(location, cluster.cluster, count) as places:
        others = iter(places)
        yield [next(others) if isinstance(each, EngineAddress) else each for each in wanted]
