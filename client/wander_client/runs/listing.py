"""Lists of runs, on this machine or on the hub: filter, order and table rows."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Any

from wander_client.errors import UsageError
from wander_client.runs.lookup import local_runs
from wander_client.runs.text import sort_by
from wander_client.terminal.suggestions import did_you_mean

if TYPE_CHECKING:
    from wander.wire import RunManifest, RunSummary

    from wander_client.context import Invocation
    from wander_client.terminal.output import Output

SORTED_BY = {
    "started": "started_at",
    "reward": "reward_mean",
    "model": "model",
    "environment": "environment",
    "rollouts": "rollouts",
}
"""Values of `--sort`, with the field of a row that each sorts by."""

_AGE = re.compile(r"(\d{1,6})([hdw])")
_UNITS = {"h": "hours", "d": "days", "w": "weeks"}


@dataclass(frozen=True)
class RunFilter:
    """The filter of a list of runs."""

    environment: str | None = None
    """`owner/name` or a pattern such as `acme/*`; without a slash it is compared with the name only."""
    model: str | None = None
    """Pattern, or part of the model's name."""
    since: datetime | None = None
    levels: frozenset[str] = frozenset()
    """Verification levels of runs on the hub; empty for all."""

    def takes(self, row: dict[str, Any]) -> bool:
        """Return whether the list includes this row."""
        name = str(row["environment"])
        if self.environment is not None:
            name = name if "/" in self.environment else name.rpartition("/")[2]
            if not fnmatchcase(name, self.environment):
                return False
        model = str(row["model"])
        if self.model and not (fnmatchcase(model, self.model) or self.model.lower() in model.lower()):
            return False
        if self.since is not None and row["started_at"] < self.since:
            return False
        return not self.levels or row["level"] in self.levels


def local_rows(place: Path, output: Output) -> Iterator[dict[str, Any]]:
    """Yield a row for every run below a folder, newest first; warns about runs that cannot be read."""
    for run in local_runs(place, output):
        from wander.errors import RunError  # late, because importing it takes longer than listing no runs

        manifest = run.manifest
        try:
            summary = run.summary()
            rollouts = summary.rollouts if summary else run.count_done()
        except (RunError, OSError) as error:
            output.warn(str(error))
            continue
        yield _row({"run_dir": str(run.path)}, manifest.run_id, manifest, rollouts, summary)


def list_posted(context: Invocation, environment: str | None) -> Iterator[dict[str, Any]]:
    """Yield a row for every run on the hub that the user may see, newest first.

    If `environment` is an `owner/name`, the hub filters the runs. If it is a pattern, all runs are read.
    """
    exact = environment if environment and "/" in environment and not set("*?[") & set(environment) else None
    with context.hub() as hub:
        for run in hub.every_run(environment=exact):
            row = _row({"url": run.url}, run.run_id, run.manifest, run.summary.rollouts, run.summary)
            row["name"] = run.name
            yield row | {"expected": run.summary.expected, "level": run.level, "posted_by": run.posted_by}


def sort_runs(rows: list[dict[str, Any]], word: str) -> list[dict[str, Any]]:
    """Return rows sorted by a field of `SORTED_BY`; `-reward` sorts in descending order.

    Missing values come last.
    """
    name = word.removeprefix("-")
    if name not in SORTED_BY:
        hint = did_you_mean(name, SORTED_BY) or f"sort by one of {', '.join(SORTED_BY)}"
        raise UsageError(f"runs cannot be sorted by `{name}`", hint=hint)
    return sort_by(rows, lambda row: row[SORTED_BY[name]], falling=word.startswith("-"))


def moment(text: str) -> datetime:
    """Parse `--since`: `36h`, `7d` or `2w` before now, a date, or a time, in UTC."""
    if age := _AGE.fullmatch(text):
        return datetime.now(UTC) - timedelta(**{_UNITS[age[2]]: int(age[1])})
    try:
        when = datetime.fromisoformat(text)
    except ValueError:
        raise UsageError(
            f"`--since {text}` is not a valid time",
            hint="write `36h`, `7d`, `2w`, `2026-01-31` or `2026-01-31T18:00`",
        ) from None
    return when if when.tzinfo else when.replace(tzinfo=UTC)


def _row(
    place: dict[str, str],
    run_id: str,
    manifest: RunManifest,
    rollouts: int | None,
    summary: RunSummary | None,
) -> dict[str, Any]:
    return {
        **place,
        "run_id": run_id,
        "kind": manifest.kind,
        "environment": manifest.environment.full_name,
        "version": manifest.environment.version,
        "model": manifest.model.name,
        "rollouts": rollouts,
        "expected": manifest.expected_rollouts,
        "reward_mean": summary.reward_mean if summary else None,
        "started_at": manifest.started_at,
        "ended_at": manifest.ended_at,
    }
