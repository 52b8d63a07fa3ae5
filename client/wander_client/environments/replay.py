"""Play a run again from its record, in the very environment that its manifest pins: version and lock."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from wander_client.environments.location import (
    Location,
    ensure_installed,
    find_installed,
    locate,
    location_of,
)
from wander_client.environments.opening import OpenedEnvironment, open_environment
from wander_client.errors import ClientError, NotFound, UsageError
from wander_client.names import EnvironmentName, parse_environment, parse_name

if TYPE_CHECKING:
    from wander.sandbox import SandboxPolicy
    from wander.types import Rollout
    from wander.wire import EnvironmentPin, RunManifest
    from wander.wire.verification import LevelSought, ReplayReport, Surroundings, VerifiedWith

    from wander_client.context import Invocation
    from wander_client.packages.store import Installed


def locate_pinned(
    context: Invocation,
    pin: EnvironmentPin,
    *,
    folder: Path | None = None,
    no_lock: bool = False,
    is_own: bool = False,
) -> Location:
    """Return the very environment that a run used, installing it when it is absent.

    `folder` takes the place of what is pinned, for authors who look at what a change does; `no_lock` leaves
    the run's lock aside. `is_own` says that this user named the pinned folder: no code is imported from a
    folder that only a stranger's record names. Raises `ClientError` when the hub's files or lock are others
    than those of the run.
    """
    if folder is not None:
        return locate(context, str(folder.expanduser().resolve()))
    if pin.owner is None and not is_own:
        raise ClientError(
            f"the run names the folder `{pin.path}`, and was not begun by you on this machine",
            hint="name the folder of the environment's source yourself: `--env FOLDER`",
            code="folder_of_another",
        )
    if pin.owner is None:
        if pin.path is None or not Path(pin.path).exists():
            raise NotFound(
                f"the run used the folder `{pin.path}`, which is not here",
                hint="give the folder of the same source with `--env FOLDER`",
                code="environment_not_found",
            )
        return locate(context, pin.path)
    installed = _install_pinned(context, pin, no_lock=no_lock)
    return location_of(str(installed.name), installed)


def locate_begun(context: Invocation, spec: str, run_dir: Path) -> Location:
    """Return the environment that a run started with, in the very installation that it used.

    `spec` is what the user asked for: a manifest may say which installation of it, and nothing else. Raises
    `ClientError` for a manifest of another environment.
    """
    from wander.evals.store.folder import RunFolder

    wanted = parse_environment(spec)
    if isinstance(wanted, Path) or not (run_dir / "run.json").exists():
        return locate(context, spec)
    pin = RunFolder.open(run_dir).manifest.environment
    names = (pin.owner, pin.name, pin.version)
    if names != (wanted.owner, wanted.name, wanted.version or pin.version):
        raise ClientError(
            f"`{run_dir}` is a run of `{pin.full_name}` {pin.version or 'from a folder'}, not of `{wanted}`",
            hint="name the run's environment, or another folder",
            code="other_environment",
        )
    return locate_pinned(context, pin)


def _install_pinned(context: Invocation, pin: EnvironmentPin, *, no_lock: bool = False) -> Installed:
    """Return the installed environment that a run's pin means, installing it when it is absent.

    A run that used its version's lock gets that lock or `ClientError`, unless `no_lock` leaves it aside. Of
    other runs the packages are looked for here; where others run in their place, a warning says so.
    """
    name = parse_name(f"{pin.owner}/{pin.name}@{pin.version}")  # refuses anything else, such as a path
    installed = _find_installed(context, name, pin, no_lock=no_lock)
    record = installed.record
    elsewhere = "the run belongs to another hub, or its record was changed"
    if pin.wheel_sha256 is not None and record.wheel_sha256 != pin.wheel_sha256:
        raise ClientError(
            f"`{name}` is another file here than the run used: sha256 {record.wheel_sha256[:16]}..., "
            f"the run's is {pin.wheel_sha256[:16]}...",
            hint=elsewhere,
            code="other_environment",
        )
    if pin.lock_sha256 is None:
        if pin.packages_sha256 not in (None, record.packages_sha256):
            context.output.warn(f"the run used no lock, and `{name}` has other packages here than it had")
    elif no_lock:
        same = record.packages_sha256 == pin.packages_sha256
        found = "the same as it used" if same else "others than it used"
        context.output.warn(
            f"the run's lock is left aside: the packages are {found}, at least by their versions"
        )
    elif record.lock_sha256 != pin.lock_sha256:
        own = record.lock_sha256
        has = f"has sha256 {own[:16]}... as its lock" if own else "has no lock"
        raise ClientError(
            f"`{name}` {has} here, the run's is {str(pin.lock_sha256)[:16]}...",
            hint=f"{elsewhere}; `--no-lock` leaves the lock aside",
            code="other_lock",
        )
    return installed


def _find_installed(
    context: Invocation, name: EnvironmentName, pin: EnvironmentPin, *, no_lock: bool
) -> Installed:
    if no_lock:
        return ensure_installed(context, name, no_lock=True)
    present = find_installed(context, name)
    if pin.lock_sha256 is not None:
        same = [one for one in present if one.record.lock_sha256 == pin.lock_sha256]
        return same[-1] if same else ensure_installed(context, name, no_lock=False)
    same = [one for one in present if pin.packages_sha256 in (None, one.record.packages_sha256)]
    return same[-1] if same else ensure_installed(context, name, no_lock=True)


async def replay_in(
    context: Invocation,
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
    time_limit: float | None = None,
) -> tuple[ReplayReport, VerifiedWith | None]:
    """Open the environment with the run's arguments and replay, or rescore, its rollouts.

    It runs in two processes whose surroundings are drawn now, so that it cannot know whether it is replayed:
    the second one plays some rollouts once more. In this process there is only one. If loading and replaying
    take more than `time_limit` seconds, the report says so, and that it is unfinished.

    An environment that refuses the arguments contradicts the manifest; then there is nothing it ran with.
    """
    from wander.evals.replay import replay_run
    from wander.evals.store.manifest import this_platform
    from wander.wire.verification import ReplayReport, VerifiedWith
    from wander.worker.process.surroundings import draw_surroundings

    arguments = manifest.environment.arguments
    run = manifest.run_id, manifest.expected_rollouts
    async with _within(time_limit) as late, contextlib.AsyncExitStack() as stack:
        drawn = [] if in_process else [draw_surroundings(confined=sandbox is not None) for _ in range(2)]
        each: list[Surroundings] | list[None] = drawn or [None]
        openings = [
            open_environment(
                context, location, arguments, in_process=in_process, sandbox=sandbox, surroundings=one
            )
            for one in each
        ]
        # All have ended, one way or the other, before the first error is raised.
        begun = await asyncio.gather(*map(stack.enter_async_context, openings), return_exceptions=True)
        try:
            opened, *others = [_require_opened(one) for one in begun]
        except UsageError as error:
            if error.code != "bad_arguments":
                raise
            reason = f"the environment refuses its arguments: {error}"
            return ReplayReport.empty(*run, refused=reason, contradicted=True), None
        if location.folder is not None:
            # Under change: what differs from the manifest shows in the rollouts.
            pin = manifest.environment.model_copy(update={"info": opened.handle.info})
            manifest = manifest.model_copy(update={"environment": pin})
        made_with = VerifiedWith(environment=opened.pin, platform=this_platform(), surroundings=drawn)
        report = await replay_run(
            opened.handle,
            manifest,
            rollouts,
            elsewhere=others[0].handle if others else None,
            level=level,
            sample=sample,
            sample_seed=seed,
            concurrency=concurrency,
            on_replayed=on_replayed,
        )
    if late():
        reason = f"it takes longer than the limit of {time_limit:.0f} s"
        return ReplayReport.empty(*run, refused=reason, unfinished=manifest.expected_rollouts), None
    return report, made_with


@contextlib.asynccontextmanager
async def _within(seconds: float | None) -> AsyncIterator[Callable[[], bool]]:
    """End the block after a time limit; yield a function that says whether it was reached."""
    try:
        async with asyncio.timeout(seconds) as limit:
            yield limit.expired
    except TimeoutError:
        if not limit.expired():
            raise


def _require_opened(found: OpenedEnvironment | BaseException) -> OpenedEnvironment:
    if isinstance(found, BaseException):
        raise found
    return found
