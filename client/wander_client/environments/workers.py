"""In how many processes an environment runs, and on which machines: options of the command line."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from wander_client.errors import UsageError

if TYPE_CHECKING:
    from wander.sandbox import SandboxPolicy
    from wander.worker.address import WorkerAddress

    from wander_client.environments.location import Location

AUTOMATIC = 0
"""As a number of workers: one for 256 rollouts at once, at most one a core."""
MOST_WORKERS = 256
"""Each is a process; a machine that bears more is rare, and a slip of the finger is not."""


def _count(word: str) -> int:
    if word == "auto":
        return AUTOMATIC
    if not word.isdigit() or not 1 <= int(word) <= MOST_WORKERS:
        raise typer.BadParameter(f"a number from 1 to {MOST_WORKERS}, or `auto`")
    return int(word)


def _absolute(word: str) -> str:
    return str(Path(word).expanduser().resolve())


WorkerCount = Annotated[
    int, typer.Option("--workers", metavar="N|auto", parser=_count, help="processes of the environment")
]
WorkerAddresses = Annotated[
    list[str] | None, typer.Option("--worker", metavar="tcp://HOST:PORT", help="a `wander worker` elsewhere")
]
TokenFile = Annotated[
    str | None, typer.Option("--worker-token-file", parser=_absolute, help="holds the token of `--worker`")
]
RolloutTimeout = Annotated[
    float | None, typer.Option(min=0.001, metavar="SECONDS", help="after which a rollout has failed")
]


@dataclass(frozen=True)
class WorkerChoice:
    """The processes that play an environment."""

    count: int = 1
    addresses: tuple[WorkerAddress, ...] = ()
    """Where they listen; empty starts them here."""
    rollout_timeout: float | None = None

    def require_together(
        self, *, in_process: bool, pass_environ: Iterable[str], sandbox: SandboxPolicy | None
    ) -> None:
        """Refuse what cannot be had beside workers on other machines, or without a worker."""
        if in_process and (self.addresses or self.count > 1 or self.rollout_timeout):
            raise UsageError(
                "`--in-process` has no workers: `--workers`, `--worker` and `--rollout-timeout` need one",
                hint="leave `--in-process` out",
            )
        for option, given in (("--pass-env", tuple(pass_environ)), ("--sandbox", sandbox)):
            if self.addresses and given:
                raise UsageError(
                    f"`{option}` is for workers of this machine; `--worker` names another one",
                    hint="`wander worker --help` tells what can be said there",
                )

    def target(self, location: Location) -> str:
        """Return what the workers load: on another machine, exactly the version that is pinned here."""
        if not self.addresses or location.installed is None:
            return location.target
        return f"{location.target}@{location.installed.record.version}"


def chosen_workers(
    count: int,
    addresses: Iterable[str],
    token_file: str | None,
    rollout_timeout: float | None,
    *,
    at_once: int,
) -> WorkerChoice:
    """Return the processes that suit so many rollouts at once; raises `ConfigError` for a wrong address."""
    from wander.worker.address import WorkerAddress, read_token
    from wander.worker.host.environment import automatic_workers

    token = None if token_file is None else read_token(Path(token_file))
    found = tuple(WorkerAddress.parse(each, token) for each in addresses)
    if token is not None and not found:
        raise UsageError(
            "`--worker-token-file` needs a worker elsewhere", hint="add `--worker tcp://HOST:PORT`"
        )
    if count == AUTOMATIC:
        count = len(found) or automatic_workers(at_once)
    if count < len(found):
        raise UsageError(f"`--workers {count}` is fewer than the {len(found)} of `--worker`")
    return WorkerChoice(count, found, rollout_timeout)


def worker_fields(
    count: int, addresses: list[str] | None, token_file: str | None, rollout_timeout: float | None
) -> dict[str, Any]:
    """Return the fields of `EvaluationSettings` that these options stand for."""
    return {
        "workers": count,
        "worker_addresses": addresses or [],
        "worker_token_file": token_file,
        "rollout_timeout": rollout_timeout,
    }
