"""`metadata.json` and `results.jsonl` of verifiers 0.1.3 to 0.3.1, in both of their schemas.

The earlier schema has `avg_<metric>` in the metadata, times as `*_ms`, and metrics at the top level of a row.
The later schema has `avg_metrics` and the objects `timing`, `metrics` and `error`.
"""

from __future__ import annotations

import contextlib
import json
import math
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from wander.clients.completions import total_usage
from wander.errors import ModelError, RunError
from wander.evals.foreign_run import UNKNOWN, ForeignRun
from wander.evals.formats import received
from wander.types import Failure, Message, Rollout, SamplingArgs, Turn

from wander_compat.adapters.host_client import merge_sampling
from wander_compat.boundaries import find_boundary
from wander_compat.verifiers.messages.conversion import plain, wire_messages

_ROW_FIELDS = frozenset(
    {"example_id", "id", "prompt", "completion", "answer", "info", "task", "reward", "error", "timing"}
    | {"is_completed", "is_truncated", "stop_condition", "metrics", "tool_defs", "oai_tools", "token_usage"}
    | {"generation_ms", "scoring_ms", "total_ms", "error_chain", "long_error_chain", "trajectory"}
)


def read_classic(path: Path) -> ForeignRun:
    """Read one evaluation of the classic library. Raises `RunError`."""
    folder = path.parent
    metadata = received.json_object(folder / "metadata.json")
    versions = metadata.get("version_info") or {}
    later = "avg_metrics" in metadata or "version_info" in metadata
    foreign = ForeignRun(
        environment=str(metadata.get("env_id") or metadata.get("env") or folder.name.partition("--")[0]),
        model=str(metadata.get("model") or UNKNOWN),
        source=f"verifiers {versions.get('vf_version') or ('from 0.1.8' if later else 'before 0.1.8')}",
        arguments=metadata.get("env_args") or {},
        sampling=_read_sampling(metadata.get("sampling_args") or {}),
        base_url=metadata.get("base_url") or None,
        version=versions.get("env_version"),
        started_at=_start_time(metadata.get("date")),
        rollouts_per_example=metadata.get("rollouts_per_example"),
        reward_names=_metric_names(metadata),
    )
    for number, row in received.json_lines(path):
        if "completion" not in row:
            raise RunError(f"line {number} of `{path}` has no `completion`")
        with received.blame_line(path, number):
            _add(foreign, row, number)
    return foreign


def _read_sampling(given: dict[str, Any]) -> SamplingArgs:
    try:
        return merge_sampling(SamplingArgs(), given)
    except ModelError as error:
        raise RunError(f"the sampling arguments cannot be read: {error}") from error


def _start_time(date: Any) -> datetime | None:
    try:
        found = datetime.fromisoformat(str(date))
    except ValueError:
        return None
    return found if found.tzinfo else found.replace(tzinfo=UTC)


def _metric_names(metadata: dict[str, Any]) -> list[str]:
    if isinstance(metadata.get("avg_metrics"), dict):
        return list(metadata["avg_metrics"])
    told = {"avg_reward", "avg_error"}
    return [name.removeprefix("avg_") for name in metadata if name.startswith("avg_") and name not in told]


def _add(foreign: ForeignRun, row: dict[str, Any], number: int) -> None:
    """Add the rollout of one row."""
    prompt, completion = _messages(row.get("prompt")), _messages(row["completion"])
    position = (number - 1) // max(1, foreign.rollouts_per_example or 1)
    known = (row[name] for name in ("example_id", "id") if row.get(name) is not None)
    example_id = str(next(known, position))
    answer = plain(row.get("answer")) if row.get("answer") is not None else ""
    task = {"task": row["task"]} if row.get("task") not in (None, "default") else {}
    example = foreign.example(example_id, prompt, answer, _info(row.get("info")), task)
    failure = _failure(row.get("error"))
    rollout = {
        "example_id": example_id,
        "index": foreign.counts[example_id],
        "seed": example.seed,
        "prompt": prompt,
        "completion": completion,
        "turns": [
            Turn(message=message, context_messages=len(prompt) + position)
            for position, message in enumerate(completion)
            if message.get("role") == "assistant"
        ],
        "answer": answer,
        "stop_reason": None if failure else str(row.get("stop_condition") or UNKNOWN),
        "truncated": bool(row.get("is_truncated")),
        "reward": None if failure else _number(row.get("reward")),
        "metrics": {} if failure else _metrics(row, foreign.reward_names),
        "failure": failure,
        "usage": total_usage([row.get("token_usage")]),
        **_times(row),
    }
    foreign.add(Rollout.model_validate(rollout))


def _messages(value: Any) -> list[Message]:
    """Return messages. Some rows have them as plain text or as JSON text."""
    if isinstance(value, str) and value.lstrip().startswith("["):
        with contextlib.suppress(ValueError):  # text may happen to begin with a bracket
            value = json.loads(value)
    if isinstance(value, str):
        return [{"role": "user", "content": value}]
    return wire_messages(value)


def _info(value: Any) -> dict[str, Any]:
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError:
            return {"text": value}
    return plain(value) if isinstance(value, dict) else {}


def _failure(error: Any) -> Failure | None:
    """Return the failure of a row, or None. The reward of a failed rollout is ignored."""
    if not error:
        return None
    if isinstance(error, dict):
        name = str(error.get("error") or UNKNOWN)
        said = str(error.get("error_chain_repr") or error.get("message") or name)
    else:
        said = str(error)
        name = said.partition("(")[0].strip() or UNKNOWN
    return Failure(boundary=find_boundary(name).boundary, type=name, message=said)


def _metrics(row: dict[str, Any], names: list[str]) -> dict[str, float]:
    """Return the metrics of a row, from its `metrics` or from the numbers at its top level."""
    found = row.get("metrics")
    if not isinstance(found, dict):
        found = {name: row[name] for name in names or row.keys() - _ROW_FIELDS if name in row}
    numbers = {name: _number(value) for name, value in sorted(found.items())}
    return {name: value for name, value in numbers.items() if value is not None}


def _number(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if math.isfinite(value) else None


def _times(row: dict[str, Any]) -> dict[str, Any]:
    """Return the start and the duration of a rollout."""
    timing = row.get("timing")
    if not isinstance(timing, dict):
        timing = {name: row[name] for name in ("generation_ms", "scoring_ms", "total_ms") if name in row}
    scoring = timing.get("scoring")
    scored = scoring.get("duration") if isinstance(scoring, dict) else (timing.get("scoring_ms") or 0) / 1000
    total = timing["total"] if "total" in timing else (timing.get("total_ms") or 0) / 1000
    found: dict[str, Any] = {"seconds": float(total or 0), "scoring_seconds": float(scored or 0)}
    if isinstance(timing.get("start_time"), int | float):
        found["started_at"] = datetime.fromtimestamp(timing["start_time"], UTC).isoformat()
    return found
