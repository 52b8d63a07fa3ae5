"""Words that a mistyped one may have meant, and words that must be one of a few."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from typing import TypeVar

from wander_client.errors import UsageError

Word = TypeVar("Word", bound=str)


def did_you_mean(
    word: str, known: Iterable[str], *, cutoff: float = 0.6, shown: Mapping[str, str] | None = None
) -> str | None:
    """Return the hint "did you mean `x` or `y`?", in whatever case; None when nothing looks like the word.

    `shown` has what is shown in place of a word.
    """
    lower = {one.lower(): (shown or {}).get(one, one) for one in known}
    found = difflib.get_close_matches(word.lower(), lower, n=2, cutoff=cutoff)
    meant = " or ".join(f"`{lower[one]}`" for one in found)
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
