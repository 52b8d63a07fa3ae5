"""Converts finished rollouts to JSON values, computes their means, and reads and writes files."""

from __future__ import annotations

import json
import math
import tempfile
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from wander.evals.stats import pass_at_k as stats

from wander_compat.verifiers.errors import error_info
from wander_compat.verifiers.messages.conversion import as_messages, field_of, plain
from wander_compat.verifiers.timing import format_timing
from wander_compat.verifiers.types import GenerateMetadata, GenerateOutputs, RolloutOutput, State

RESULTS, METADATA = "results.jsonl", "metadata.json"
_CELL = (str, int, float, bool, type(None))


make_serializable = plain


def is_json_serializable(value: Any) -> bool:
    """Return whether a value can be serialized as JSON."""
    try:
        json.dumps(value)
    except (TypeError, ValueError):
        return False
    return True


def serialize_messages_for_output(messages: Any) -> Any:
    """Return messages as plain dictionaries. Text is not changed."""
    return messages if isinstance(messages, str) or messages is None else plain(as_messages(messages, "dict"))


def token_usage(state: Mapping[str, Any]) -> dict[str, float] | None:
    """Return the tokens of a rollout, or None if no response reported them."""
    usages = [field_of(step.get("response"), "usage") for step in state.get("trajectory") or []]
    known = [usage for usage in usages if usage is not None]
    if not known:
        return None
    return {
        "input_tokens": float(sum(usage["prompt_tokens"] or 0 for usage in known)),
        "output_tokens": float(sum(usage["completion_tokens"] or 0 for usage in known)),
        "final_input_tokens": float(known[-1]["prompt_tokens"] or 0),
        "final_output_tokens": float(known[-1]["completion_tokens"] or 0),
    }


def state_to_output(state: State, state_columns: Sequence[str] | None = None) -> RolloutOutput:
    """Return the record of a finished rollout. `state_columns` names additional fields of the state."""
    error = state.get("error")
    metrics = dict(state.get("metrics") or {})
    output = RolloutOutput(
        example_id=state.get("example_id", 0),
        prompt=serialize_messages_for_output(state.get("prompt")),
        completion=serialize_messages_for_output(state.get("completion")),
        answer=plain(state.get("answer", "")),
        info=plain(state.get("info") or {}),
        task=state.get("task", "default"),
        reward=state.get("reward") or 0.0,
        error=error_info(error) if isinstance(error, BaseException) else error,
        timing=format_timing(state.get("timing")),
        is_completed=bool(state.get("is_completed")),
        is_truncated=bool(state.get("is_truncated")),
        stop_condition=state.get("stop_condition"),
        metrics=metrics,
        tool_defs=plain(state.get("tool_defs") or []),
        token_usage=token_usage(state),
    )
    for name, value in metrics.items():
        output.setdefault(name, value)
    for name in state_columns or []:
        output[name] = _column(name, state.get(name))
    return output


def _column(name: str, value: Any) -> Any:
    if name != "trajectory":
        return plain(value)
    return [
        {
            **{key: plain(item) for key, item in step.items() if key not in ("prompt", "completion")},
            "prompt": serialize_messages_for_output(step.get("prompt")),
            "completion": serialize_messages_for_output(step.get("completion")),
        }
        for step in value or []
    ]


def states_to_outputs(
    states: Sequence[State], state_columns: Sequence[str] | None = None
) -> list[RolloutOutput]:
    """Return the records of finished rollouts."""
    return [state_to_output(state, state_columns) for state in states]


def pass_at_k(
    outputs: Sequence[Mapping[str, Any]], threshold: float
) -> tuple[dict[str, float], dict[str, float]]:
    """Return, for k in powers of 2, the probability that any of k rollouts is correct, and that all of them
    are.

    The estimates are unbiased and use all rollouts of each row, for every k that the smallest group allows.
    """
    groups: dict[Any, list[bool]] = defaultdict(list)
    for output in outputs:
        groups[output.get("example_id")].append((output.get("reward") or 0.0) >= threshold)
    fewest = min((len(group) for group in groups.values()), default=0)
    any_right: dict[str, float] = {}
    all_right: dict[str, float] = {}
    k = 1
    while k <= fewest:
        counts = [(len(group), sum(group), k) for group in groups.values()]
        any_right[str(k)] = math.fsum(stats.pass_at_k(*count) for count in counts) / len(counts)
        all_right[str(k)] = math.fsum(stats.pass_hat_k(*count) for count in counts) / len(counts)
        k *= 2
    return any_right, all_right


def aggregate(outputs: Sequence[Mapping[str, Any]], threshold: float) -> dict[str, Any]:
    """Return the means of a run: reward, metrics, errors, tokens, pass@k."""
    names = sorted({name for output in outputs for name in output.get("metrics") or {}})
    count = max(1, len(outputs))
    metrics = {
        name: math.fsum((output.get("metrics") or {}).get(name, 0.0) for output in outputs) / count
        for name in names
    }
    usages = [output["token_usage"] for output in outputs if output.get("token_usage")]
    any_right, all_right = pass_at_k(outputs, threshold)
    return {
        "avg_reward": math.fsum(output.get("reward") or 0.0 for output in outputs) / count,
        "avg_metrics": metrics,
        "avg_error": sum(output.get("error") is not None for output in outputs) / count,
        "pass_at_k": any_right,
        "pass_all_k": all_right,
        "usage": {name: math.fsum(usage[name] for usage in usages) / len(usages) for name in usages[0]}
        if usages
        else None,
    }


def save_new_outputs(new_outputs: Sequence[Mapping[str, Any]], results_path: Path) -> None:
    """Append records to a run's file."""
    results_path.mkdir(parents=True, exist_ok=True)
    with (results_path / RESULTS).open("a", encoding="utf-8") as file:
        file.writelines(json.dumps(plain(output), ensure_ascii=False) + "\n" for output in new_outputs)


def save_outputs(outputs: Sequence[Mapping[str, Any]], results_path: Path) -> None:
    """Replace a run's file."""
    results_path.mkdir(parents=True, exist_ok=True)
    (results_path / RESULTS).unlink(missing_ok=True)
    save_new_outputs(outputs, results_path)


def sanitize_metadata(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields for a run's metadata file."""
    return {name: plain(value) for name, value in metadata.items() if name not in ("date", "path_to_save")}


def save_metadata(metadata: Mapping[str, Any], result_path: Path) -> None:
    """Write a run's metadata file."""
    result_path.mkdir(parents=True, exist_ok=True)
    (result_path / METADATA).write_text(json.dumps(sanitize_metadata(metadata), indent=2), encoding="utf-8")


def load_outputs(results_path: Path) -> list[RolloutOutput]:
    """Read a run's records, without a truncated last line."""
    outputs = []
    lines = (results_path / RESULTS).read_bytes().rstrip(b"\n").split(b"\n")
    for number, line in enumerate(lines):
        try:
            outputs.append(RolloutOutput(json.loads(line)))
        except ValueError:
            if number + 1 < len(lines):
                raise
    return outputs


def make_dataset(results: GenerateOutputs, **_: Any) -> Any:
    """Return a run's records as a Hugging Face dataset, with nested values as JSON text."""
    from datasets import Dataset

    rows = [
        {
            name: value if isinstance(value, _CELL) else json.dumps(plain(value))
            for name, value in output.items()
        }
        for output in results["outputs"]
    ]
    return Dataset.from_list(rows)


def metadata_of(outputs: Sequence[Mapping[str, Any]], threshold: float, **known: Any) -> GenerateMetadata:
    """Return a run's metadata."""
    made: Any = {**known, **aggregate(outputs, threshold), "pass_threshold": threshold}
    return made  # type: ignore[no-any-return]


def write_temp_file(content: str, suffix: str = ".txt") -> str:
    """Write a text to a new temporary file, which is not removed automatically. Returns its path."""
    with tempfile.NamedTemporaryFile("w", suffix=suffix, delete=False, encoding="utf-8") as file:
        file.write(content)
    return file.name
