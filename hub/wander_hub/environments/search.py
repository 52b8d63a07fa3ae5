"""Full-text search of environments: name, owner, tags, summary and README of the newest version.

SQLite uses FTS5 and PostgreSQL text-search vectors, with the same words. Ranks never depend on rows that the
reader may not see. Words are searched in the name, then also in tags and summary, then there as prefixes, and
then in the README. If nothing is found, similar words of names and tags are searched instead. Each step stops
after `MOST` rows, so the cost of a search is limited.
"""

from __future__ import annotations

import hashlib
import math
import re
import unicodedata
from collections.abc import Sequence
from typing import Any, NamedTuple

from sqlalchemy import ColumnElement, Select, column, func, literal_column, select, table, text
from sqlalchemy.orm import Session
from sqlalchemy.sql.expression import FromClause

from wander_hub.accounts.models import Owner
from wander_hub.database import READER
from wander_hub.environments.models import Environment, Version
from wander_hub.environments.repository import chosen, readable
from wander_hub.environments.schemas import EnvironmentFilter, mark
from wander_hub.identity import Identity

MOST = 200
"""Maximum number of ranked results."""
PLACES = (("name", False), ("head", False), ("head", True), ("body", False))
"""Search steps in order: where to search, and whether words are prefixes."""
_MOST_WORDS = 12
_SHORTEST, _LONG = 4, 8
"""Shortest words in which one letter, and two letters, may be wrong."""
_MOST_NEAR = 5
_MOST_NAMES = 50_000
"""Maximum number of newest names that are compared with a misspelled word."""
_FEW = 1000
"""Number of matches that PostgreSQL reads before it sorts them, for several words."""
_README_CHARACTERS = 20_000
_PUBLIC, _INTERNAL = "public", "internal"
_MOST_SCOPES = 100
"""Largest number of roles of a reader for filtering by permission in the index itself. The rows are filtered
in any case."""
_CONFIGURATION = "english"
_WORDS = re.compile(r"[^\W_]+")
_SEARCH = table("environment_search", column("environment_id"), column("head"), column("body"))
_INSERT_SQLITE = text(
    "INSERT INTO environment_search (rowid, name, tags, summary, readme, marks) "
    "VALUES (:id, :name, :tags, :summary, :readme, :marks)"
)
_INSERT_POSTGRESQL = text(
    "WITH given AS (SELECT setweight(to_tsvector('english', :name), 'A')"
    " || setweight(to_tsvector('english', :tags || ' ' || :summary), 'B')"
    " || setweight(to_tsvector('english', :marks), 'C') AS head) "
    "INSERT INTO environment_search (environment_id, head, body) "
    "SELECT :id, head, head || setweight(to_tsvector('english', :readme), 'D') FROM given"
)
_FTS5, _TSQUERY = ('"', " OR "), ("'", " | ")
"""Quote and separator of alternatives, for each database."""
_STOP_WORDS = frozenset("a an and are as at be by for from in is it of on or that the this to with".split())  # noqa: SIM905


class Match(NamedTuple):
    """A match with the columns for ranking."""

    id: int
    owner: str
    name: str
    runs: int
    downloads: int


def words_of(text: str) -> list[str]:
    """Return the words of a text, in lower case and without accents."""
    plain = unicodedata.normalize("NFKD", text.lower())
    return _WORDS.findall("".join(letter for letter in plain if not unicodedata.combining(letter)))


def marks_of(environment: Environment, latest: Version) -> str:
    """Return the marks for filters: facts about an environment and its newest version, surrounded by
    spaces."""
    check = latest.check_summary
    checked = latest.checked if latest.checked is not None else check is not None and not check["failed"]
    marks = [f"#{tag}" for tag in latest.tags]
    if latest.environment_kind:
        marks.append(mark("kind", latest.environment_kind))
    if latest.deterministic is not None:
        marks.append(mark("deterministic", latest.deterministic))
    if latest.license:
        marks.append(mark("license", latest.license))
    return f" {' '.join([*marks, mark('checked', checked)])} "


def write(session: Session, environment: Environment, latest: Version) -> None:
    """Update an environment in the search index; an unlisted environment is removed."""
    session.flush()
    key = "rowid" if _is_sqlite(session) else "environment_id"
    session.execute(text(f"DELETE FROM environment_search WHERE {key} = :id"), {"id": environment.id})  # noqa: S608 - ours
    if not environment.listed:
        return
    add(session, [(environment, latest)])


def add(session: Session, environments: Sequence[tuple[Environment, Version]]) -> None:
    """Add listed environments, each with its newest version, to the search index."""
    rows: list[dict[str, object]] = []
    for environment, latest in environments:
        scopes = [_PUBLIC]
        if environment.private:
            scopes = [f"owner {environment.owner_id}", f"environment {environment.id}"]
        if environment.visibility == "internal":
            scopes.append(_INTERNAL)
        marks = (*environment.marks.split(), *scopes, f"by {environment.owner_id}")
        tokens = [_token(mark) for mark in marks]
        tokens += [_in_name(word) for word in words_of(environment.name)]
        head = {
            "name": " ".join(words_of(environment.name)),
            "tags": " ".join(words_of(" ".join([environment.owner.name, *latest.tags]))),
            "summary": " ".join(words_of(latest.summary)),
        }
        readme = " ".join(words_of(latest.readme[:_README_CHARACTERS]))
        rows.append({"id": environment.id, **head, "readme": readme, "marks": " ".join(tokens)})
    session.execute(_INSERT_SQLITE if _is_sqlite(session) else _INSERT_POSTGRESQL, rows)


def is_empty(session: Session) -> bool:
    """Return whether the index is empty, as after a restore."""
    return session.scalar(select(literal_column("1")).select_from(_SEARCH).limit(1)) is None


def find(session: Session, wanted: EnvironmentFilter, owner_id: int | None, enough: int) -> list[int]:
    """Return the ids of search results, best first; at least `enough` of them if that many exist."""
    words = list(dict.fromkeys(words_of(wanted.q)))[:_MOST_WORDS]
    words = [word for word in words if word not in _STOP_WORDS] or words
    if not words:
        return []
    ids = _look(session, wanted, owner_id, [[word] for word in words], enough)
    if not ids:
        alternatives = _respell(session, words)
        if any(len(group) > 1 for group in alternatives):
            ids = _look(session, wanted, owner_id, alternatives, enough)
    return ids


def _respell(session: Session, words: Sequence[str]) -> list[list[str]]:
    """Return each word with the similar words of names and tags, most similar first."""
    from rapidfuzz import process  # imported here, because only a search without results needs it
    from rapidfuzz.distance import OSA

    query = select(Environment.name, Environment.marks).where(Environment.listed, readable(session))
    rows = session.execute(query.order_by(Environment.id.desc()).limit(_MOST_NAMES))
    texts = {text for name, marks in rows for text in [name, *re.findall(r"#(\S+)", marks)]}
    known = sorted({word for text in texts for word in words_of(text) if len(word) >= _SHORTEST})

    def near(word: str) -> list[str]:
        if len(word) < _SHORTEST:
            return []
        most = 2 if len(word) >= _LONG else 1
        matches = process.extract(word, known, scorer=OSA.distance, score_cutoff=most, limit=_MOST_NEAR)
        return [match for match, distance, _ in matches if distance]

    return [[word, *near(word)] for word in words]


def marked(session: Session, wanted: EnvironmentFilter, owner_id: int | None) -> FromClause:
    """Return the ids, `found.id`, of all environments with the marks of a listing, from the text index."""
    return _ids(session, [], "head", _required(session, wanted, owner_id), prefix=False)


def _look(
    session: Session,
    wanted: EnvironmentFilter,
    owner_id: int | None,
    words: Sequence[Sequence[str]],
    enough: int,
) -> list[int]:
    required = _required(session, wanted, owner_id)
    matches: dict[int, None] = {}
    for where, prefix in PLACES:
        ids = _ids(session, words, where, required, prefix=prefix)
        together = len(words) + len(wanted.marks()) + (owner_id is not None)
        rows = _newest(session, wanted, owner_id, ids, together=together)
        flat = tuple(word for group in words for word in group)
        rows.sort(key=lambda row: _rank(row, flat, wanted.q), reverse=True)
        matches |= dict.fromkeys(row.id for row in rows)
        if len(matches) >= min(enough, MOST):
            break
    return list(matches)[:MOST]


def _newest(
    session: Session, wanted: EnvironmentFilter, owner_id: int | None, ids: FromClause, *, together: int
) -> list[Match]:
    """Return the newest matches of a search step.

    PostgreSQL assumes that words are independent. For words that rarely occur together, it expects many
    matches and would read all rows in order. If there are few matches, they are read first instead.
    """

    def among(found: FromClause) -> Select[*tuple[Any, ...]]:
        ranked = (Environment.run_count, Environment.download_count)
        query = select(Environment.id, Owner.name, Environment.name, *ranked).join(Environment.owner)
        query = query.join(found, chosen(session, found))
        query = query.where(Environment.listed, readable(session), *conditions(wanted, owner_id))
        return query.order_by(found.c.id.desc()).limit(MOST)

    if together > 1 and not _is_sqlite(session):
        few = select(ids.c.id).limit(_FEW + 1).cte("few")
        number = session.scalar(select(func.count()).select_from(few)) or 0
        if number <= _FEW:
            return [Match(*row) for row in session.execute(among(few))] if number else []
    return [Match(*row) for row in session.execute(among(ids))]


def _rank(row: Match, words: tuple[str, ...], asked: str) -> tuple[bool, float, float, int]:
    """Return the sort key of a match: an exact name first, then names with many of the words, then use."""
    own = words_of(row.name)
    asked = asked.strip().lower()
    exact = asked in (row.name, f"{row.owner}/{row.name}") or own == words_of(asked)
    covered = sum(word.startswith(words) for word in own) / max(1, len(own))
    used = math.log1p(row.runs + row.downloads / 10)
    return exact, round(covered, 2), round(used, 2), row.id


def conditions(wanted: EnvironmentFilter, owner_id: int | None) -> list[ColumnElement[bool]]:
    """Return the conditions of the filters on rows."""
    marks = [Environment.marks.contains(f" {mark} ", autoescape=True) for mark in wanted.marks()]
    return marks if owner_id is None else [*marks, Environment.owner_id == owner_id]


def _required(session: Session, wanted: EnvironmentFilter, owner_id: int | None) -> list[list[str]]:
    """Return groups of tokens; the marks must include at least one token of each group."""
    required = [[_token(mark)] for mark in wanted.marks()]
    if owner_id is not None:
        required.append([_token(f"by {owner_id}")])
    reader: Identity | None = session.info.get(READER)
    if reader is not None and (reader.admin or len(reader.roles) + len(reader.grants) > _MOST_SCOPES):
        return required
    scopes = [_PUBLIC]
    if reader is not None:
        scopes += [
            _INTERNAL,
            *(f"owner {owner}" for owner in reader.roles),
            *(f"environment {environment}" for environment in reader.grants),
        ]
    return [*required, [_token(scope) for scope in scopes]]


def _ids(
    session: Session, words: Sequence[Sequence[str]], where: str, required: list[list[str]], *, prefix: bool
) -> FromClause:
    """Return the ids of the rows with at least one word of each group, newest first."""
    if where == "name":
        words, required, where = (
            [],
            [*([_in_name(word) for word in group] for group in words), *required],
            "head",
        )
    if _is_sqlite(session):
        columns = {"head": "{name tags summary}", "body": "{name tags summary readme}"}
        groups = [f"({columns[where]} : {_any_of(group, _FTS5, '*' if prefix else '')})" for group in words]
        groups += [f"(marks : {_any_of(group, _FTS5)})" for group in required]
        matches = literal_column("environment_search").op("MATCH")(" AND ".join(groups))
        return (
            select(literal_column("rowid").label("id")).select_from(_SEARCH).where(matches).subquery("found")
        )
    # A weight makes PostgreSQL check every match. Without it, only a prefix of a token could match a mark.
    end = ":*AB" if prefix else ""
    vector = _SEARCH.c.body if where == "body" else _SEARCH.c.head
    # Use separate queries, because words that the dictionary ignores must not match everything.
    asked = [
        [_any_of(group, _TSQUERY, end) for group in words],
        [_any_of(group, _TSQUERY) for group in required],
    ]
    wanted = [vector.op("@@")(func.to_tsquery(_CONFIGURATION, " & ".join(terms))) for terms in asked if terms]
    return select(_SEARCH.c.environment_id.label("id")).where(*wanted).subquery("found")


def _any_of(words: Sequence[str], syntax: tuple[str, str], end: str = "") -> str:
    """Return the expression for any of these words, which only have letters and digits."""
    quote, between = syntax
    return f"({between.join(f'{quote}{word}{quote}{end}' for word in words)})"


def _in_name(word: str) -> str:
    """Return the mark of a word of the name, used to search only names."""
    return f"zn{word}"


def _token(mark: str) -> str:
    """Return a mark as a single token that no text contains and no dictionary changes: two letters and
    digits."""
    return f"zq{int.from_bytes(hashlib.sha256(mark.encode()).digest()[:7]):017d}"


def _is_sqlite(session: Session) -> bool:
    return session.get_bind().dialect.name == "sqlite"
