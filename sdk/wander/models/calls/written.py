"""An attempted call in a text."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

Tools = Sequence[Mapping[str, Any]]
"""Function schemas in OpenAI's format."""


class Unreadable(ValueError):
    """Raised for a piece of text that is not a value, or not a call."""


@dataclass(frozen=True, slots=True)
class WrittenCall:
    """An attempted call, where `text[start:end]` is its text including its markers."""

    start: int
    end: int
    name: str | None = None
    arguments: dict[str, Any] | None = None
    problem: str | None = None
    """Problem with the call; None if it can be made."""

    @property
    def is_valid(self) -> bool:
        """Whether the call names a function, with a JSON object as arguments."""
        return self.problem is None

    def extended_to(self, end: int) -> WrittenCall:
        """Return the same call, extended to `end`."""
        return replace(self, end=end)


Scan = Callable[[str, Tools], list[WrittenCall]]
"""Function that returns every attempted call in a text, in order, and never raises an error."""


def call_of(value: Any, start: int, end: int) -> WrittenCall:
    """Return the call in a JSON value: `{"name", "arguments"}`, or Llama's `{"name", "parameters"}`."""
    if isinstance(value, dict) and isinstance(value.get("function"), dict):
        value = value["function"]
    if not isinstance(value, dict):
        return WrittenCall(start, end, problem="a call is a JSON object with `name` and `arguments`")
    name = value.get("name")
    if not isinstance(name, str) or not name.strip():
        return WrittenCall(start, end, problem="it names no function: `name` is missing")
    arguments = value.get("arguments", value.get("parameters"))
    if isinstance(arguments, str):  # JSON within JSON, as in OpenAI's own messages
        try:
            arguments = json.loads(arguments, strict=False) if arguments.strip() else {}
        except (ValueError, RecursionError):
            return WrittenCall(start, end, name, problem="the arguments are text that is not JSON")
    return with_arguments(name.strip(), {} if arguments is None else arguments, start, end)


def with_arguments(name: str, arguments: Any, start: int, end: int) -> WrittenCall:
    """Return a call with these arguments, or with the problem that they have."""
    if not isinstance(arguments, dict):
        return WrittenCall(start, end, name, problem="the arguments are not a JSON object")
    try:
        json.dumps([name, arguments], ensure_ascii=False, allow_nan=False).encode()
    except (ValueError, RecursionError):  # a lone surrogate, infinity, or nesting that is too deep for a file
        return WrittenCall(start, end, problem="the arguments hold what JSON cannot carry")
    return WrittenCall(start, end, name, arguments)


def parameters_of(tools: Tools, name: str) -> Mapping[str, Any]:
    """Return the schemas of a tool's parameters by name; empty if the tool is not offered."""
    for tool in tools:
        function = tool.get("function", tool)
        if function.get("name") == name:
            schemas = (function.get("parameters") or {}).get("properties")
            return schemas if isinstance(schemas, dict) else {}
    return {}
