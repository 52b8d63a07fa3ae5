"""Answers in the forms that datasets and models agree on: boxed or JSON.

Every function takes any text, never raises on it, and takes time linear in its length. Each is usable as the
`extract_fn` of a parser.
"""

from __future__ import annotations

import json
import re
from typing import Any

from wander.types import refuse_constant

_BOXES = re.compile(r"\\(?:boxed|fbox)\s*\{|\\.|[{}]", re.DOTALL)
_BRACKETS = re.compile(r'\\.|["{}\[\]\n]')
_CLOSING = {"{": "}", "[": "]"}
_FENCE = re.compile(r"```[^\n`]*\n(.*?)```", re.DOTALL)


def extract_boxed_answer(text: str, strict: bool = False) -> str:
    r"""Return what stands in the last closed `\boxed{...}` or `\fbox{...}`, stripped.

    Without one: the whole text, or with `strict` empty text.
    """
    boxes = boxed_answers(text)
    if boxes:
        return boxes[-1]
    return "" if strict else text


def boxed_answers(text: str) -> list[str]:
    r"""Return the content of every closed box in the order in which they open, stripped.

    Braces inside a box are balanced, `\{` and `\}` do not count; a box inside a box is one of its own.
    """
    found: list[tuple[int, int]] = []
    opened: list[int | None] = []
    for token in _BOXES.finditer(text):
        if token.group() == "}":
            start = opened.pop() if opened else None
            if start is not None:
                found.append((start, token.start()))
        elif token.group().endswith("{") and token.group() != "\\{":
            opened.append(None if token.group() == "{" else token.end())
    return [text[start:end].strip() for start, end in sorted(found)]


def extract_json_answer(text: str, default: Any = None) -> Any:
    """Return the last JSON object or array in the text, or `default` where there is none.

    The last fenced code block that is JSON wins; then the whole text; then the last `{...}` or `[...]` that
    stands anywhere in it. Numbers that JSON does not know (`NaN`, `Infinity`) make it no JSON.
    """
    for block in (*reversed(_FENCE.findall(text)), text):
        value = _parse(block)
        if value is not None:
            return value
    spans = reversed(_find_closed_spans(text))
    values = (_parse(text[start:end]) for start, end in spans)
    return next((value for value in values if value is not None), default)


def _parse(text: str) -> Any | None:
    """Return the object or array that a whole text is, or None."""
    try:
        value = json.loads(text, parse_constant=refuse_constant)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict | list) else None


def _find_closed_spans(text: str) -> list[tuple[int, int]]:
    """Return (start, end) of every closed bracket pair that no other closed pair contains, in one pass.

    Brackets inside a quoted string do not count; a string ends with its line, as JSON allows no raw line
    break in it.
    """
    spans: list[tuple[int, int]] = []
    opened: list[tuple[str, int]] = []
    quoted = False
    for token in _BRACKETS.finditer(text):
        mark = token.group()
        if mark == "\n":
            quoted = False
        elif mark == '"':
            quoted = bool(opened) and not quoted
        elif not quoted and mark in _CLOSING:
            opened.append((_CLOSING[mark], token.start()))
        elif not quoted and mark in "}]":
            if opened and opened[-1][0] == mark:
                start = opened.pop()[1]
                while spans and spans[-1][0] > start:
                    spans.pop()
                spans.append((start, token.end()))
            else:
                opened.clear()
    return spans
