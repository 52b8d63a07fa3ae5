"""Writes runs as `.eval` logs of Inspect (log version 2).

A log is a zip archive: `header.json` with the evaluation and its results, `summaries.json` for lists, and one
JSON file for each sample and epoch. The source of each field are the pydantic models of `inspect_ai.log` and
`inspect_ai.model` 0.3.285. An example is a sample and a rollout is an epoch. A turn is a model event, whose
input is a range of the sample's messages, so a long conversation is written once.

Values without a field in Inspect are under the key `wander` of a message's or a sample's `metadata`, so that
reading a log of our own gives the same rollout again.
"""

from __future__ import annotations

import re
import tempfile
import time
import zipfile
from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Protocol

from wander.errors import ConfigError
from wander.evals.formats.exported_run import (
    BATCH,
    ExportedRun,
    count_tokens,
    json_text,
    new_folder,
    tool_calls,
)
from wander.evals.store import jsonl
from wander.types import Message, Rollout, Turn
from wander.wire import RunManifest, RunSummary

VERSION = 2
"""Version of the log format."""
OWN = "wander"
"""Key in metadata for values without a field in Inspect."""
REWARD = "reward"
"""Name of the score with the reward."""

STOP_REASONS = {"length": "max_tokens"}
"""Names of finish reasons that Inspect calls differently."""
_KNOWN_REASONS = frozenset({"stop", "max_tokens", "model_length", "tool_calls", "content_filter"})
CONFIG_NAMES = {"stop": "stop_seqs"}
"""Names of sampling parameters that Inspect calls differently."""
CONFIG = frozenset(
    {
        "temperature",
        "top_p",
        "top_k",
        "max_tokens",
        "seed",
        "stop_seqs",
        "frequency_penalty",
        "presence_penalty",
    }
    | {"logit_bias", "reasoning_effort", "reasoning_tokens", "parallel_tool_calls", "best_of"}
)
"""Sampling parameters that Inspect knows. All others are in `extra_body`."""
_LIMITS = {"max_turns_reached": "turn", "timeout": "time", "context_overflow": "context"}
"""Kinds of limits, by the stop reason of a truncated rollout."""
_SCHEMA_NAMES = frozenset(
    {"type", "format", "description", "default", "enum", "items", "properties", "additionalProperties"}
    | {"anyOf", "required", "pattern", "minLength", "maxLength", "minimum", "maximum"}
)
_UNSAFE_NAME = re.compile(r"[^\w.-]+")
_LONGEST_SUMMARY = 1000
"""Maximum number of characters of a text in `summaries.json`."""


def write_logs(runs: Sequence[ExportedRun], path: Path) -> Iterator[int]:
    """Write runs as logs, and yield the number of rollouts after each batch.

    A path that ends with `.eval` becomes the log of a single run. Any other path becomes a folder with one
    log per run. Raises `ConfigError` if the folder exists, or for several runs in one file.
    """
    written = 0
    if path.suffix == ".eval":
        if len(runs) != 1:
            raise ConfigError("an Inspect log contains one run", hint="name a folder: `-o logs`")
        path.parent.mkdir(parents=True, exist_ok=True)
        with jsonl.replace_file(path) as out:
            for written in write_log(runs[0], out):
                yield written
    else:
        with new_folder(path) as folder:
            for run in runs:
                before = written
                # Inspect sorts logs by the time at the start of their names.
                name = f"{run.manifest.started_at:%Y-%m-%dT%H-%M-%S+00-00}_{run.manifest.environment.name}"
                name = f"{_UNSAFE_NAME.sub('-', name.replace('+', 'PLUS')).replace('PLUS', '+')}"
                with (folder / f"{name}_{run.manifest.run_id}.eval").open("xb") as out:
                    for done in write_log(run, out):
                        written = before + done
                        yield written
    yield written


class Writable(Protocol):
    """A file that can be written, but need not be seekable."""

    def write(self, data: bytes, /) -> int:
        """Write bytes and return their number."""
        ...

    def flush(self) -> None:
        """Pass on the bytes that were written."""
        ...

    def close(self) -> None:
        """Close the file. Writing a log does not close it."""
        ...


def write_log(run: ExportedRun, out: Writable) -> Iterator[int]:
    """Write a run as a log, and yield the number of rollouts after each batch."""
    written = 0
    # Level 1 takes a third of the time of the default and gives files that are a tenth larger.
    archive = zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED, compresslevel=1)
    begun = time.localtime()[:6]  # an object of its own for each entry would stay in memory
    with archive, tempfile.TemporaryFile() as summaries:
        for rollout in run.rollouts():
            document = sample(run.manifest, rollout)
            name = f"samples/{document['id']}_epoch_{document['epoch']}.json"
            entry = zipfile.ZipInfo(name, begun)
            entry.external_attr = 0o600 << 16
            archive.writestr(entry, json_text(document), zipfile.ZIP_DEFLATED, compresslevel=1)
            summaries.write((b"," if written else b"[") + json_text(_summary(document)).encode())
            written += 1
            if written % BATCH == 0:
                yield written
        summaries.write(b"]" if written else b"[]")
        summaries.seek(0)
        with archive.open("summaries.json", "w") as target:
            while block := summaries.read(1 << 20):
                target.write(block)
        archive.writestr("header.json", json_text(header(run.manifest, run.summary)))
    yield written


def header(manifest: RunManifest, summary: RunSummary) -> dict[str, Any]:
    """Return the log of a run without its samples."""
    pin, model = manifest.environment, manifest.model
    ended = manifest.ended_at or manifest.started_at
    config = generate_config(manifest.sampling.given())
    evaluation: dict[str, Any] = {
        "eval_id": manifest.run_id,
        "run_id": manifest.run_id,
        "created": manifest.started_at.isoformat(),
        "task": pin.full_name,
        "task_id": manifest.run_id,
        "task_version": pin.version or 0,
        "task_args": pin.arguments,
        "task_args_passed": pin.arguments,
        "dataset": {
            "name": pin.full_name,
            "samples": len(manifest.example_ids),
            "sample_ids": manifest.example_ids,
            "shuffled": manifest.choice != "first",
        },
        "model": model.name,
        "model_generate_config": config,
        "model_base_url": model.base_url,
        "config": {"epochs": manifest.rollouts_per_example},
        "packages": {"wander-sdk": manifest.platform.wander, **manifest.platform.packages},
        "metadata": {
            OWN: {
                "owner": pin.owner,
                "environment": pin.name,
                "version": pin.version,
                "wheel_sha256": pin.wheel_sha256,
                "task_set_sha256": manifest.task_set_sha256,
                "split": manifest.split,
                "seed": manifest.seed,
                "strata": manifest.strata,
            }
        },
    }
    usage = count_tokens(summary.usage)
    return {
        "version": VERSION,
        "status": "success",
        "eval": evaluation,
        "plan": {"name": "plan", "steps": [{"solver": pin.full_name}], "config": config},
        "results": {
            "total_samples": summary.expected,
            "completed_samples": summary.rollouts - summary.failed,
            "scores": list(_scores(summary)),
        },
        "stats": {
            "started_at": manifest.started_at.isoformat(),
            "completed_at": ended.isoformat(),
            "model_usage": {model.name: usage},
        },
    }


def _scores(summary: RunSummary) -> Iterator[dict[str, Any]]:
    values: dict[str, dict[str, float | None]] = {
        REWARD: {
            "mean": summary.reward_mean,
            "std": summary.reward_std,
            "low": summary.reward_low,
            "high": summary.reward_high,
        }
    }
    for name, metric in summary.metrics.items():
        values[name] = {"mean": metric.mean, "std": metric.std, "low": metric.low, "high": metric.high}
    scored = summary.rollouts - summary.failed
    for name, metrics in values.items():
        yield {
            "name": name,
            "scorer": name,
            "scored_samples": scored,
            "unscored_samples": summary.failed,
            "metrics": {
                metric: {"name": metric, "value": value}
                for metric, value in metrics.items()
                if value is not None
            },
        }


def generate_config(sampling: dict[str, Any]) -> dict[str, Any]:
    """Return sampling parameters as a `GenerateConfig`."""
    named = {CONFIG_NAMES.get(name, name): value for name, value in sampling.items()}
    config = {name: value for name, value in named.items() if name in CONFIG}
    if others := {name: value for name, value in named.items() if name not in CONFIG}:
        config["extra_body"] = others
    return config


def sample(manifest: RunManifest, rollout: Rollout) -> dict[str, Any]:
    """Return a rollout as an `EvalSample`."""
    everything = [*rollout.prompt, *rollout.completion]
    messages = [
        write_message(message, position, "input" if position < len(rollout.prompt) else "generate")
        for position, message in enumerate(everything)
    ]
    usage = {manifest.model.name: count_tokens(rollout.usage)}
    own: dict[str, Any] = {"seed": rollout.seed, "stop_reason": rollout.stop_reason}
    if rollout.truncated:
        own["truncated"] = True
    if not isinstance(rollout.answer, str):
        own["answer"] = rollout.answer
    for name in ("rewards", "player_metrics"):
        if getattr(rollout, name):
            own[name] = getattr(rollout, name)
    document: dict[str, Any] = {
        "id": rollout.example_id,
        "epoch": rollout.index + 1,
        "input": messages[: len(rollout.prompt)],
        "target": rollout.answer if isinstance(rollout.answer, str) else json_text(rollout.answer),
        "messages": messages,
        "output": {"model": manifest.model.name, "choices": []},
        "metadata": {**rollout.info, OWN: own},
        "store": {},
        "events": [],
        "events_data": {"messages": messages, "calls": []},
        "model_usage": usage,
        "role_usage": {},
        "total_time": rollout.seconds,
        "working_time": rollout.seconds,
        "uuid": f"{manifest.run_id}/{rollout.example_id}/{rollout.index}",
        "turn_count": len(rollout.turns),
        "attachments": {},
    }
    started = datetime.fromisoformat(rollout.started_at) if rollout.started_at else manifest.started_at
    if rollout.started_at:
        document["started_at"] = rollout.started_at
        document["completed_at"] = (started + timedelta(seconds=rollout.seconds)).isoformat()
    if rollout.reward is not None:
        values = {REWARD: rollout.reward, **{n: v for n, v in rollout.metrics.items() if n != REWARD}}
        document["scores"] = {name: {"value": value} for name, value in values.items()}
        if REWARD in rollout.metrics:  # a metric with the name of the reward is kept outside the scores
            own["metrics"] = {REWARD: rollout.metrics[REWARD]}
    if rollout.failure is not None:
        own["failure"] = rollout.failure.model_dump(mode="json")
        text = f"{rollout.failure.type}: {rollout.failure.message}"
        document["error"] = {"message": text, "traceback": "", "traceback_ansi": ""}
    if rollout.truncated and rollout.stop_reason in _LIMITS:
        info = manifest.environment.info
        kind = _LIMITS[rollout.stop_reason]
        value = {"turn": info.max_turns, "time": info.timeout_seconds}.get(kind) or len(rollout.turns)
        document["limit"] = {"type": kind, "limit": value, "reason": rollout.stop_reason}
    _add_events(document, manifest, rollout, started)
    return document


def _add_events(document: dict[str, Any], manifest: RunManifest, rollout: Rollout, started: datetime) -> None:
    """Add an event for each turn, and the last turn's output."""
    tools = [_tool(tool) for tool in rollout.tools or ()]
    config = generate_config(manifest.sampling.given())
    elapsed = 0.0
    for turn in rollout.turns:
        gap = turn.left_out
        ranges = (
            [(0, turn.context_messages)] if gap is None else [(0, gap[0]), (gap[1], turn.context_messages)]
        )
        output = _output(manifest.model.name, turn, document["messages"])
        ended = started + timedelta(seconds=elapsed + turn.model_seconds)
        event: dict[str, Any] = {
            "event": "model",
            "uuid": f"{document['uuid']}/{turn.context_messages}",
            "timestamp": (started + timedelta(seconds=elapsed)).isoformat(),
            "working_start": elapsed,
            "model": manifest.model.name,
            "input": [],
            "input_refs": [[first, end] for first, end in ranges if first < end],
            "tools": tools,
            "tool_choice": "auto",
            "config": config,
            "output": output,
            "completed": ended.isoformat(),
            "working_time": turn.model_seconds,
            "metadata": {OWN: {"environment_seconds": turn.environment_seconds, "player": turn.player}},
        }
        if turn.cached:
            event["cache"] = "read"
        elapsed += turn.model_seconds + turn.environment_seconds
        document["events"].append(event)
        document["output"] = output
    if rollout.tools is not None:
        document["metadata"][OWN]["tools"] = rollout.tools


def _output(model: str, turn: Turn, messages: list[dict[str, Any]]) -> dict[str, Any]:
    reason = STOP_REASONS.get(turn.finish_reason, turn.finish_reason)
    position = turn.context_messages
    written = (
        messages[position] if position < len(messages) else write_message(turn.message, position, "generate")
    )
    choice = {"message": written, "stop_reason": reason if reason in _KNOWN_REASONS else "unknown"}
    usage = count_tokens(turn.usage)
    output = {"model": model, "choices": [choice], "usage": usage, "time": turn.model_seconds}
    if reason not in _KNOWN_REASONS:
        output["metadata"] = {OWN: {"finish_reason": turn.finish_reason}}
    return output


def write_message(message: Message, position: int, source: str) -> dict[str, Any]:
    """Return a message as a `ChatMessage`. Parts without a field of their own are in its metadata."""
    role = message.get("role")
    written: dict[str, Any] = {
        "id": f"m{position}",
        "role": role if role in ("system", "user", "assistant", "tool") else "user",
        "source": source,
    }
    own = {name: value for name, value in message.items() if name not in ("role", "content")}
    if role != written["role"]:
        own["role"] = role
    content = message.get("content")
    written["content"] = content if isinstance(content, str) else _parts(content)
    if not isinstance(content, str) and "content" in message:
        own["content"] = content
    if role == "assistant":
        if isinstance(reasoning := own.pop("reasoning_content", None), str):
            text = [{"type": "text", "text": content}] if isinstance(content, str) else _parts(content)
            written["content"] = [{"type": "reasoning", "reasoning": reasoning}, *text]
        if calls := tool_calls(message):
            written["tool_calls"] = [
                {
                    "id": call.id,
                    "function": call.name,
                    "arguments": call.arguments,
                    "type": "function",
                    **({"parse_error": call.problem} if call.problem else {}),
                }
                for call in calls
            ]
            if read_calls(written["tool_calls"]) == own["tool_calls"]:
                del own["tool_calls"]
    if role == "tool":
        for name, target in (("tool_call_id", "tool_call_id"), ("name", "function"), ("error", "error")):
            if own.get(name) is not None:
                written[target] = own.pop(name)
    if own:
        written["metadata"] = {OWN: own}
    return written


def _parts(content: Any) -> list[dict[str, Any]]:
    """Return the content of a message as Inspect's parts. Unknown parts are JSON text."""
    parts = []
    for part in content if isinstance(content, list) else []:
        image = part.get("image_url") if isinstance(part, dict) else None
        url = image.get("url") if isinstance(image, dict) else image
        text = part.get("text") if isinstance(part, dict) else None
        if isinstance(text, str):
            parts.append({"type": "text", "text": text})
        elif isinstance(url, str):
            detail = image.get("detail") if isinstance(image, dict) else None
            parts.append({"type": "image", "image": url, **({"detail": detail} if detail else {})})
        else:
            parts.append({"type": "text", "text": json_text(part)})
    return parts


def read_calls(calls: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return tool calls of Inspect in the chat format."""
    return [
        {
            "id": call["id"],
            "type": "function",
            "function": {"name": call["function"], "arguments": json_text(call.get("arguments") or {})},
        }
        for call in calls
    ]


def _tool(tool: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of a tool as a `ToolInfo`, with the keywords of JSON Schema that Inspect knows."""
    function = tool.get("function") or {}
    parameters = _schema(function.get("parameters") or {})
    return {
        "name": str(function.get("name") or ""),
        "description": str(function.get("description") or ""),
        "parameters": {
            "type": "object",
            "properties": parameters.get("properties") or {},
            "required": parameters.get("required") or [],
            "additionalProperties": False,
        },
    }


def _schema(schema: Any) -> Any:
    if not isinstance(schema, dict):
        return schema
    known = {name: value for name, value in schema.items() if name in _SCHEMA_NAMES}
    if isinstance(properties := known.get("properties"), dict):
        known["properties"] = {name: _schema(value) for name, value in properties.items()}
    if isinstance(known.get("anyOf"), list):
        known["anyOf"] = [_schema(value) for value in known["anyOf"]]
    for name in ("items", "additionalProperties"):
        if name in known:
            known[name] = _schema(known[name])
    return known


def _summary(document: dict[str, Any]) -> dict[str, Any]:
    """Return the `EvalSampleSummary` of a sample, with short texts."""
    names = (
        "id", "epoch", "scores", "model_usage", "role_usage", "started_at", "completed_at", "total_time",
        "working_time", "uuid", "turn_count",
    )  # fmt: skip
    texts = [message["content"] for message in document["input"] if isinstance(message["content"], str)]
    summary = {name: document[name] for name in names if name in document}
    summary |= {
        "input": "\n".join(texts)[:_LONGEST_SUMMARY],
        "target": document["target"][:_LONGEST_SUMMARY],
        "metadata": {},
        "completed": True,
        "message_count": len(document["messages"]),
    }
    if "error" in document:
        summary["error"] = document["error"]["message"][:_LONGEST_SUMMARY]
    if "limit" in document:
        summary["limit"] = document["limit"]["type"]
    return summary
