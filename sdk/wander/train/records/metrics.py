"""The metrics of every step of a training run, read without what trained it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from wander.errors import RunError
from wander.evals.store import jsonl

METRICS = "metrics.jsonl"


def read_metrics(folder: Path) -> list[dict[str, Any]]:
    """Return the metrics of every finished step."""
    try:
        return read_entries(folder / METRICS)
    except FileNotFoundError:
        raise RunError(f"`{folder}` has no {METRICS}", hint="give the folder of a training run") from None


def read_entries(file: Path) -> list[dict[str, Any]]:
    """Return the lines of a file of metrics, without a last one that a kill cut short.

    Raises `RunError` for a line that is none.
    """
    entries = []
    for number, line in enumerate(jsonl.lines(file), start=1):
        if not line.endswith(b"\n"):
            break
        try:
            entry = jsonl.parse_object(line)
        except ValueError:
            entry = {}
        if not isinstance(entry.get("step"), int):
            raise RunError(f"`{file}` is damaged: line {number} is no step")
        entries.append(entry)
    return entries


def number(entry: Mapping[str, Any], name: str) -> float | None:
    """Return a metric of a step, or None if the step has no number under that name."""
    value = entry.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float) or value != value:
        return None
    return float(value)
