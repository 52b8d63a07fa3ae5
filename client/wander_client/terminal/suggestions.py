"""Suggestions for mistyped words, and checks of words that must come from a list."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TypeVar

from wander_client.errors import UsageError, name_option

Word = TypeVar("Word", bound=str)


def did_you_mean(
    word: str, known: Iterable[str], *, cutoff: float = 0.6, shown: Mapping[str, str] | None = None
) -> str | None:
    """Return the hint "did you mean `x` or `y`?", or None if no known word is similar."""
    from wander import errors  # late: most command lines are parsed without the SDK

    return errors.did_you_mean(word, known, cutoff=cutoff, shown=shown)


def choose(option: str, word: str, known: Iterable[Word]) -> Word:
    """Return the known word that equals `word`. Raises `UsageError` with the known words otherwise.

    - `option`: flag of a command, keyword in Python, or an argument's placeholder in capitals.
    """
    words = list(known)
    for choice in words:
        if choice == word:
            return choice
    *most, last = (f"`{choice}`" for choice in words)
    listed = f"{', '.join(most)} or {last}" if most else last
    hint = did_you_mean(word, words) or f"use {listed}"
    if option.isupper():
        raise UsageError(f"`{option}`: `{word}` is unknown", hint=hint)
    named = name_option(option.lstrip("-").replace("-", "_"), word, word=option)
    raise UsageError(named + " is unknown", hint=hint)
