"""Exports of runs, for the command and for `Run.export`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, get_args

from wander_client.hub.local_paths import publish_manifest, publish_text
from wander_client.terminal.suggestions import choose

if TYPE_CHECKING:
    from wander.evals.export import Format
    from wander.evals.formats.exported_run import ExportedRun
    from wander.types import Rollout


def start_export(
    runs: Sequence[ExportedRun], path: Path, format: str | None, *, tokens: bool
) -> tuple[Format, Iterator[int]]:
    """Return the format, and an iterator that writes the file and yields the number of rollouts so far.

    Raises `UsageError` for an unknown format.
    """
    from wander.evals.export import Format, export_runs, format_of

    kind = choose("--format", format, get_args(Format)) if format else format_of(path)
    if kind not in ("jsonl", "parquet", "hf"):  # files of other tools' formats are made to be published
        runs = [_PublishedRun(run) for run in runs]
    return kind, export_runs(runs, path, kind, tokens=tokens)


class _PublishedRun:
    """A run without the paths of this machine, like its posted copy."""

    def __init__(self, run: ExportedRun) -> None:
        text = run.manifest.model_dump_json(by_alias=True).encode()
        self.manifest = type(run.manifest).model_validate_json(publish_manifest(text))
        self.summary = run.summary
        self._run = run

    def rollouts(self) -> Iterator[Rollout]:
        for rollout in self._run.rollouts():
            if rollout.failure is not None:
                message = publish_text(rollout.failure.message)
                failure = rollout.failure.model_copy(update={"message": message})
                rollout = rollout.model_copy(update={"failure": failure})
            yield rollout
