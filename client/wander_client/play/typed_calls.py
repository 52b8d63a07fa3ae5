"""Tools for a person at the terminal: signatures, and calls such as `/call NAME key=value`."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from wander_client.errors import UsageError
from wander_client.terminal.suggestions import did_you_mean

Schema = Mapping[str, Any]
"""A function schema in OpenAI's form, as a request to a model carries it."""


@dataclass(frozen=True)
class TypedCall:
    """A call as it was typed."""

    name: str
    arguments: dict[str, Any]

    def as_message(self, call_id: str) -> dict[str, Any]:
        """Return the equivalent assistant message of a model."""
        function = {"name": self.name, "arguments": json.dumps(self.arguments, ensure_ascii=False)}
        call = {"id": call_id, "type": "function", "function": function}
        return {"role": "assistant", "content": "", "tool_calls": [call]}


def signature(tool: Schema) -> str:
    """Return `price(item: string, count: integer = 1)`."""
    parameters = _function(tool).get("parameters") or {}
    required = set(parameters.get("required") or [])
    parts = []
    for name, field in (parameters.get("properties") or {}).items():
        kind = type_name(field)
        if name in required:
            parts.append(f"{name}: {kind}")
        else:
            default = json.dumps(field["default"], ensure_ascii=False) if "default" in field else "..."
            parts.append(f"{name}: {kind} = {default}")
    return f"{_function(tool).get('name')}({', '.join(parts)})"


def describe_tool(tool: Schema) -> list[str]:
    """Return the lines that describe a tool: signature, description and arguments."""
    function = _function(tool)
    lines = [signature(tool)]
    lines += [f"  {line}" for line in str(function.get("description") or "").splitlines() if line.strip()]
    for name, field in ((function.get("parameters") or {}).get("properties") or {}).items():
        if isinstance(field, dict) and field.get("description"):
            lines.append(f"  {name}: {' '.join(str(field['description']).split())}")
    return lines


def type_name(field: Any) -> str:
    """Return the type of an argument in readable form: `string`, `"a" | "b"`, `integer[]`."""
    if not isinstance(field, dict):
        return "any"
    if "enum" in field or "const" in field:
        values = field.get("enum", [field.get("const")])
        return " | ".join(json.dumps(value, ensure_ascii=False) for value in values)
    choices = field.get("anyOf") or field.get("oneOf")
    if choices:
        return " | ".join(dict.fromkeys(type_name(choice) for choice in choices))
    kind = field.get("type", "any")
    if isinstance(kind, list):
        return " | ".join(map(str, kind))
    if kind == "array":
        return f"{type_name(field.get('items', {}))}[]"
    if "$ref" in field:
        return str(field["$ref"]).rpartition("/")[2]
    return str(kind)


def parse_call(line: str, tools: Sequence[Schema]) -> TypedCall:
    """Parse the text after `/call`: a tool's name, then `key=value` words or one JSON object.

    A value is text if the tool's parameter is text, and JSON otherwise. Raises `UsageError` if the line does
    not call one of the tools. The environment checks the arguments, just as it does for a model.
    """
    name, _, rest = line.strip().partition(" ")
    known = {str(_function(tool).get("name")): tool for tool in tools}
    if not known:
        raise UsageError("this environment offers no tools", hint="type your answer")
    if not name:
        raise UsageError("`/call` needs the name of a tool", hint=f"write `{example_call(tools[0])}`")
    if name not in known:
        raise UsageError(
            f"there is no tool `{name}`",
            hint=did_you_mean(name, known) or f"the tools are {', '.join(f'`{one}`' for one in known)}",
        )
    rest = rest.strip()
    if rest.startswith("{"):
        try:
            arguments = json.loads(rest)
        except ValueError as error:
            raise UsageError(
                f"the arguments are not JSON: {error}",
                hint='write `{"name": "value"}`, or `name=value` words',
            ) from error
        return TypedCall(name, arguments)
    fields = (_function(known[name]).get("parameters") or {}).get("properties") or {}
    try:
        words = shlex.split(rest)
    except ValueError as error:
        raise UsageError(
            "the line ends inside a quotation or after a backslash", hint="close the quotation mark"
        ) from error
    return TypedCall(name, dict(_pair(word, fields, known[name]) for word in words))


def example_call(tool: Schema) -> str:
    """Return an example line that calls the tool, with a placeholder for each required argument."""
    parameters = _function(tool).get("parameters") or {}
    names = parameters.get("required") or list(parameters.get("properties") or {})[:1]
    return " ".join(["/call", str(_function(tool).get("name")), *(f"{name}=..." for name in names)])


def _function(tool: Schema) -> Mapping[str, Any]:
    function = tool.get("function")
    return function if isinstance(function, dict) else {}


def _pair(word: str, fields: Mapping[str, Any], tool: Schema) -> tuple[str, Any]:
    key, equals, value = word.partition("=")
    if not equals or not key:
        raise UsageError(
            f"`{word}` does not have the form name=value",
            hint=f"write `{example_call(tool)}`; text with spaces in quotes",
        )
    if type_name(fields.get(key, {})) == "string":
        return key, value
    try:
        return key, json.loads(value)
    except ValueError:
        return key, value
