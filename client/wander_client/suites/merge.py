"""Make one run, or one suite, of the shards in which it was played."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from wander_client.errors import UsageError, name_option
from wander_client.evaluate.evaluation import (
    COMMAND_FILE,
    find_changed_files,
    name_resumption,
    read_settings_of,
)
from wander_client.runs.lookup import SUITE_FILE
from wander_client.runs.own_records import signed_text
from wander_client.runs.shards import require_free
from wander_client.suites.file import Suite

if TYPE_CHECKING:
    from wander.wire import RunManifest, RunSummary


@dataclass(frozen=True)
class Merged:
    """A run that was made of shards."""

    name: str
    run_dir: Path
    manifest: RunManifest
    summary: RunSummary


def merge(folders: Sequence[Path], out: Path) -> list[Merged]:
    """Write the run, or the runs of the suite, that these shards make; all of it or nothing.

    Raises `RunError` and `UsageError` for what does not fit together.
    """
    suites = [(folder / SUITE_FILE).is_file() for folder in folders]
    if all(suites):
        return merge_suite(folders, out)
    if any(suites):
        raise UsageError(
            "some of these are shards of a suite, others of a run", hint="merge either by itself"
        )
    require_free(out)
    return [_merge_run(folders, out, out.name)]


def _merge_run(folders: Sequence[Path], out: Path, name: str) -> Merged:
    from wander.evals.run.merge import merge_shards
    from wander.evals.store.folder import RunFolder

    shards = [RunFolder.open(folder) for folder in folders]
    kept = [read_settings_of(folder) for folder in folders if (folder / COMMAND_FILE).is_file()]
    settings = [each.command for each in kept]
    for other in settings[1:]:
        before, now = settings[0].environment_files, other.environment_files
        if before is not None and now is not None and (changed := find_changed_files(before, now)):
            raise UsageError(
                f"the environment's files were not the same for all shards: {', '.join(changed[:5])}",
                hint="play all shards from one copy of the folder, or publish it and name its version",
                code="environment_changed",
            )
    files = {}
    # What somebody else's shard asks for must not become this user's own record.
    if len(kept) == len(folders) and all(each.is_own for each in kept):
        files[COMMAND_FILE] = signed_text(settings[0].model_copy(update={"shard": None}))
    return Merged(name, out, *merge_shards(shards, out, files))


def merge_suite(folders: Sequence[Path], out: Path) -> list[Merged]:
    """Write the suite that these shards make; all of it or nothing."""
    from wander.evals.run.merge import require_outside, require_tiles
    from wander.evals.store.folder import disk_errors
    from wander.evals.store.jsonl import make_folder

    kept = [Suite.load(folder) for folder in folders]
    suites = [each.command for each in kept]
    parts = []
    for folder, suite in zip(folders, suites, strict=True):
        if suite.shard is None:
            raise UsageError(f"`{folder}` is a whole suite, not a shard of one", hint="leave it out")
        if suite.runs != suites[0].runs:
            raise UsageError(
                f"`{folders[0]}` and `{folder}` are no shards of one suite: their evaluations differ",
                hint="play all shards with one command, but for "
                + name_option("shard")
                + " and "
                + name_option("out"),
            )
        parts.append((str(folder), suite.shard))
    require_tiles(parts, what="the suite")
    require_free(out)
    require_outside(out, folders)
    with make_folder(out) as place:
        found = []
        for run in suites[0].runs:
            played_in = [
                folder / run.folder
                for folder, suite in zip(folders, suites, strict=True)
                if any(part.folder == run.folder for part in suite.parts())
            ]
            for played in played_in:
                if not (played / "run.json").is_file():
                    raise UsageError(
                        f"`{played.parent}` has not begun with `{run.name}`",
                        hint="go on with " + name_resumption(played.parent) + ", then merge again",
                    )
            found.append(merge_part(played_in, place / run.folder, run.name))
        started = min(suite.started_at for suite in suites)
        if all(each.is_own for each in kept):
            with disk_errors(place):
                suites[0].model_copy(update={"shard": None, "started_at": started}).write(place)
    return [Merged(each.name, out / each.run_dir.name, each.manifest, each.summary) for each in found]


def merge_part(folders: Sequence[Path], target: Path, name: str) -> Merged:
    """Merge a run of a suite, or copy it where one shard has all of it."""
    from wander.evals.run.merge import require_unchanged
    from wander.evals.stats.summary import summarise_run
    from wander.evals.store.folder import RunFolder, disk_errors
    from wander.system.plain_files import copy_plain_folder

    if len(folders) > 1 or RunFolder.open(folders[0]).manifest.shard is not None:
        return _merge_run(folders, target, name)
    whole = RunFolder.open(folders[0])
    if whole.manifest.ended_at is None:
        raise UsageError(
            f"`{folders[0]}` is not played to its end",
            hint="go on with " + name_resumption(folders[0].parent) + ", then merge again",
        )
    summary = summarise_run(whole.manifest, whole.rollouts_in_order())
    require_unchanged(whole, summary)
    with disk_errors(target):
        copy_plain_folder(folders[0], target)
    return Merged(name, target, whole.manifest, summary)
