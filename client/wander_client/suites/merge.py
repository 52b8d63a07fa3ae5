"""Merge the shards of a run or of a suite."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from wander_client.errors import UsageError, name_option
from wander_client.evaluate.evaluation import find_changed_files, name_resumption, read_settings_of
from wander_client.runs.lookup import SUITE_FILE
from wander_client.runs.own_records import COMMAND_FILE, signed_text
from wander_client.runs.shards import require_free
from wander_client.suites.file import Suite

if TYPE_CHECKING:
    from wander.wire import RunManifest, RunSummary


@dataclass(frozen=True)
class Merged:
    """A run that was merged from shards."""

    name: str
    run_dir: Path
    manifest: RunManifest
    summary: RunSummary


def merge(folders: Sequence[Path], out: Path) -> list[Merged]:
    """Merge the shards of a run or of a suite, atomically.

    Raises `RunError` or `UsageError` if the shards do not belong together.
    """
    suites = [(folder / SUITE_FILE).is_file() for folder in folders]
    if all(suites):
        return merge_suite(folders, out)
    if any(suites):
        raise UsageError(
            "some folders are shards of a suite, others are shards of a run", hint="merge them separately"
        )
    require_free(out)
    return [_merge_run(folders, out, out.name)]


def _merge_run(folders: Sequence[Path], out: Path, name: str) -> Merged:
    from wander.evals.run.merge import merge_shards
    from wander.evals.store.folder import RunFolder

    shards = [RunFolder.open(folder) for folder in folders]
    records = [read_settings_of(folder) for folder in folders if (folder / COMMAND_FILE).is_file()]
    settings = [record.command for record in records]
    for other in settings[1:]:
        before, now = settings[0].environment_files, other.environment_files
        if before is not None and now is not None and (changed := find_changed_files(before, now)):
            raise UsageError(
                f"the environment's files differ between the shards: {', '.join(changed[:5])}",
                hint="play all shards with the same copy of the folder, or publish it and use the version",
                code="environment_changed",
            )
    files = {}
    # Settings from somebody else's shard must not become a record that this user signs.
    if len(records) == len(folders) and all(record.is_own for record in records):
        files[COMMAND_FILE] = signed_text(settings[0].model_copy(update={"shard": None}))
    return Merged(name, out, *merge_shards(shards, out, files))


def merge_suite(folders: Sequence[Path], out: Path) -> list[Merged]:
    """Merge the shards of a suite, atomically."""
    from wander.evals.run.merge import require_outside, require_tiles
    from wander.evals.store.folder import disk_errors
    from wander.evals.store.jsonl import make_folder

    records = [Suite.load(folder) for folder in folders]
    suites = [record.command for record in records]
    parts = []
    for folder, suite in zip(folders, suites, strict=True):
        if suite.shard is None:
            raise UsageError(f"`{folder}` is a whole suite, not a shard", hint="remove it")
        if suite.runs != suites[0].runs:
            raise UsageError(
                f"`{folders[0]}` and `{folder}` are not shards of the same suite: their evaluations differ",
                hint="play all shards with the same command except for `shard` and " + name_option("out"),
            )
        parts.append((str(folder), suite.shard))
    require_tiles(parts, what="the suite")
    require_free(out)
    require_outside(out, folders)
    with make_folder(out) as target:
        merged = []
        for run in suites[0].runs:
            shard_dirs = [
                folder / run.folder
                for folder, suite in zip(folders, suites, strict=True)
                if any(part.folder == run.folder for part in suite.parts())
            ]
            for shard_dir in shard_dirs:
                if not (shard_dir / "run.json").is_file():
                    raise UsageError(
                        f"`{shard_dir.parent}` has not started `{run.name}`",
                        hint="resume it with " + name_resumption(shard_dir.parent) + ", then merge again",
                    )
            merged.append(merge_part(shard_dirs, target / run.folder, run.name))
        started = min(suite.started_at for suite in suites)
        if all(record.is_own for record in records):
            with disk_errors(target):
                suites[0].model_copy(update={"shard": None, "started_at": started}).write(target)
    return [Merged(run.name, out / run.run_dir.name, run.manifest, run.summary) for run in merged]


def merge_part(folders: Sequence[Path], target: Path, name: str) -> Merged:
    """Merge the shards of a suite's run, or copy the run if one shard contains all of it."""
    from wander.evals.run.merge import require_unchanged
    from wander.evals.stats.summary import summarize_run
    from wander.evals.store.folder import RunFolder, disk_errors
    from wander.system.plain_files import copy_plain_folder

    if len(folders) > 1 or RunFolder.open(folders[0]).manifest.shard is not None:
        return _merge_run(folders, target, name)
    whole = RunFolder.open(folders[0])
    if whole.manifest.ended_at is None:
        raise UsageError(
            f"`{folders[0]}` is not finished",
            hint="resume it with " + name_resumption(folders[0].parent) + ", then merge again",
        )
    summary = summarize_run(whole.manifest, whole.rollouts_in_order())
    require_unchanged(whole, summary)
    with disk_errors(target):
        copy_plain_folder(folders[0], target)
    return Merged(name, target, whole.manifest, summary)
