"""The contents of a run's folder without times: equal for every division of a run into shards."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from wander.evals.store.folder import RunFolder

CLOCK = {"started_at", "seconds", "scoring_seconds"}


def records_of(place: Path) -> list[bytes]:
    """Return the final lines as bytes, in the manifest's order and without times."""
    folder = RunFolder.open(place)
    order = {name: number for number, name in enumerate(folder.manifest.example_ids)}
    lines = sorted((order[rollout.example_id], rollout.index, line) for rollout, line in folder.records())
    return [_timeless(line) for _, _, line in lines]


def aggregates_of(place: Path) -> dict[str, Any]:
    """Return the folder's aggregates without the mean time."""
    summary: dict[str, Any] = json.loads((place / "summary.json").read_text())
    del summary["seconds_mean"]
    return summary


def _timeless(line: bytes) -> bytes:
    rollout = json.loads(line)
    for name in CLOCK:
        del rollout[name]
    for turn in rollout["turns"]:
        del turn["model_seconds"], turn["environment_seconds"]
    return json.dumps(rollout).encode()
