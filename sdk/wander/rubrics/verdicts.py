"""Verdicts: how a number is read from what a judge wrote, strictly.

A reader is a function from text to a number from 0 to 1 that raises `ValueError` for anything that is no
verdict, so that a judge that rambles is asked again instead of counting as a 0.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from wander.parsers import tagged
from wander.rubrics.boxed import extract_json_answer

VerdictReader = Callable[[str], float]

KEYS = ("verdict", "score", "correct")
WORDS = {"yes": 1.0, "true": 1.0, "correct": 1.0, "no": 0.0, "false": 0.0, "incorrect": 0.0}


def read_verdict(text: str, lowest: float = 0.0, highest: float = 1.0) -> float:
    """Return the verdict in a judge's answer, as a share of the range from `lowest` to `highest`.

    Understood are a JSON object with the key `verdict`, `score` or `correct`; the last `<verdict>`, `<score>`
    or `<correct>` tag; and an answer that is nothing but the verdict. The verdict is a number of the range,
    or yes, no, true, false, correct or incorrect.
    """
    answer = extract_json_answer(text)
    if isinstance(answer, dict) and (keys := [key for key in KEYS if key in answer]):
        return _number(answer[keys[0]], lowest, highest)
    for key in KEYS:
        found = list(tagged(text, key))
        if found:
            return _number(found[-1], lowest, highest)
    return _number(text, lowest, highest)


def verdict_range(lowest: float, highest: float) -> VerdictReader:
    """Return a reader for a judge that gives numbers from `lowest` to `highest`, such as 1 to 10."""
    if not lowest < highest:
        raise ValueError(f"a range from {lowest} to {highest} holds no verdicts")
    return lambda text: read_verdict(text, lowest, highest)


def _number(value: Any, lowest: float, highest: float) -> float:
    if isinstance(value, bool):
        return float(value)
    if isinstance(value, str):
        word = value.strip().strip("*`'\"").rstrip(".*`'\"").lower()
        if word in WORDS:
            return WORDS[word]
        value = _parsed(word)
    if not isinstance(value, int | float) or not lowest <= value <= highest:
        raise ValueError(f"`{value!r:.80}` is no verdict from {lowest:g} to {highest:g}")
    return (value - lowest) / (highest - lowest)


def _parsed(word: str) -> float:
    try:
        return float(word)
    except ValueError:
        raise ValueError(f"`{word:.80}` is neither a number nor yes or no") from None
