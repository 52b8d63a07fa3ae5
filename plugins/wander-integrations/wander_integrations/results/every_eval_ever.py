"""Reads records of Every Eval Ever as runs, also the records that `wander runs export` wrote.

The instance-level file has one line for each sample and result. The lines of the first result become
rollouts, and the scores of all other results become their metrics.
"""

from __future__ import annotations

import json
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from wander.clients.completions import total_usage
from wander.errors import RunError
from wander.evals.foreign_run import UNKNOWN, ForeignRun
from wander.evals.formats.exported_run import json_text
from wander.evals.formats.received import blame_line, json_lines, json_object
from wander.types import Failure, Message, Rollout, SamplingArgs, Turn

from wander_integrations.results.every_eval_ever_writer import METRIC

_LACKS = (
    "failed rollouts", "tokens of single turns", "token ids", "log-probabilities",
    "the wheel of the environment", "the platform",
)  # fmt: skip


def read_records(path: Path) -> ForeignRun:
    """Read the instance-level file of an evaluation, and the aggregate file next to it. Raises `RunError`."""
    aggregate_path = path.with_name(path.name.removesuffix("_samples.jsonl") + ".json")
    aggregate = json_object(aggregate_path)
    if not aggregate:
        raise RunError(f"the aggregate file `{aggregate_path.name}` is missing next to `{path}`")
    with blame_line(aggregate_path, 1):
        foreign = _read_aggregate(aggregate)
    first_result: str | None = None
    played: dict[tuple[str, int], Rollout] = {}
    occurrences: Counter[tuple[str, str]] = Counter()
    for number, line in json_lines(path):
        with blame_line(path, number):
            result = str(line.get("evaluation_result_id") or line["evaluation_name"])
            first_result = first_result or result
            example_id = str(line["sample_id"])
            key = example_id, occurrences[result, example_id]
            occurrences[result, example_id] += 1
            if result == first_result:
                played[key] = _rollout(foreign, line, result)
                foreign.add(played[key])
            elif key in played and played[key].failure is None:
                played[key].metrics[result] = float(line["evaluation"]["score"])
    return foreign


def _read_aggregate(record: dict[str, Any]) -> ForeignRun:
    results = record["evaluation_results"]
    result = results[0] if results else {}
    library = record.get("eval_library") or {}
    model = record["model_info"]
    name = str(result.get("evaluation_name") or UNKNOWN)
    owner, version = None, None
    if library.get("name") == "wander":
        owner, _, name = name.rpartition("/")
        version = ((result.get("source_data") or {}).get("additional_details") or {}).get("version")
    arguments = (result.get("generation_config") or {}).get("generation_args") or {}
    sampling = {key: arguments.get(key) for key in ("temperature", "top_p", "top_k", "max_tokens")}
    return ForeignRun(
        environment=name,
        owner=owner or None,
        version=version,
        model=str(model.get("name") or model["id"]),
        source=f"Every Eval Ever {record['schema_version']}, played with {library.get('name') or UNKNOWN}",
        sampling=SamplingArgs.model_validate({k: v for k, v in sampling.items() if v is not None}),
        started_at=_time(record.get("evaluation_timestamp") or record["retrieved_timestamp"]),
        lacks=list(_LACKS),
    )


def _time(text: str) -> datetime | None:
    """Return a time in ISO 8601 or in seconds since 1970, or None for any other text."""
    try:
        return datetime.fromtimestamp(float(text), UTC)
    except (ValueError, OverflowError, OSError):
        pass
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        return None
    return found if found.tzinfo else found.replace(tzinfo=UTC)


def _rollout(foreign: ForeignRun, line: dict[str, Any], result: str) -> Rollout:
    metadata = dict(line.get("metadata") or {})
    own = "prompt_messages" in metadata
    prompt, completion = _conversation(line, int(metadata["prompt_messages"]) if own else None)
    reference = line["input"]["reference"]
    answer = "" if not reference else reference[0] if len(reference) == 1 else reference
    example_id = str(line["sample_id"])
    example = foreign.example(example_id, prompt, answer, {}, {})
    score = float(line["evaluation"]["score"])
    metrics = {n.removeprefix(METRIC): float(v) for n, v in metadata.items() if n.startswith(METRIC)}
    known = ("index", "seed", "prompt_messages", "stop_reason", "truncated", "started_at")
    info = {n: v for n, v in metadata.items() if not (own and (n in known or n.startswith(METRIC)))}
    failure = None
    if line.get("error"):
        failure = Failure(boundary="model", type="EvaluationError", message=str(line["error"]))
    positions = (at for at in range(len(prompt), len(prompt) + len(completion)))
    return Rollout(
        example_id=example_id,
        index=int(metadata["index"]) if own else foreign.counts[example_id],
        seed=int(metadata["seed"]) if own else example.seed,
        prompt=prompt,
        completion=completion,
        turns=[
            Turn(message=message, context_messages=at)
            for at, message in zip(positions, completion, strict=True)
            if message["role"] == "assistant"
        ],
        answer=answer,
        stop_reason=None if failure else metadata["stop_reason"] if own else UNKNOWN,
        truncated=own and metadata["truncated"] == "true",
        reward=None if failure else score,
        metrics={} if failure else metrics if own else {result: score},
        failure=failure,
        usage=total_usage([line.get("token_usage")]),
        started_at=metadata["started_at"] if own else "",
        seconds=float((line.get("performance") or {}).get("latency_ms") or 0.0) / 1000,
        info=info,
    )


def _conversation(line: dict[str, Any], prompts: int | None) -> tuple[list[Message], list[Message]]:
    if line.get("messages") is not None:
        messages = [_message(message) for message in line["messages"]]
        roles = [message["role"] for message in messages]
        if prompts is None:
            prompts = roles.index("assistant") if "assistant" in roles else len(roles)
        return messages[:prompts], messages[prompts:]
    output = line["output"]
    traces = output.get("reasoning_trace") or []
    completion: list[Message] = [{"role": "assistant", "content": text} for text in output["raw"]]
    for message, trace in zip(completion, traces, strict=False):
        message["reasoning_content"] = trace
    return _prompt(line["input"]), completion


def _prompt(given: dict[str, Any]) -> list[Message]:
    try:
        formatted = json.loads(given.get("formatted") or "")
    except ValueError:
        formatted = None
    if isinstance(formatted, list) and all(isinstance(each, dict) and "role" in each for each in formatted):
        return formatted
    return [{"role": "user", "content": given["raw"]}]


def _message(written: dict[str, Any]) -> Message:
    message: Message = {"role": written["role"], "content": written.get("content")}
    if written.get("reasoning_trace") is not None:
        message["reasoning_content"] = written["reasoning_trace"]
    if written.get("tool_calls"):
        message["tool_calls"] = [
            {
                "id": call["id"],
                "type": "function",
                "function": {
                    "name": call["name"],
                    "arguments": json_text({n: _value(v) for n, v in (call.get("arguments") or {}).items()}),
                },
            }
            for call in written["tool_calls"]
        ]
    if written.get("tool_call_id"):
        message["tool_call_id"] = written["tool_call_id"][0]
    return message


def _value(text: Any) -> Any:
    """Return the value of an argument, which the schema stores as text."""
    try:
        return json.loads(text)
    except (ValueError, TypeError):
        return text
