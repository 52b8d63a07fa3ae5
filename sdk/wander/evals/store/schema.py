"""Generates the JSON Schema of the run record from the models that read and write it.

`"schema": "wander.run/1"` in a `run.json` means that all files of the folder follow version 1. Fields with a
default may be added within a version, because records without them stay valid. Every other change (a removed
field, a new required field, a different type) needs version 2.
"""

from __future__ import annotations

from typing import Any

from wander.types import Record, Rollout
from wander.wire import RunManifest, RunSummary

VERSION = 1
DIALECT = "https://json-schema.org/draft/2020-12/schema"

_PARTS: dict[str, tuple[type[Record], str]] = {
    "run": (RunManifest, "run.json: what pins a run"),
    "rollout": (Rollout, "a line of rollouts.jsonl: one finished episode"),
    "summary": (RunSummary, "summary.json: aggregates, derived from the rollouts"),
}
PARTS = tuple(_PARTS)
"""Files of a run folder that have a schema."""


def record_schema(part: str) -> dict[str, Any]:
    """Return the JSON Schema of a file of the run folder, named by one of `PARTS`."""
    model, title = _PARTS[part]
    body = model.model_json_schema(by_alias=True, mode="validation")
    return {"$schema": DIALECT, **body, "title": title}
