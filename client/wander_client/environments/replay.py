"""Play a run again from its record, in the environment that its manifest pins."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from wander_client.environments.location import Location, installed_location, locate, open_environment
from wander_client.environments.pin import pinned_installation
from wander_client.errors import NotFound, UsageError

if TYPE_CHECKING:
    from wander.sandbox import SandboxPolicy
    from wander.types import Rollout
    from wander.wire import EnvironmentPin, RunManifest
    from wander.wire.verification import LevelSought, ReplayReport, VerifiedWith


HASH_SEED = 1
"""Of the process that plays again, other than of the one that was recorded: what depends on the order of sets
comes out otherwise."""


def pinned_location(pin: EnvironmentPin, *, folder: Path | None = None, no_lock: bool = False) -> Location:
    """Return the very environment that a run used, installing it when it is absent.

    `folder` takes the place of what is pinned, for authors who look at what a change does; `no_lock` leaves
    the run's lock aside. Raises `ClientError` when the hub's files or lock are others than those of the run.
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
    installed = pinned_installation(pin, no_lock=no_lock)
    return installed_location(str(installed.name), installed)


def begun_location(spec: str, run_dir: Path) -> Location:
    """Return the environment that a run was begun with, in the very installation that it used.

    `spec` is what it was begun with by name, for a folder that holds no run yet.
    """
    from wander.evals.store.folder import RunFolder

    if (run_dir / "run.json").exists():
        pin = RunFolder.open(run_dir).manifest.environment
        if pin.owner is not None:
            return pinned_location(pin)
    return locate(spec)


async def replayed(
    location: Location,
    manifest: RunManifest,
    rollouts: Iterable[Rollout],
    *,
    level: LevelSought = "replayed",
    sample: int | None,
    seed: int,
    concurrency: int,
    in_process: bool,
    sandbox: SandboxPolicy | None,
    on_replayed: Callable[[int, int], None],
) -> tuple[ReplayReport, VerifiedWith | None]:
    """Open the environment with the run's arguments and play, or score, its rollouts again.

    An environment that refuses the arguments contradicts the manifest; then there is nothing it ran with.
    """
    from wander.evals.replay import replay_run
    from wander.evals.store.manifest import this_platform
    from wander.wire.verification import VerifiedWith

    arguments = manifest.environment.arguments
    async with contextlib.AsyncExitStack() as stack:
        opening = open_environment(
            location, arguments, in_process=in_process, sandbox=sandbox, hash_seed=HASH_SEED
        )
        try:
            opened = await stack.enter_async_context(opening)
        except UsageError as error:
            if error.code != "bad_arguments":
                raise
            return _contradiction(manifest, f"the environment refuses its arguments: {error}"), None
        if location.folder is not None:
            # Under change: what differs from the manifest shows in the rollouts.
            pin = manifest.environment.model_copy(update={"info": opened.handle.info})
            manifest = manifest.model_copy(update={"environment": pin})
        made_with = VerifiedWith(environment=opened.pin, platform=this_platform())
        report = await replay_run(
            opened.handle,
            manifest,
            rollouts,
            level=level,
            sample=sample,
            sample_seed=seed,
            concurrency=concurrency,
            on_replayed=on_replayed,
        )
    return report, made_with


def _contradiction(manifest: RunManifest, why: str) -> ReplayReport:
    from wander.wire.verification import ReplayReport

    return ReplayReport(
        run_id=manifest.run_id,
        expected=manifest.expected_rollouts,
        recorded=0,
        replayed=0,
        same=0,
        differing=0,
        failed=0,
        refused=why,
        contradicted=True,
    )
