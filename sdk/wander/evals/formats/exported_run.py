"""Shared parts of the writers of other tools' formats: the run, its tool calls, JSON text, new folders."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from wander.errors import ConfigError, RunError
from wander.evals.report.contents import RecordedRun
from wander.evals.store import jsonl
from wander.types import Message, Rollout, Turn, Usage, refuse_constant
from wander.wire import RunSummary

BATCH = 256
"""Rollouts between two reports of progress."""


class ExportedRun(RecordedRun, Protocol):
    """A run to export, from any storage."""

    @property
    def summary(self) -> RunSummary:
        """Aggregates of the run."""
        ...


@dataclass(frozen=True)
class ToolCall:
    """A tool call of an assistant message."""

    id: str
    name: str
    arguments: dict[str, Any]
    """Parsed arguments; empty if they cannot be parsed."""
    text: str
    """Arguments as the model wrote them."""
    problem: str | None
    """Reason why the arguments cannot be parsed, or None."""


def tool_calls(message: Message) -> list[ToolCall]:
    """Return the tool calls of a message. A call without an id is named after its position."""
    listed = message.get("tool_calls")
    calls = []
    for position, call in enumerate(listed if isinstance(listed, list) else []):
        function = call.get("function") if isinstance(call, dict) else None
        function = function if isinstance(function, dict) else {}
        text = function.get("arguments")
        text = text if isinstance(text, str) else json_text({} if text is None else text)
        arguments, problem = _parse(text)
        call_id = str((call.get("id") if isinstance(call, dict) else None) or f"call_{position}")
        calls.append(ToolCall(call_id, str(function.get("name") or ""), arguments, text, problem))
    return calls


def _parse(text: str) -> tuple[dict[str, Any], str | None]:
    try:
        arguments = json.loads(text or "{}", parse_constant=refuse_constant)
    except (ValueError, RecursionError) as error:
        return {}, f"the arguments are not valid JSON: {error}"
    if not isinstance(arguments, dict):
        return {}, "the arguments are not a JSON object"
    return arguments, None


def turns_by_position(rollout: Rollout) -> dict[int, Turn]:
    """Return the turns by the position of their message in prompt and completion."""
    return {turn.context_messages: turn for turn in rollout.turns}


def json_text(value: Any) -> str:
    """Return compact JSON text. Raises `RunError` for infinity and NaN, which JSON cannot represent."""
    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False)
    except ValueError as error:
        raise RunError("a rollout contains infinity or NaN, which JSON cannot represent") from error


def json_line(value: Any) -> bytes:
    """Return a line of JSON Lines. Raises `RunError` like `json_text`."""
    return json_text(value).encode() + b"\n"


def write_lines(rows: Iterable[dict[str, Any]], path: Path) -> Iterator[int]:
    """Write a file of JSON Lines, and yield the number of lines after each batch and at the end."""
    written = 0
    path.parent.mkdir(parents=True, exist_ok=True)
    with jsonl.replace_file(path) as out:
        for row in rows:
            out.write(json_line(row))
            written += 1
            if written % BATCH == 0:
                yield written
    yield written


@contextmanager
def new_folder(path: Path) -> Iterator[Path]:
    """Yield a temporary folder that appears at `path` when the block succeeds.

    Raises `ConfigError` if the path exists.
    """
    if path.exists():
        raise ConfigError(f"`{path}` already exists", hint="choose another folder, or remove this one")
    with jsonl.make_folder(path) as folder:
        yield folder


def count_tokens(usage: Usage) -> dict[str, int]:
    """Return token counts for Inspect and Every Eval Ever, whose `input_tokens` are without cached ones."""
    counts = {
        "input_tokens": usage.prompt_tokens - usage.cached_tokens,
        "output_tokens": usage.completion_tokens,
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
    }
    if usage.cached_tokens:
        counts["input_tokens_cache_read"] = usage.cached_tokens
    if usage.reasoning_tokens:
        counts["reasoning_tokens"] = usage.reasoning_tokens
    return counts
