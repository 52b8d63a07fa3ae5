"""Open an environment for evaluation, training or play: installed from the hub, or from a folder.

    async with open_environment(context, "acme/wordle", {"words": 5}) as opened:
        opened.handle     # EnvironmentHandle: examples, rollout
        opened.pin        # EnvironmentPin for the manifest

`owner/name[@version]` is installed if necessary, and runs in its own process and virtual environment. A
folder runs in its own process. It uses this interpreter if all declared packages are installed there. With
`in_process=True`, it runs in this process.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from wander_client.environments.location import Location, default_log, locate
from wander_client.environments.sandbox import hide_own, warn_unconfined
from wander_client.environments.workers import WorkerChoice, place_workers
from wander_client.errors import UsageError

if TYPE_CHECKING:
    from wander.environment import LocalEnvironment
    from wander.handle import EnvironmentHandle
    from wander.sandbox import SandboxPolicy
    from wander.wire import EnvironmentPin
    from wander.wire.verification import Surroundings

    from wander_client.context import Invocation


@dataclass(frozen=True)
class OpenedEnvironment:
    """A loaded environment and its pin for manifests."""

    handle: EnvironmentHandle
    pin: EnvironmentPin
    location: Location


@contextlib.asynccontextmanager
async def open_environment(
    context: Invocation,
    spec: str | Location,
    arguments: Mapping[str, Any] | None = None,
    *,
    in_process: bool = False,
    pass_environ: Iterable[str] = (),
    log_path: Path | None = None,
    sandbox: SandboxPolicy | None = None,
    workers: WorkerChoice | None = None,
    surroundings: Surroundings | None = None,
    set_file: Path | None = None,
) -> AsyncIterator[OpenedEnvironment]:
    """Yield the loaded environment. Raises `wander.errors.LoadError` with the cause if it cannot be loaded.

    `pass_environ` names environment variables to pass. `log_path` receives the environment's output (default:
    a file in the cache). `sandbox` confines the environment on this machine, or raises `SandboxError`.
    `workers` chooses its processes. `surroundings` sets what these processes see of this machine. `set_file`
    is the file of a sealed task set, whose rows replace those of the evaluation split.
    """
    from wander.rollout.activity import Notices

    location = locate(context, spec) if isinstance(spec, str) else spec
    given = dict(arguments or {})
    rows, commitment = (None, None) if set_file is None else read_set_file(set_file)
    workers = workers or WorkerChoice()
    workers.require_consistent(in_process=in_process, pass_environ=pass_environ)
    if workers.addresses:
        sandbox = None  # no code of the environment runs on this machine
    elif sandbox is None:
        warn_unconfined(context, location)
    notices = Notices(lambda silence: context.output.warn(str(silence)), context.settings.notice_seconds)
    with contextlib.ExitStack() as stack:
        with _blame_arguments(given):
            handle: EnvironmentHandle
            if in_process:
                handle = _load_here(location, given, rows)
                handle.report_silence(notices)
            else:
                from wander.worker.host.environment import WorkerEnvironment

                log = log_path or default_log(context, location)
                log.parent.mkdir(parents=True, exist_ok=True)
                target = location.target
                if workers.addresses and location.installed is not None:
                    # A worker on another machine must play exactly the pinned version.
                    target = f"{target}@{location.installed.record.version}"
                handle = await WorkerEnvironment.start(
                    location.python,
                    target,
                    arguments=given,
                    rows=rows,
                    path=location.folder,
                    environ=pass_environ,
                    log_path=log,
                    sandbox=None if sandbox is None else hide_own(sandbox, context.settings),
                    runtime=location.runtime,
                    workers=workers.count,
                    addresses=stack.enter_context(place_workers(location, workers)),
                    rollout_timeout=workers.rollout_timeout,
                    surroundings=surroundings,
                    notices=notices,
                )
        try:
            pin = environment_pin(location, handle, given)
            pin.sealed = commitment
            if sandbox is not None:
                from wander.sandbox.bubblewrap import sandbox_pin

                pin.sandbox = sandbox_pin(sandbox)
            yield OpenedEnvironment(handle, pin, location)
        finally:
            await handle.close()


def read_set_file(path: Path) -> tuple[list[dict[str, Any]], str]:
    """Return the rows of a sealed task set's file, and its commitment. Raises `UsageError`."""
    from wander.wire.transfers import commitment_of, read_set
    from wander.wire.untrusted_text import RefusedText

    content = read_content(path)
    try:
        return read_set(content), commitment_of(content)
    except RefusedText as error:
        raise UsageError(
            f"`{path}` is not the file of a sealed task set: {error}",
            hint="download it from the page of the opened set",
            code="bad_set",
        ) from error


def read_content(path: Path) -> bytes:
    """Return the content of a file of examples, or the beginning of one that is too large for a set.

    Raises `UsageError` if it cannot be read.
    """
    from wander.system.plain_files import open_file
    from wander.wire.untrusted_text import SEALED_SET

    try:
        with open_file(path) as file:
            return file.read(SEALED_SET.most_bytes + 1)
    except OSError as error:
        raise UsageError(f"cannot read `{path}`: {error.strerror}") from error


def _load_here(
    location: Location, given: Mapping[str, Any], rows: list[dict[str, Any]] | None
) -> LocalEnvironment:
    """Load the environment of a folder into this process."""
    if location.folder is None:
        raise UsageError(
            f"`in_process` requires a folder, but `{location.spec}` is installed in its own virtual "
            "environment",
            hint="remove `in_process`, or pass the folder of the source",
        )
    if location.python != Path(sys.executable):
        from wander_client.packages.folder import declared_requirements, install_line

        raise UsageError(
            f"`in_process` uses this Python, but it lacks packages that `{location.folder.name}` declares",
            hint=f"`{install_line(declared_requirements(location.folder))}`, or remove `in_process`",
        )
    from wander.environment import LocalEnvironment
    from wander.loading import load_path

    env = load_path(location.folder, **given)
    if rows is not None:
        env.use_rows(rows)
    return LocalEnvironment(env)


def environment_pin(
    location: Location, handle: EnvironmentHandle, arguments: Mapping[str, Any]
) -> EnvironmentPin:
    """Return the pin of an environment for a manifest."""
    from wander.wire import EnvironmentPin

    if location.installed is None:
        return EnvironmentPin(
            name=handle.info.name,
            path=location.target,
            unlocked="folder",
            arguments=dict(arguments),
            info=handle.info,
        )
    record = location.installed.record
    return EnvironmentPin(
        owner=record.owner,
        name=record.name,
        version=record.version,
        wheel_sha256=record.wheel_sha256,
        lock_sha256=record.lock_sha256,
        unlocked=record.unlocked,
        packages_sha256=record.packages_sha256,
        arguments=dict(arguments),
        info=handle.info,
    )


@contextlib.contextmanager
def _blame_arguments(arguments: Mapping[str, Any]) -> Iterator[None]:
    """Distinguish arguments that the environment rejects (wrong usage) from a broken environment."""
    from wander.errors import ArgumentsRefused, LoadError

    try:
        yield
    except ArgumentsRefused as error:
        if not arguments:
            raise LoadError(str(error), hint=error.hint) from error
        hint = error.hint or "change the argument in the message"
        raise UsageError(str(error), hint=hint, code="bad_arguments") from error
