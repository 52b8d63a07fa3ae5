"""Worker processes of an environment, on this machine and on others."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from wander_client.engines import EngineAddress, load_engine, names_engine
from wander_client.errors import UsageError, name_option

if TYPE_CHECKING:
    from wander.train.settings.sections import EnvironmentSection
    from wander.worker.remote.address import WorkerAddress, WorkerPlace

    from wander_client.environments.location import Location

AUTOMATIC = 0
"""Number of workers that means one per 256 concurrent rollouts, but at most one per core."""
MOST_WORKERS = 256
"""Upper limit, mainly to catch typing errors: each worker is a process."""


def expand_addresses(words: Sequence[str]) -> list[str]:
    """Return the addresses of workers, one per worker of a cluster. Raises `UsageError` for too many."""
    addresses: list[str] = []
    for word in words:
        if not names_engine(word):
            addresses.append(word)
            continue
        address = EngineAddress.parse(word)
        if (count := address.count or 1) > MOST_WORKERS:
            raise UsageError(f"`{word}`: too many workers", hint=f"the maximum is {MOST_WORKERS}")
        addresses += [str(address)] * count
    return addresses


def absolute_path(word: str) -> str:
    """Return the absolute path of a path on the command line."""
    return str(Path(word).expanduser().resolve())


def read_addresses(words: Sequence[str], token_file: str | None) -> tuple[WorkerAddress | EngineAddress, ...]:
    """Parse the addresses of workers and read their token. Raises `ConfigError` for an invalid address."""
    from wander.worker.remote.address import WorkerAddress, read_token

    token = None if token_file is None else read_token(Path(token_file))
    if token is not None and not words:
        raise UsageError(
            name_option("worker_token_file") + " requires a worker address",
            hint="add `--worker tcp://HOST:PORT`",
        )
    return tuple(
        EngineAddress.parse(address) if names_engine(address) else WorkerAddress.parse(address, token)
        for address in expand_addresses(words)
    )


@dataclass(frozen=True)
class WorkerChoice:
    """The worker processes of an environment."""

    count: int = 1
    addresses: tuple[WorkerAddress | EngineAddress, ...] = ()
    """Addresses of the workers. If empty, workers are started on this machine."""
    rollout_timeout: float | None = None

    @classmethod
    def of(cls, workers: int | Sequence[str], section: EnvironmentSection) -> WorkerChoice:
        """Return the workers of a training run, from their number or their addresses.

        `section` contains the token for the addresses and the time limit of a rollout. Raises `ConfigError`.
        """
        if isinstance(workers, int):
            return cls(workers, rollout_timeout=section.rollout_timeout)
        addresses = read_addresses(workers, section.worker_token_file)
        return cls(len(addresses), addresses, section.rollout_timeout)

    def require_consistent(self, *, in_process: bool, pass_environ: Iterable[str]) -> None:
        """Raise `UsageError` for options that do not work with remote workers, or without workers."""
        if in_process and (self.addresses or self.count > 1 or self.rollout_timeout):
            raise UsageError(
                "`--workers`, `--worker` and `rollout_timeout` cannot be used with `in_process`",
                hint="remove `in_process`",
            )
        if self.addresses and list(pass_environ):
            raise UsageError(
                "`--pass-env` applies to workers on this machine, but `--worker` names another machine",
                hint="run `wander worker --help` for the options there",
            )


@contextlib.contextmanager
def place_workers(location: Location, workers: WorkerChoice) -> Iterator[Sequence[WorkerPlace]]:
    """Yield the addresses of an environment's workers. Workers on a cluster stop at the end of the block."""
    addresses = workers.addresses
    clusters = {address for address in addresses if isinstance(address, EngineAddress)}
    if not clusters:
        yield [address for address in addresses if not isinstance(address, EngineAddress)]
        return
    if len(clusters) > 1:
        raise UsageError("workers on several clusters are not supported", hint="name only one cluster")
    (cluster,) = clusters
    number = max(workers.count, len(addresses))
    wanted = [addresses[turn % len(addresses)] for turn in range(number)]
    count = sum(address == cluster for address in wanted)
    with load_engine(cluster.engine).place_workers(location, cluster.cluster, count) as places:
        others = iter(places)
        yield [next(others) if isinstance(address, EngineAddress) else address for address in wanted]
