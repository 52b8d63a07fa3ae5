"""Play a run again from its record, in the environment that its manifest pins."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from wander_client.environments import Location, locate, open_environment
from wander_client.errors import ClientError, NotFound

if TYPE_CHECKING:
    from wander.types import Rollout
    from wander.wire import EnvironmentPin, ReplayReport, RunManifest


def pinned_location(pin: EnvironmentPin, *, folder: Path | None = None) -> Location:
    """Return the very environment that a run used, installing it when it is absent.

    `folder` takes the place of what is pinned, for authors who look at what a change does. Raises
    `ClientError` when the hub's files are others than those of the run.
    """
    if folder is not None:
        return locate(str(folder.expanduser().resolve()))
    if pin.owner is None:
        if pin.path is None or not Path(pin.path).exists():
            raise NotFound(
                f"the run used the folder `{pin.path}`, which is not here",
                hint="give the folder of the same source with `--env FOLDER`",
                code="environment_not_found",
            )
        return locate(pin.path)
    location = locate(f"{pin.owner}/{pin.name}@{pin.version}")
    assert location.installed is not None
    installed = location.installed.record.wheel_sha256
    if pin.wheel_sha256 is not None and installed != pin.wheel_sha256:
        raise ClientError(
            f"`{location.spec}` is another file here than the run used: sha256 {installed[:16]}..., "
            f"the run's is {pin.wheel_sha256[:16]}...",
            hint="the run belongs to another hub, or its record was changed",
            code="other_environment",
        )
    return location


async def replayed(
    location: Location,
    manifest: RunManifest,
    rollouts: Iterable[Rollout],
    *,
    sample: int | None,
    seed: int,
    concurrency: int,
    in_process: bool,
    on_replayed: Callable[[int, int], None],
) -> ReplayReport:
    """Open the environment with the run's arguments and play its rollouts again."""
    from wander.evals.replay import replay_run

    async with open_environment(location, manifest.environment.arguments, in_process=in_process) as opened:
        return await replay_run(
            opened.handle,
            manifest,
            rollouts,
            sample=sample,
            sample_seed=seed,
            concurrency=concurrency,
            on_replayed=on_replayed,
        )
