"""Calls in tags, `<function=f><parameter=k>v</parameter></function>`, and calls as Python, `[f(k="v")]`."""

from __future__ import annotations

import ast
import json
import re
import warnings
from collections.abc import Iterator
from typing import Any

from wander.models.calls.json_calls import read_block
from wander.models.calls.written import Tools, Unreadable, WrittenCall, parameters_of, with_arguments
from wander.system.python_parser import parse_alone

_CALL_OPENS = re.compile(r"(?:<tool_call>\s*)?<function=([^>\n]*)>|<tool_call>")
_CALL_ENDS = re.compile(r"\s*(?:</function>\s*(?:</tool_call>|</function_invocation>)?|</tool_call>|\Z)")
_PARAMETER = re.compile(r"\s*<parameter=([^>\n]+)>")
_VALUE_ENDS = re.compile(r"</parameter>(?=\s*(?:<parameter=|</function>|</tool_call>|\Z))")
_VALUE_CUT = re.compile(r"\n?(?=<parameter=|</function>|</tool_call>)")

LFM2_OPENS, LFM2_ENDS = "<|tool_call_start|>", "<|tool_call_end|>"
_PYTHON_CALL = re.compile(r"\s*([A-Za-z_][\w.]*)\s*\((.*)\)\s*", re.DOTALL)
_KEYWORD = re.compile(r"\s*([A-Za-z_]\w*)\s*=(?!=)(.*)", re.DOTALL)
_CONSTANTS = {"true": True, "false": False, "null": None}
_ESCAPE = re.compile(r"\\(.)", re.DOTALL)
_ESCAPED = "\\'\"abfnrtvxuUN01234567"
"""Characters that may follow a backslash in Python. Before any other character, models mean the backslash
itself."""
_PAIRS = {"(": ")", "[": "]", "{": "}"}


def scan_tags(text: str, tools: Tools) -> list[WrittenCall]:
    """Return the calls in tags; the `<tool_call>` around them and the end of a value may be missing."""
    calls: list[WrittenCall] = []
    at = 0
    while (match := _CALL_OPENS.search(text, at)) is not None:
        following = _CALL_OPENS.search(text, match.end())
        limit = following.start() if following else len(text)
        if match[1] is None:
            end = _end_of(text, match.end(), limit)
            problem = "it names no function: `<function=` is missing"
            calls.append(WrittenCall(match.start(), end, problem=problem))
        else:
            calls.append(_tagged(text, match, limit, tools))
        at = max(calls[-1].end, match.end())
    return calls


def _tagged(text: str, opening: re.Match[str], limit: int, tools: Tools) -> WrittenCall:
    name, at = opening[1].strip(), opening.end()
    schemas = parameters_of(tools, name)
    arguments: dict[str, Any] = {}
    while (parameter := _PARAMETER.match(text, at)) is not None:
        closed = _VALUE_ENDS.search(text, parameter.end())
        cut = closed or _VALUE_CUT.search(text, parameter.end())
        if cut is None:
            problem = f"the value of `{parameter[1]}` is not closed"
            return WrittenCall(opening.start(), len(text), name, problem=problem)
        value = text[parameter.end() : cut.start()].removeprefix("\n")
        value = value.removesuffix("\n") if closed else value
        arguments[parameter[1].strip()] = _typed(value, schemas.get(parameter[1].strip()))
        at = cut.end()
    ended = _CALL_ENDS.match(text, at)
    if ended is None or (not ended[0].strip() and not arguments):
        end = _end_of(text, at, max(limit, at))
        problem = (
            "something other than parameters is in the call" if text[at:end].strip() else "it is cut off"
        )
        return WrittenCall(opening.start(), end, name or None, problem=problem)
    if not name:
        return WrittenCall(opening.start(), ended.end(), problem="it names no function")
    return with_arguments(name, arguments, opening.start(), ended.end())


def _end_of(text: str, at: int, limit: int) -> int:
    """Return the end of a call that cannot be parsed: after its last closing tag before `limit`."""
    ends = [match.end() for match in re.finditer(r"</function>|</tool_call>", text[at:limit])]
    return at + ends[-1] if ends else limit


def _typed(text: str, schema: Any) -> Any:
    """Return the value of a parameter's text, which is the text itself if the tool expects text."""
    if _takes_text(schema):
        return text
    for read in (json.loads, _read_python):
        try:
            value = read(text.strip())
            json.dumps(value, allow_nan=False)
        except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
            continue
        return value
    return text


def _read_python(text: str) -> Any:
    return parse_alone(lambda: ast.literal_eval(text))


def _takes_text(schema: Any) -> bool:
    if not isinstance(schema, dict):
        return False
    kind = schema.get("type")
    choices = [*schema.get("anyOf", ()), *schema.get("oneOf", ())]
    return kind == "string" or (isinstance(kind, list) and "string" in kind) or any(map(_takes_text, choices))


def scan_python(text: str, tools: Tools) -> list[WrittenCall]:
    """Return the calls between LFM2's markers, which are Python or JSON."""
    calls_found: list[WrittenCall] = []
    at = text.find(LFM2_OPENS)
    while at >= 0:
        inside = at + len(LFM2_OPENS)
        if re.match(r"\s*\[?\s*\{", text[inside:]):
            calls, end = read_block(text, at, inside, LFM2_OPENS, LFM2_ENDS)
        else:
            calls, end = _python_block(text, at, inside, tools)
        calls_found += calls
        at = text.find(LFM2_OPENS, max(end, inside))
    return calls_found


def _python_block(text: str, begin: int, inside: int, tools: Tools) -> tuple[list[WrittenCall], int]:
    closing = text.find(LFM2_ENDS, inside)
    following = text.find(LFM2_OPENS, inside)
    stop = min(place for place in (closing, following, len(text)) if place >= 0)
    end = stop + len(LFM2_ENDS) if stop == closing else stop
    body_end, at = stop, inside
    body = text[inside:stop].strip()
    if body.startswith("["):
        at = text.index("[", inside) + 1
        if body.endswith("]"):
            body_end = text.rindex("]", at, stop)
        elif stop != closing:  # the text was cut off within the list
            body_end = stop
    calls: list[WrittenCall] = []
    for first, last in _split(text, at, body_end):
        if text[first:last].strip():
            start = calls[-1].end if calls else begin
            calls.append(_python_call(text[first:last], start, last, tools))
    if not calls:
        return [WrittenCall(begin, end, problem="it is empty")], end
    calls[-1] = calls[-1].extended_to(end)
    return calls, end


def _python_call(piece: str, start: int, end: int, tools: Tools) -> WrittenCall:
    match = _PYTHON_CALL.fullmatch(piece)
    if match is None:
        begun = re.match(r"\s*([A-Za-z_][\w.]*)\s*\(", piece)
        problem = "it is not written as `name(key=value)`"
        return WrittenCall(start, end, begun[1] if begun else None, problem=problem)
    name, inner = match[1], match[2]
    order = list(parameters_of(tools, name))
    arguments: dict[str, Any] = {}
    for number, (first, last) in enumerate(_split(inner, 0, len(inner))):
        part = inner[first:last]
        if not part.strip():
            continue
        keyword = _KEYWORD.fullmatch(part)
        key = keyword[1] if keyword else (order[number] if number < len(order) else None)
        if key is None:
            return WrittenCall(start, end, name, problem=f"the argument `{part.strip()[:80]}` has no name")
        try:
            arguments[key] = _literal((keyword[2] if keyword else part).strip())
        except Unreadable as error:
            return WrittenCall(start, end, name, problem=f"the value of `{key}` {error}")
    return with_arguments(name, arguments, start, end)


def _literal(text: str) -> Any:
    """Return the value of a Python literal or of JSON; raises `Unreadable`."""
    if text in _CONSTANTS:
        return _CONSTANTS[text]
    escaped = text.replace("\r", "\\r").replace("\n", "\\n")
    escaped = _ESCAPE.sub(lambda pair: pair[0] if pair[1] in _ESCAPED else f"\\{pair[0]}", escaped)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return json.loads(json.dumps(_read_python(escaped), allow_nan=False))
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        try:
            return json.loads(text, strict=False)
        except (ValueError, RecursionError) as error:
            raise Unreadable(f"is not a literal: `{text[:80]}`") from error


def _split(text: str, at: int, end: int) -> Iterator[tuple[int, int]]:
    """Yield the pieces between commas that are outside of quotes and brackets."""
    start, quote, expected = at, "", []
    while at < end:
        letter = text[at]
        if quote:
            if letter == "\\":
                at += 1
            elif letter == quote:
                quote = ""
        elif letter in "\"'":
            quote = letter
        elif letter in _PAIRS:
            expected.append(_PAIRS[letter])
        elif expected and letter == expected[-1]:
            expected.pop()
        elif letter == "," and not expected:
            yield start, at
            start = at + 1
        at += 1
    yield start, end
