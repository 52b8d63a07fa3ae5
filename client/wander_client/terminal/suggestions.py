"""Words that a mistyped one may have meant."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def near(word: str, known: Iterable[str], *, most: int = 2, cutoff: float = 0.6) -> list[str]:
    """Return the known words that look like `word`, the likeliest first; case does not matter."""
    lower = {one.lower(): one for one in known}
    return [lower[one] for one in difflib.get_close_matches(word.lower(), lower, n=most, cutoff=cutoff)]


def did_you_mean(word: str, known: Iterable[str], *, cutoff: float = 0.6) -> str | None:
    """Return the hint "did you mean `x` or `y`?", or None when nothing looks like the word."""
    meant = " or ".join(f"`{one}`" for one in near(word, known, cutoff=cutoff))
    return f"did you mean {meant}?" if meant else None
