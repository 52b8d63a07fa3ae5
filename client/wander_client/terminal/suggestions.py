"""Words that a mistyped one may have meant, and words that must be one of a few."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import TypeVar

from wander_client.errors import UsageError

Word = TypeVar("Word", bound=str)


def near(word: str, known: Iterable[str], *, most: int = 2, cutoff: float = 0.6) -> list[str]:
    """Return the known words that look like `word`, the likeliest first; case does not matter."""
    lower = {one.lower(): one for one in known}
    return [lower[one] for one in difflib.get_close_matches(word.lower(), lower, n=most, cutoff=cutoff)]


def did_you_mean(word: str, known: Iterable[str], *, cutoff: float = 0.6) -> str | None:
    """Return the hint "did you mean `x` or `y`?", or None when nothing looks like the word."""
    meant = " or ".join(f"`{one}`" for one in near(word, known, cutoff=cutoff))
    return f"did you mean {meant}?" if meant else None


def choose(option: str, word: str, known: Iterable[Word]) -> Word:
    """Return the known word that an option names; raises `UsageError` with those that there are."""
    words = list(known)
    for one in words:
        if one == word:
            return one
    *most, last = (f"`{one}`" for one in words)
    hint = did_you_mean(word, words) or f"use {', '.join(most)} or {last}"
    raise UsageError(f"`{option} {word}` is unknown", hint=hint)
