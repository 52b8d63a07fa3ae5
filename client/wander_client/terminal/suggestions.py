"""Words that a mistyped one may have meant, and words that must be one of a few."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TypeVar

from wander_client.errors import UsageError, name_option

Word = TypeVar("Word", bound=str)


def did_you_mean(
    word: str, known: Iterable[str], *, cutoff: float = 0.6, shown: Mapping[str, str] | None = None
) -> str | None:
    """Return the hint "did you mean `x` or `y`?"; None when nothing looks like the word."""
    from wander import errors  # late: most commands load no SDK to be read

    return errors.did_you_mean(word, known, cutoff=cutoff, shown=shown)


def choose(option: str, word: str, known: Iterable[Word]) -> Word:
    """Return the known word that an option names; raises `UsageError` with those that there are."""
    words = list(known)
    for one in words:
        if one == word:
            return one
    *most, last = (f"`{one}`" for one in words)
    listed = f"{', '.join(most)} or {last}" if most else last
    hint = did_you_mean(word, words) or f"use {listed}"
    named = name_option(option.lstrip("-").replace("-", "_"), word, word=option)
    raise UsageError(named + " is unknown", hint=hint)
