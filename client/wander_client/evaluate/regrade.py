"""Grade runs again in another version of their environment, without their model."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

from wander_client.environments.location import Location
from wander_client.environments.opening import OpenedEnvironment
from wander_client.environments.replay import fetch_set
from wander_client.environments.sandbox import require_confined
from wander_client.errors import UsageError
from wander_client.evaluate.repeating import choose_arguments, own_settings
from wander_client.runs.found import FoundRun, LocalRun
from wander_client.runs.own_records import COMMAND_FILE, write_command

if TYPE_CHECKING:
    from wander.evals.regrade import Regrading
    from wander.evals.store.folder import RunFolder
    from wander.sandbox import SandboxPolicy

    from wander_client.context import Invocation


@dataclass(frozen=True)
class RegradedRun:
    """A run and the new run with its rollouts as another version grades them."""

    before: RunFolder
    after: RunFolder | None
    """None if only the plan was made."""
    regrading: Regrading
    resumable: bool
    """Whether `wander eval --resume` can play what is missing, because this user started the first run."""

    def describe(self, hub: str) -> dict[str, Any]:
        """Return the counts for `--json`."""
        found, old = self.regrading, self.before.manifest
        new = None if self.after is None else self.after.manifest.run_id
        pages = [("run", old.run_id), ("run", new or "")]
        return {
            "before_run": old.run_id,
            "after_run": new,
            "run_dir": None if self.after is None else str(self.after.path),
            "rollouts": found.graded + found.resumed + found.to_play.total() + found.gone,
            "graded": found.graded,
            "changed": found.changed,
            "failed": found.failed,
            "resumed": found.resumed,
            "to_play": dict(found.to_play),
            "gone": found.gone,
            "complete": found.is_complete,
            "compare_url": f"{hub}/runs/compare?{urlencode(pages)}" if new else None,
        }


def open_folder(source: FoundRun) -> RunFolder:
    """Return the folder of a run; downloads a run of the hub."""
    from wander.evals.store.folder import RunFolder

    return RunFolder.open(Path(source.location) if isinstance(source, LocalRun) else source.download())


def require_other_version(source: FoundRun, location: Location) -> None:
    """Raise `UsageError` if the run is of another environment, or of this version already."""
    pin = source.manifest.environment
    if location.installed is None:
        return
    record = location.installed.record
    if (pin.owner, pin.name) != (record.owner, record.name) and pin.owner is not None:
        raise UsageError(
            f"`{source.location}` is a run of `{pin.full_name}`, not of `{location.label}`",
            hint=f"pass a version of it: `--env {pin.full_name}@VERSION`",
        )
    if pin.version == record.version and pin.owner is not None:
        raise UsageError(
            f"`{source.location}` was already graded by version {pin.version}",
            hint="pass another version with `--env`, or use `wander runs replay`",
        )


def name_folder(source: FoundRun, location: Location) -> str:
    """Return the name of the folder of a new run, which is the same when the work is repeated."""
    version = location.installed.record.version if location.installed else "folder"
    return f"{location.label.replace('/', '-')}-{version}--{source.manifest.run_id}"


async def regrade_run(
    context: Invocation,
    source: FoundRun,
    location: Location,
    run_dir: Path | None,
    *,
    sandbox: SandboxPolicy | None,
    concurrency: int,
) -> RegradedRun:
    """Grade a run in the environment at `location`, and write the new run to `run_dir`.

    With `run_dir=None`, only the plan is made. A new run of this user's own run gets its settings, so that
    `wander eval --resume` can play the rollouts that are missing.
    """
    from wander.evals.regrade import regrade
    from wander.evals.store.folder import RunFolder

    from wander_client.environments.opening import open_environment

    own = own_settings(source)
    pin = choose_arguments(source, None, confined=sandbox is not None, is_own=own is not None)
    require_confined(context, sandbox, location, "regrade", in_process=False)
    before = open_folder(source)
    set_file = fetch_set(context, pin)
    total = before.manifest.expected_rollouts
    with context.output.progress("regrading", total, unit="rollouts") as bar:
        opened: OpenedEnvironment
        async with open_environment(
            context, location, pin.arguments, sandbox=sandbox, set_file=set_file
        ) as opened:
            regrading = await regrade(
                opened.handle,
                opened.pin,
                before,
                run_dir,
                concurrency=concurrency,
                on_progress=bar.update,
            )
    if run_dir is not None and own is not None and not (run_dir / COMMAND_FILE).exists():
        changed = {"environment": location.exact_name, "sandbox": sandbox, "environment_files": None}
        write_command(run_dir / COMMAND_FILE, own.model_copy(update=changed))
    after = None if run_dir is None else RunFolder.open(run_dir)
    return RegradedRun(before, after, regrading, own is not None)
