"""Mends words of a search that nothing has: near words of names, tags and summaries, found by exact look-ups.

Every known word is kept under what is left of it without one letter, a long one also without two, and a
word that is asked for is taken apart likewise: where both meet, a few letters differ. No extension of a
database is needed, and it costs the same however many words there are. Words of private environments are
known to those alone who have a role on their owner. No word is ever forgotten: it would help nobody.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import combinations

from sqlalchemy import String, select
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.orm import Mapped, Session, mapped_column

from wander_hub.database import READER, Base
from wander_hub.identity import Identity

PUBLIC, INTERNAL = 0, -1
"""The scopes of words that everybody knows, or who is signed in; others are ids of owners."""
_SHORTEST, _LONG, _LONGEST = 4, 8, 24
_MOST_ROWS, _MOST_WORDS = 200, 5
_MOST_FRESH = 100
"""How many unknown words are learnt at once: each is up to 300 rows."""


class Spelling(Base):
    """A word, and one of the ways in which it is found."""

    __tablename__ = "search_spellings"

    key: Mapped[str] = mapped_column(String(24), primary_key=True)
    """The word, or the word without one letter or two."""
    scope: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    """Id of the owner among whose private environments it occurs; 0 for the public ones, -1 internal ones."""
    word: Mapped[str] = mapped_column(String(24), primary_key=True)


def learn(session: Session, scope: int, words: Iterable[str]) -> None:
    """Keep words; those that are known cost one look."""
    usable = {one for one in words if _SHORTEST <= len(one) <= _LONGEST and not one.isdecimal()}
    if not usable:
        return
    known = select(Spelling.word).where(
        Spelling.key.in_(usable), Spelling.scope == scope, Spelling.word == Spelling.key
    )
    fresh = sorted(usable - set(session.scalars(known)))[:_MOST_FRESH]
    # In one order, so that two who learn the same words cannot wait for each other.
    rows = sorted({(key, scope, word) for word in fresh for key in _keys(word)})
    dialect = postgresql if session.get_bind().dialect.name == "postgresql" else sqlite
    if rows:
        insert = dialect.insert(Spelling).on_conflict_do_nothing()
        session.execute(insert, [dict(zip(("key", "scope", "word"), row, strict=True)) for row in rows])


def mend(session: Session, word: str) -> list[str]:
    """Return the known words that a word was probably meant to be, the nearest first."""
    if not _SHORTEST <= len(word) <= _LONGEST:
        return []
    reader: Identity | None = session.info.get(READER)
    query = select(Spelling.word).where(Spelling.key.in_(_keys(word))).distinct().limit(_MOST_ROWS)
    if reader is None or not reader.admin:
        query = query.where(Spelling.scope.in_([PUBLIC, *([INTERNAL, *reader.roles] if reader else ())]))
    most = 2 if len(word) >= _LONG else 1
    near = sorted((distance(word, one), one) for one in session.scalars(query))
    return [one for far, one in near if 0 < far <= most][:_MOST_WORDS]


def distance(one: str, two: str) -> int:
    """Return how many letters must be put in, left out, changed or swapped with the next."""
    before: list[int] = []
    last = list(range(len(two) + 1))
    for row, letter in enumerate(one, 1):
        this = [row]
        for at, other in enumerate(two, 1):
            least = min(last[at] + 1, this[-1] + 1, last[at - 1] + (letter != other))
            if row > 1 and at > 1 and letter == two[at - 2] and one[row - 2] == other:
                least = min(least, before[at - 2] + 1)
            this.append(least)
        before, last = last, this
    return last[-1]


def _keys(word: str) -> set[str]:
    left_out = range(3 if len(word) >= _LONG else 2)
    return {
        "".join(letter for at, letter in enumerate(word) if at not in gone)
        for number in left_out
        for gone in combinations(range(len(word)), number)
    }
