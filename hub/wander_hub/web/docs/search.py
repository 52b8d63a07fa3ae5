"""Searches the sections of the documentation with an FTS5 index in memory, which is built at first use."""

from __future__ import annotations

import re
import sqlite3
import threading
from collections.abc import Iterable
from dataclasses import dataclass
from difflib import get_close_matches

from markupsafe import Markup, escape

_MOST = 30
_WORD = re.compile(r"\w+")
_LESS = "CASE WHEN path LIKE 'api/%' OR path LIKE 'decisions/%' OR path = 'CHANGELOG' THEN 0.4 ELSE 1 END"
"""Weight of a page: reference pages count less than guides with the same words."""
_OPEN, _CLOSE = "\x02", "\x03"
"""Marks around matching words. They become tags after the text was escaped."""


@dataclass(frozen=True)
class DocSection:
    """The text under one heading."""

    path: str
    anchor: str
    """Anchor of the heading. Empty for the text before a page's first heading."""
    title: str
    """Title of the page."""
    heading: str
    text: str


@dataclass(frozen=True)
class Found:
    """A section that matches a search."""

    address: str
    title: str
    heading: str
    excerpt: Markup


class SearchIndex:
    """A full-text index of all sections."""

    def __init__(self, sections: Iterable[DocSection]) -> None:
        self._lock = threading.Lock()
        self._index = sqlite3.connect(":memory:", check_same_thread=False)
        self._index.execute(
            "CREATE VIRTUAL TABLE sections USING fts5("
            "path UNINDEXED, anchor UNINDEXED, title, heading, text, tokenize = 'porter unicode61')"
        )
        rows = [(one.path, one.anchor, one.title, one.heading, one.text) for one in sections]
        self._index.executemany("INSERT INTO sections VALUES (?, ?, ?, ?, ?)", rows)
        self._words = {word for row in rows for word in _WORD.findall(" ".join(row[2:]).lower())}

    def find(self, query: str) -> list[Found]:
        """Return the sections that contain every word, or words that begin with it, best first.

        If nothing matches, unknown words are replaced by the known words with the most similar spelling.
        """
        words = _WORD.findall(query.lower())[:12]
        if not words:
            return []
        return self._match(words) or self._match([self._nearest(word) for word in words])

    def _match(self, words: list[str]) -> list[Found]:
        wanted = " AND ".join(f'"{word}"*' for word in words)
        with self._lock:
            rows = self._index.execute(
                f"SELECT path, anchor, title, heading, snippet(sections, 4, '{_OPEN}', '{_CLOSE}', '…', 24) "  # noqa: S608
                "FROM sections WHERE sections MATCH ? "
                f"ORDER BY bm25(sections, 0, 0, 10, 25, 1) * {_LESS} LIMIT ?",
                (wanted, _MOST),
            ).fetchall()
        return [
            Found(f"/docs/{path}{anchor and '#'}{anchor}", title, heading, _mark(excerpt))
            for path, anchor, title, heading, excerpt in rows
        ]

    def _nearest(self, word: str) -> str:
        known = any(one.startswith(word) for one in self._words)
        return word if known else next(iter(get_close_matches(word, self._words, 1)), word)


def _mark(excerpt: str) -> Markup:
    text = str(escape(excerpt)).replace(_OPEN, "<mark>").replace(_CLOSE, "</mark>")
    return Markup(text)  # noqa: S704 - escaped before
