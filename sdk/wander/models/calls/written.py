"""One attempted call as it stands in a text."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

Tools = Sequence[Mapping[str, Any]]
"""Function schemas in OpenAI's form."""


class Unreadable(ValueError):
    """A piece of text that is no value, or no call."""


@dataclass(frozen=True, slots=True)
class Written:
    """One attempted call: `text[start:end]` is all that belongs to it, its markers included."""

    start: int
    end: int
    name: str | None = None
    arguments: dict[str, Any] | None = None
    problem: str | None = None
    """What is wrong with it; None of a call that can be made."""

    @property
    def good(self) -> bool:
        """True when it names a function and its arguments are an object."""
        return self.problem is None

    def reaching(self, end: int) -> Written:
        """Return the same call with everything up to `end`."""
        return replace(self, end=end)


Scan = Callable[[str, Tools], list[Written]]
"""Returns every attempted call of a text, in order; it never raises."""


def call_of(value: Any, start: int, end: int) -> Written:
    """Return the call that a JSON value is: `{"name", "arguments"}`, or Llama's `{"name", "parameters"}`."""
    if isinstance(value, dict) and isinstance(value.get("function"), dict):
        value = value["function"]
    if not isinstance(value, dict):
        return Written(start, end, problem="a call is a JSON object with `name` and `arguments`")
    name = value.get("name")
    if not isinstance(name, str) or not name.strip():
        return Written(start, end, problem="it names no function: `name` is missing")
    arguments = value.get("arguments", value.get("parameters"))
    if isinstance(arguments, str):  # JSON within JSON, as OpenAI's own messages have it
        try:
            arguments = json.loads(arguments, strict=False) if arguments.strip() else {}
        except (ValueError, RecursionError):
            return Written(start, end, name, problem="the arguments are text that is not JSON")
    return with_arguments(name.strip(), {} if arguments is None else arguments, start, end)


def with_arguments(name: str, arguments: Any, start: int, end: int) -> Written:
    """Return a call with these arguments, or what is wrong with them."""
    if not isinstance(arguments, dict):
        return Written(start, end, name, problem="the arguments are not a JSON object")
    try:
        json.dumps([name, arguments], ensure_ascii=False, allow_nan=False).encode()
    except (ValueError, RecursionError):  # a lone surrogate, an infinity, a depth that no file takes
        return Written(start, end, problem="the arguments hold what JSON cannot carry")
    return Written(start, end, name, arguments)


def parameters_of(tools: Tools, name: str) -> Mapping[str, Any]:
    """Return the schemas of a tool's parameters by name; empty for a tool that is not offered."""
    for tool in tools:
        function = tool.get("function", tool)
        if function.get("name") == name:
            schemas = (function.get("parameters") or {}).get("properties")
            return schemas if isinstance(schemas, dict) else {}
    return {}
