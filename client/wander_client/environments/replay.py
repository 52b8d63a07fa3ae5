"""Replay a run in the environment that its manifest pins, with the same version and lock."""

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
from wander_client.names import EnvironmentName, parse_environment, parse_name, sealed_path

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
    """Return the location of the environment that a run used. Installs it if necessary.

    `folder` replaces the pinned environment, for authors who test a change. `no_lock` ignores the run's lock.
    `is_own` means that this user started the run: without it, no code is loaded from a folder that only the
    record names. Raises `ClientError` if the hub's files or lock differ from those of the run.
    """
    if folder is not None:
        return locate(context, str(folder.expanduser().resolve()))
    if pin.owner is None and not is_own:
        raise ClientError(
            f"the run used the folder `{pin.path}`, and you did not start it on this machine",
            hint="pass the folder of the environment's source: `--env FOLDER`",
            code="folder_of_another",
        )
    if pin.owner is None:
        if pin.path is None or not Path(pin.path).exists():
            raise NotFound(
                f"the run used the folder `{pin.path}`, which does not exist here",
                hint="pass the folder of the same source with `--env FOLDER`",
                code="environment_not_found",
            )
        return locate(context, pin.path)
    installed = _install_pinned(context, pin, no_lock=no_lock)
    return location_of(str(installed.name), installed)


def locate_started(context: Invocation, spec: str, run_dir: Path) -> Location:
    """Return the location of the environment that a run started with.

    `spec` is the environment that the user requested. The manifest only selects one of its installations.
    Raises `ClientError` if the manifest belongs to another environment.
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
            hint="pass the run's environment, or another folder",
            code="other_environment",
        )
    return locate_pinned(context, pin)


def fetch_set(context: Invocation, pin: EnvironmentPin) -> Path | None:
    """Return the file of the sealed task set that a run played; None if it played the environment's own rows.

    The set must be open. Its file is downloaded from the hub if it is not in the cache. Raises `ClientError`
    if the hub's file does not match the commitment, and `NotFound` if the set is sealed.
    """
    if pin.sealed is None:
        return None
    path = context.settings.cache_dir / "sealed" / f"{pin.sealed}.jsonl"
    if not path.exists():
        with context.hub() as hub:
            hub.download(sealed_path(pin.sealed, "examples.jsonl"), path, pin.sealed)
    return path


def _install_pinned(context: Invocation, pin: EnvironmentPin, *, no_lock: bool = False) -> Installed:
    """Return the installed environment that a run's pin describes. Installs it if necessary.

    If the run used a lock, this lock is required unless `no_lock` is set; otherwise raises `ClientError`. For
    runs without a lock, looks for an installation with the same packages, and warns if it is missing.
    """
    name = parse_name(f"{pin.owner}/{pin.name}@{pin.version}")  # rejects anything else, such as a path
    installed = _find_installed(context, name, pin, no_lock=no_lock)
    record = installed.record
    cause = "the run belongs to another hub, or its record was changed"
    if pin.wheel_sha256 is not None and record.wheel_sha256 != pin.wheel_sha256:
        raise ClientError(
            f"the file of `{name}` differs from the run's: sha256 {record.wheel_sha256[:16]}... here, "
            f"{pin.wheel_sha256[:16]}... in the run",
            hint=cause,
            code="other_environment",
        )
    if pin.lock_sha256 is None:
        if pin.packages_sha256 not in (None, record.packages_sha256):
            context.output.warn(
                f"the run used no lock, and `{name}` is installed with different packages here"
            )
    elif no_lock:
        same = record.packages_sha256 == pin.packages_sha256
        comparison = "have the same versions as" if same else "differ from those of"
        context.output.warn(f"the run's lock is ignored: the installed packages {comparison} the run")
    elif record.lock_sha256 != pin.lock_sha256:
        own = record.lock_sha256
        local = f"has the lock sha256 {own[:16]}..." if own else "has no lock"
        raise ClientError(
            f"`{name}` {local} here, but the run used {str(pin.lock_sha256)[:16]}...",
            hint=f"{cause}; `--no-lock` ignores the lock",
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
        same = [item for item in present if item.record.lock_sha256 == pin.lock_sha256]
        return same[-1] if same else ensure_installed(context, name, no_lock=False)
    same = [item for item in present if pin.packages_sha256 in (None, item.record.packages_sha256)]
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
    """Open the environment with the run's arguments, and replay or rescore its rollouts.

    The environment runs in two processes with randomly chosen surroundings, so that it cannot detect the
    replay. The second process replays some rollouts again. With `in_process`, there is only one. If loading
    and replaying take more than `time_limit` seconds, the report says so and is marked as unfinished.
    If the environment rejects the run's arguments, the manifest is contradicted, and no `VerifiedWith` is
    returned.
    """
    from wander.evals.replay import replay_run
    from wander.evals.store.manifest import this_platform
    from wander.wire.verification import ReplayReport, VerifiedWith
    from wander.worker.process.surroundings import draw_surroundings

    arguments, set_file = manifest.environment.arguments, fetch_set(context, manifest.environment)
    run = manifest.run_id, manifest.expected_rollouts
    async with _within(time_limit) as timed_out, contextlib.AsyncExitStack() as stack:
        drawn = [] if in_process else [draw_surroundings(confined=sandbox is not None) for _ in range(2)]
        surroundings: list[Surroundings] | list[None] = drawn or [None]
        openings = [
            open_environment(
                context,
                location,
                arguments,
                in_process=in_process,
                sandbox=sandbox,
                surroundings=drawn_surroundings,
                set_file=set_file,
            )
            for drawn_surroundings in surroundings
        ]
        # Wait for all of them before the first error is raised.
        results = await asyncio.gather(*map(stack.enter_async_context, openings), return_exceptions=True)
        try:
            opened, *others = [_require_opened(result) for result in results]
        except UsageError as error:
            if error.code != "bad_arguments":
                raise
            reason = f"the environment rejects its arguments: {error}"
            return ReplayReport.empty(*run, refused=reason, contradicted=True), None
        if location.folder is not None:
            # The folder may have changed. Differences from the manifest show up in the rollouts.
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
    if timed_out():
        reason = f"the replay exceeded the limit of {time_limit:.0f} s"
        return ReplayReport.empty(*run, refused=reason, unfinished=manifest.expected_rollouts), None
    return report, made_with


@contextlib.asynccontextmanager
async def _within(seconds: float | None) -> AsyncIterator[Callable[[], bool]]:
    """Stop the block after a time limit. Yields a function that returns whether the limit was reached."""
    try:
        async with asyncio.timeout(seconds) as limit:
            yield limit.expired
    except TimeoutError:
        if not limit.expired():
            raise


def _require_opened(result: OpenedEnvironment | BaseException) -> OpenedEnvironment:
    if isinstance(result, BaseException):
        raise result
    return result
