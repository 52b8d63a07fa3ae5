"""Writes rollouts as trajectories in Harbor's Agent Trajectory Interchange Format (ATIF) 1.7.

The source of each field is `harbor.models.trajectories` of Harbor 0.26. A tool's result belongs to the step
of the call, so tool messages become observations of the assistant's step. Values
without a field in ATIF (reward, metrics, seed, failure) are in `extra`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from wander.evals.formats.exported_run import (
    BATCH,
    ExportedRun,
    json_text,
    new_folder,
    tool_calls,
    turns_by_position,
    write_lines,
)
from wander.parsers import message_text
from wander.types import Message, Rollout, Turn
from wander.wire import RunManifest

SCHEMA = "ATIF-v1.7"

_SOURCES = {"system": "system", "developer": "system", "assistant": "agent"}
_SHOWN = frozenset({"role", "content", "tool_calls", "tool_call_id", "reasoning_content"})


def write_trajectories(runs: Sequence[ExportedRun], path: Path, *, tokens: bool = False) -> Iterator[int]:
    """Write one trajectory per rollout, and yield the number of trajectories after each batch.

    A path that ends with `.jsonl` becomes a file with one trajectory per line. Any other path becomes a
    folder with one file per rollout. Raises `ConfigError` if the folder exists.
    """
    found = (trajectory(run.manifest, rollout, tokens=tokens) for run in runs for rollout in run.rollouts())
    if path.suffix == ".jsonl":
        yield from write_lines(found, path)
        return
    written = 0
    with new_folder(path) as folder:
        for document in found:
            (folder / f"trajectory-{written:06}.json").write_text(json_text(document), encoding="utf-8")
            written += 1
            if written % BATCH == 0:
                yield written
    yield written


def trajectory(manifest: RunManifest, rollout: Rollout, *, tokens: bool = False) -> dict[str, Any]:
    """Return a rollout as an ATIF trajectory. `tokens` adds token ids and log-probabilities."""
    pin = manifest.environment
    agent: dict[str, Any] = {
        "name": "wander",
        "version": manifest.platform.wander,
        "model_name": manifest.model.name,
        "extra": {
            "environment": pin.full_name,
            "environment_version": pin.version,
            "environment_arguments": pin.arguments,
            "sampling": manifest.sampling.given(),
        },
    }
    if rollout.tools is not None:
        agent["tool_definitions"] = rollout.tools
    fields = {
        "reward", "metrics", "stop_reason", "truncated", "failure", "answer", "info", "seed", "rewards",
        "player_metrics", "step", "seconds",
    }  # fmt: skip
    return {
        "schema_version": SCHEMA,
        "session_id": manifest.run_id,
        "trajectory_id": f"{manifest.run_id}/{rollout.example_id}/{rollout.index}",
        "agent": agent,
        "steps": _steps(rollout, tokens=tokens),
        "final_metrics": {
            "total_prompt_tokens": rollout.usage.prompt_tokens,
            "total_completion_tokens": rollout.usage.completion_tokens,
            "total_cached_tokens": rollout.usage.cached_tokens,
            "total_steps": len(rollout.turns),
        },
        "extra": {
            "example_id": rollout.example_id,
            "index": rollout.index,
            **rollout.model_dump(mode="json", include=fields),
        },
    }


def _steps(rollout: Rollout, *, tokens: bool) -> list[dict[str, Any]]:
    turns = turns_by_position(rollout)
    steps: list[dict[str, Any]] = []
    agent: dict[str, Any] | None = None
    for position, message in enumerate([*rollout.prompt, *rollout.completion]):
        if message.get("role") == "tool" and agent is not None:
            _add_observation(agent, message)
            continue
        step = _step(len(steps) + 1, message, turns.get(position), tokens=tokens)
        if step["source"] == "agent":
            agent = step
        steps.append(step)
    if not steps:  # ATIF requires a step, and an environment that fails early leaves no message
        reason = rollout.failure.message if rollout.failure else ""
        steps.append({"step_id": 1, "source": "system", "message": reason})
    if rollout.started_at:
        steps[0]["timestamp"] = rollout.started_at
    return steps


def _step(number: int, message: Message, turn: Turn | None, *, tokens: bool) -> dict[str, Any]:
    source = _SOURCES.get(str(message.get("role")), "user")
    step: dict[str, Any] = {"step_id": number, "source": source, "message": message_text(message)}
    others = {name: value for name, value in message.items() if name not in _SHOWN and value is not None}
    if isinstance(message.get("content"), list):
        others["content"] = message["content"]
    if source != "agent":
        if message.get("role") == "tool":
            others["role"], others["tool_call_id"] = "tool", message.get("tool_call_id")
    else:
        calls = tool_calls(message)
        if isinstance(reasoning := message.get("reasoning_content"), str):
            step["reasoning_content"] = reasoning
        if calls:
            step["tool_calls"] = [
                {
                    "tool_call_id": call.id,
                    "function_name": call.name,
                    "arguments": call.arguments,
                    **({"extra": {"text": call.text, "problem": call.problem}} if call.problem else {}),
                }
                for call in calls
            ]
        if turn is not None:
            step["llm_call_count"] = 1
            step["metrics"] = _metrics(turn, tokens=tokens)
            others["finish_reason"] = turn.finish_reason
    if others:
        step["extra"] = others
    return step


def _metrics(turn: Turn, *, tokens: bool) -> dict[str, Any]:
    metrics: dict[str, Any] = {
        "prompt_tokens": turn.usage.prompt_tokens,
        "completion_tokens": turn.usage.completion_tokens,
        "cached_tokens": turn.usage.cached_tokens,
        "extra": {"model_seconds": turn.model_seconds},
    }
    if tokens and turn.tokens is not None:
        metrics["prompt_token_ids"] = turn.tokens.prompt_ids
        metrics["completion_token_ids"] = turn.tokens.completion_ids
        metrics["logprobs"] = turn.tokens.logprobs
    return metrics


def _add_observation(step: dict[str, Any], message: Message) -> None:
    """Add a tool's result to the step of the call. ATIF rejects the id of a call that the step lacks."""
    result: dict[str, Any] = {"content": message_text(message)}
    call_id = message.get("tool_call_id")
    if any(call["tool_call_id"] == call_id for call in step.get("tool_calls", [])):
        result["source_call_id"] = call_id
    elif call_id is not None:
        result["extra"] = {"tool_call_id": call_id}
    step.setdefault("observation", {"results": []})["results"].append(result)
