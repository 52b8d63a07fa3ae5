"""Extracts answers in the common formats of datasets and models: boxed or JSON.

Every function accepts any text, never raises an error for it, and takes linear time. Each can be used as the
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
    r"""Return the content of the last closed `\boxed{...}` or `\fbox{...}`, stripped.

    Without a box, return the whole text, or with `strict` an empty string.
    """
    boxes = boxed_answers(text)
    if boxes:
        return boxes[-1]
    return "" if strict else text


def boxed_answers(text: str) -> list[str]:
    r"""Return the stripped content of every closed box, ordered by its start.

    Braces inside a box are balanced, and `\{` and `\}` do not count. A box inside a box is returned
    separately.
    """
    spans: list[tuple[int, int]] = []
    opened: list[int | None] = []
    for token in _BOXES.finditer(text):
        if token.group() == "}":
            start = opened.pop() if opened else None
            if start is not None:
                spans.append((start, token.start()))
        elif token.group().endswith("{") and token.group() != "\\{":
            opened.append(None if token.group() == "{" else token.end())
    return [text[start:end].strip() for start, end in sorted(spans)]


def extract_json_answer(text: str, default: Any = None) -> Any:
    """Return the last JSON object or array in the text, or `default`.

    The last fenced code block that is JSON takes precedence, then the whole text, then the last `{...}` or
    `[...]` anywhere in it. Text with numbers that JSON does not allow (`NaN`, `Infinity`) is not JSON.
    """
    for block in (*reversed(_FENCE.findall(text)), text):
        value = _parse(block)
        if value is not None:
            return value
    spans = reversed(_find_closed_spans(text))
    values = (_parse(text[start:end]) for start, end in spans)
    return next((value for value in values if value is not None), default)


def _parse(text: str) -> Any | None:
    """Return the object or array if the whole text is JSON, otherwise None."""
    try:
        value = json.loads(text, parse_constant=refuse_constant)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict | list) else None


def _find_closed_spans(text: str) -> list[tuple[int, int]]:
    """Return (start, end) of every closed bracket pair that is not inside another closed pair, in one pass.

    Brackets inside a quoted string do not count. A string ends at the end of its line, because JSON strings
    cannot contain raw line breaks.
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
