"""The metrics of every step of a training run, read without what trained it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from wander.errors import RunError

METRICS = "metrics.jsonl"


def read_metrics(folder: Path) -> list[dict[str, Any]]:
    """Return the metrics of every finished step."""
    file = folder / METRICS
    if not file.is_file():
        raise RunError(f"`{folder}` has no {METRICS}", hint="give the folder of a training run")
    return read_entries(file)


def read_entries(file: Path) -> list[dict[str, Any]]:
    """Return the lines of a file of metrics, without a last one that a kill cut short.

    Raises `RunError` for a line that is none.
    """
    entries = []
    for number, line in enumerate(file.read_bytes().split(b"\n")[:-1], start=1):
        try:
            entry = json.loads(line)
        except ValueError:
            entry = None
        if not isinstance(entry, dict) or not isinstance(entry.get("step"), int):
            raise RunError(f"`{file}` is damaged: line {number} is no step")
        entries.append(entry)
    return entries


def number(entry: Mapping[str, Any], name: str) -> float | None:
    """Return a metric of a step, or None if the step has no number under that name."""
    value = entry.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float) or value != value:
        return None
    return float(value)
