"""Parses tool calls that are JSON objects, with or without markers around them.

A JSON object ends with its closing brace, so a closing marker inside a string does not end the call. If an
object cannot be parsed, the search continues with the next object, so a malformed call does not hide others.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

from wander.models.calls.written import Scan, Tools, Unreadable, WrittenCall, call_of, with_arguments
from wander.types import refuse_constant

_BETWEEN = " \t\r\n,;[]"
"""Characters that may separate the objects of a block, as in a list."""
_LOOKS_LIKE_A_CALL = re.compile(r'\{\s*"(?:name|type|id|function|arguments|parameters)"\s*:')
_FENCE_BEFORE = re.compile(r"(?:<\|python_tag\|>|```(?:json|tool_call)?|\[|\s)+\Z")
_FENCE_AFTER = re.compile(r"(?:```|\]|;|\s)+")


_DECODER = json.JSONDecoder(strict=False, parse_constant=refuse_constant)
"""Decoder that accepts line breaks within strings, because small models write them into longer arguments."""


def read_value(text: str, at: int) -> tuple[Any, int]:
    """Return the JSON value at a position and its end; raises `Unreadable`."""
    try:
        return _DECODER.raw_decode(text, at)
    except json.JSONDecodeError as error:
        raise Unreadable(f"not valid JSON: {error.msg} at character {error.pos - at}") from error
    except (ValueError, RecursionError) as error:
        raise Unreadable(f"not valid JSON: {error or 'nested too deeply'}") from error


def in_blocks(opening: str, closing: str) -> Scan:
    """Return a scanner for blocks of objects between two markers; the last block may lack its closing
    marker."""

    def scan(text: str, tools: Tools) -> list[WrittenCall]:
        calls_found: list[WrittenCall] = []
        at = text.find(opening)
        while at >= 0:
            calls, end = read_block(text, at, at + len(opening), opening, closing)
            calls_found += calls
            at = text.find(opening, max(end, at + len(opening)))
        return calls_found

    return scan


def read_block(text: str, begin: int, at: int, opening: str, closing: str) -> tuple[list[WrittenCall], int]:
    """Return the calls of a block and its end; the block starts at `begin`, and its objects at `at`."""
    calls: list[WrittenCall] = []
    while True:
        at = _skip(text, at)
        if closing and text.startswith(closing, at):
            at += len(closing)
            break
        if at == len(text) or text.startswith(opening, at):
            break
        # other text after the calls belongs to the end of the block, or to the answer
        if calls and text[at] != "{":
            end = _nearest(text, at, closing, opening)
            if closing and text.startswith(closing, end):
                at = end + len(closing)
            break
        start = calls[-1].end if calls else begin
        try:
            value, end = read_value(text, at)
            calls.append(call_of(value, start, end))
        except Unreadable as error:
            end = _next_call(text, at + 1, _nearest(text, at + 1, closing, opening))
            calls.append(WrittenCall(start, end, _named(text[at:end]), problem=str(error)))
        at = end
    if not calls:
        return [WrittenCall(begin, at, problem="it is empty")], at
    calls[-1] = calls[-1].extended_to(at)
    return calls, at


def read_named(text: str, begin: int, at: int, opening: str) -> tuple[list[WrittenCall], int]:
    """Return the call `f[ARGS]{...}` whose name starts at `at`, in Mistral's format since version 11."""
    match = re.compile(r"\s*([^\[\]{}\s]+)\s*(?:\[CALL_ID\][^\[\]{}\s]*)?\s*(?:\[ARGS\])?\s*").match(text, at)
    end = _nearest(text, at, "", opening)
    if match is None:
        return [WrittenCall(begin, end, problem="it names no function")], end
    try:
        value, end = read_value(text, match.end())
    except Unreadable as error:
        return [WrittenCall(begin, end, match[1], problem=str(error))], end
    return [with_arguments(match[1], value, begin, end)], end


def scan_mistral(text: str, tools: Tools) -> list[WrittenCall]:
    """Return the calls after `[TOOL_CALLS]`: a list of objects, or names followed by arguments."""
    opening = "[TOOL_CALLS]"
    calls_found: list[WrittenCall] = []
    at = text.find(opening)
    while at >= 0:
        inside = _skip(text, at + len(opening), " \t\r\n")
        objects = text[inside : inside + 1] in ("[", "{", "")
        reader: Callable[..., tuple[list[WrittenCall], int]] = read_block if objects else read_named
        calls, end = reader(text, at, inside, opening, *([""] if objects else []))
        calls_found += calls
        at = text.find(opening, max(end, at + len(opening)))
    return calls_found


def scan_bare(text: str, tools: Tools) -> list[WrittenCall]:
    """Return the objects in a text that are calls, which can only be recognized by their content.

    An object is a call if it has a name and arguments, or the name of an offered tool. Text that starts like
    a call and cannot be parsed is an attempted call, too. Braces in prose are not.
    """
    offered = {str(tool.get("function", tool).get("name")) for tool in tools}
    calls: list[WrittenCall] = []
    at = 0
    while (match := _LOOKS_LIKE_A_CALL.search(text, at)) is not None:
        begin = match.start()
        try:
            value, at = read_value(text, begin)
        except Unreadable as error:
            at = _next_call(text, begin + 1, len(text))
            calls.append(WrittenCall(begin, at, _named(text[begin:at]), problem=str(error)))
            continue
        if _is_call(value, offered):
            calls.append(call_of(value, begin, at))
    return _with_fences(text, calls)


def _with_fences(text: str, calls: list[WrittenCall]) -> list[WrittenCall]:
    """Extend each call by the code fence, the brackets of a list and the marker around it."""
    whole: list[WrittenCall] = []
    for number, call in enumerate(calls):
        before = whole[-1].end if whole else 0
        fence = _FENCE_BEFORE.search(text, before, call.start)
        limit = calls[number + 1].start if number + 1 < len(calls) else len(text)
        after = _FENCE_AFTER.match(text, call.end, limit)
        start = fence.start() if fence else call.start
        whole.append(
            WrittenCall(start, after.end() if after else call.end, call.name, call.arguments, call.problem)
        )
    return whole


def _is_call(value: Any, offered: set[str]) -> bool:
    if not isinstance(value, dict):
        return False
    inner = value["function"] if isinstance(value.get("function"), dict) else value
    if not isinstance(inner.get("name"), str):
        return False
    return inner["name"] in offered or "arguments" in inner or "parameters" in inner


def _next_call(text: str, at: int, end: int) -> int:
    """Return the start of the next object before `end` that is a call, or `end`."""
    for match in _LOOKS_LIKE_A_CALL.finditer(text, at, end):
        if text[: match.start()].rstrip().endswith(":"):  # this object is the value of an argument
            continue
        try:
            value, _ = read_value(text, match.start())
        except Unreadable:
            continue
        if _is_call(value, set()):
            return match.start()
    return end


def _named(text: str) -> str | None:
    """Return the name in a piece of text that could not be parsed."""
    match = re.search(r'"name"\s*:\s*"([^"\\\n]+)"', text)
    return match[1] if match else None


def _nearest(text: str, at: int, *marks: str) -> int:
    """Return the position of the nearest marker, or the end of the text."""
    places = [text.find(mark, at) for mark in marks if mark]
    return min((place for place in places if place >= 0), default=len(text))


def _skip(text: str, at: int, skipped: str = _BETWEEN) -> int:
    while at < len(text) and text[at] in skipped:
        at += 1
    return at
