"""Full-text search over environments: name, owner, tags, summary and README of the newest version.

SQLite has FTS5 for it, PostgreSQL text-search vectors; what is written and asked is the same words. No rank
depends on rows that the reader may not see: words are sought in the name, then also in tags and summary, then
as beginnings of words there, then in the README. If nothing is found, words of names and tags that are
spelled almost the same are sought instead. Each look stops after `MOST` rows, so a search costs the same
however many environments match.
"""

from __future__ import annotations

import hashlib
import math
import re
import unicodedata
from collections.abc import Iterable, Sequence
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
"""Matches that a search ranks and lists."""
PLACES = (("name", False), ("head", False), ("head", True), ("body", False))
"""Where words are sought, one look after the other, and whether as beginnings of words."""
_MOST_WORDS = 12
_SHORTEST, _LONG = 4, 8
"""Letters of a word from which one letter of it may be wrong, and from which two may."""
_MOST_NEAR = 5
_MOST_NAMES = 50_000
"""Names among which a misspelled word is sought, the newest."""
_FEW = 1000
"""Matches of several words that PostgreSQL reads before it orders them."""
_README_CHARACTERS = 20_000
_PUBLIC, _INTERNAL = "public", "internal"
_MOST_SCOPES = 100
"""Roles of a reader up to which the index itself leaves out what they may not see; rows tell in any case."""
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
"""How each database quotes a word and joins alternatives."""
_STOP_WORDS = frozenset("a an and are as at be by for from in is it of on or that the this to with".split())  # noqa: SIM905


class Match(NamedTuple):
    """What a match is ranked by."""

    id: int
    owner: str
    name: str
    runs: int
    downloads: int
    stars: int


def words_of(text: str) -> list[str]:
    """Return the words of a text, in lower case and without accents."""
    plain = unicodedata.normalize("NFKD", text.lower())
    return _WORDS.findall("".join(one for one in plain if not unicodedata.combining(one)))


def marks_of(environment: Environment, latest: Version, requires: Iterable[str]) -> str:
    """Return what filters look for, each between spaces: facts of an environment and its newest version."""
    check = latest.check_summary
    checked = latest.checked if latest.checked is not None else check is not None and not check["failed"]
    found = [f"#{tag}" for tag in latest.tags]
    found += [f"requires:{one}" for one in requires]
    if latest.environment_kind:
        found.append(mark("kind", latest.environment_kind))
    if latest.deterministic is not None:
        found.append(mark("deterministic", latest.deterministic))
    if latest.license:
        found.append(mark("license", latest.license))
    return f" {' '.join([*found, mark('checked', checked)])} "


def write(session: Session, environment: Environment, latest: Version) -> None:
    """Bring the search up to date with an environment; one that is not listed is not found."""
    session.flush()
    key = "rowid" if _is_sqlite(session) else "environment_id"
    session.execute(text(f"DELETE FROM environment_search WHERE {key} = :id"), {"id": environment.id})  # noqa: S608 - ours
    if not environment.listed:
        return
    add(session, [(environment, latest)])


def add(session: Session, found: Sequence[tuple[Environment, Version]]) -> None:
    """Put into the search what is listed and not there yet, each with its newest version."""
    rows: list[dict[str, object]] = []
    for environment, latest in found:
        scopes = [_PUBLIC]
        if environment.private:
            scopes = [f"owner {environment.owner_id}", f"environment {environment.id}"]
        if environment.visibility == "internal":
            scopes.append(_INTERNAL)
        tokens = [_token(one) for one in (*environment.marks.split(), *scopes, f"by {environment.owner_id}")]
        tokens += [_in_name(one) for one in words_of(environment.name)]
        head = {
            "name": " ".join(words_of(environment.name)),
            "tags": " ".join(words_of(" ".join([environment.owner.name, *latest.tags]))),
            "summary": " ".join(words_of(latest.summary)),
        }
        readme = " ".join(words_of(latest.readme[:_README_CHARACTERS]))
        rows.append({"id": environment.id, **head, "readme": readme, "marks": " ".join(tokens)})
    session.execute(_INSERT_SQLITE if _is_sqlite(session) else _INSERT_POSTGRESQL, rows)


def is_empty(session: Session) -> bool:
    """Tell whether nothing at all can be found, as after a copy of the rows was brought back."""
    return session.scalar(select(literal_column("1")).select_from(_SEARCH).limit(1)) is None


def find(session: Session, wanted: EnvironmentFilter, owner_id: int | None, enough: int) -> list[int]:
    """Return the ids of what a search finds, the best first: at least `enough` of them, if there are."""
    words = list(dict.fromkeys(words_of(wanted.q)))[:_MOST_WORDS]
    words = [one for one in words if one not in _STOP_WORDS] or words
    if not words:
        return []
    found = _look(session, wanted, owner_id, [[one] for one in words], enough)
    if not found:
        alternatives = _respell(session, words)
        if any(len(some) > 1 for some in alternatives):
            found = _look(session, wanted, owner_id, alternatives, enough)
    return found


def _respell(session: Session, words: Sequence[str]) -> list[list[str]]:
    """Return each word with the words of names and tags that it was probably meant to be, nearest first."""
    from rapidfuzz import process  # only a search that finds nothing needs it
    from rapidfuzz.distance import OSA

    query = select(Environment.name, Environment.marks).where(Environment.listed, readable(session))
    rows = session.execute(query.order_by(Environment.id.desc()).limit(_MOST_NAMES))
    texts = {text for name, marks in rows for text in [name, *re.findall(r"#(\S+)", marks)]}
    known = sorted({word for text in texts for word in words_of(text) if len(word) >= _SHORTEST})

    def near(word: str) -> list[str]:
        if len(word) < _SHORTEST:
            return []
        most = 2 if len(word) >= _LONG else 1
        found = process.extract(word, known, scorer=OSA.distance, score_cutoff=most, limit=_MOST_NEAR)
        return [one for one, distance, _ in found if distance]

    return [[word, *near(word)] for word in words]


def marked(session: Session, wanted: EnvironmentFilter, owner_id: int | None) -> FromClause:
    """Return the ids, `found.id`, of all that has the marks which a listing asks for, by the text index."""
    return _ids(session, [], "head", _required(session, wanted, owner_id), prefix=False)


def _look(
    session: Session,
    wanted: EnvironmentFilter,
    owner_id: int | None,
    words: Sequence[Sequence[str]],
    enough: int,
) -> list[int]:
    required = _required(session, wanted, owner_id)
    found: dict[int, None] = {}
    for where, prefix in PLACES:
        ids = _ids(session, words, where, required, prefix=prefix)
        together = len(words) + len(wanted.marks()) + (owner_id is not None)
        rows = _newest(session, wanted, owner_id, ids, together=together)
        flat = tuple(one for some in words for one in some)
        rows.sort(key=lambda row: _rank(row, flat, wanted.q), reverse=True)
        found |= dict.fromkeys(row.id for row in rows)
        if len(found) >= min(enough, MOST):
            break
    return list(found)[:MOST]


def _newest(
    session: Session, wanted: EnvironmentFilter, owner_id: int | None, ids: FromClause, *, together: int
) -> list[Match]:
    """Return the newest of the rows that one look has found.

    PostgreSQL takes words for independent. Of several that hardly ever stand together it expects many, and
    would go through all rows for the newest; so where there are few, these are read.
    """

    def among(found: FromClause) -> Select[*tuple[Any, ...]]:
        ranked = (Environment.run_count, Environment.download_count, Environment.star_count)
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
    """Return what orders the matches of one look: a name that is what was asked, or much of it, then use."""
    own = words_of(row.name)
    asked = asked.strip().lower()
    exact = asked in (row.name, f"{row.owner}/{row.name}") or own == words_of(asked)
    covered = sum(one.startswith(words) for one in own) / max(1, len(own))
    used = math.log1p(row.runs + 5 * row.stars + row.downloads / 10)
    return exact, round(covered, 2), round(used, 2), row.id


def conditions(wanted: EnvironmentFilter, owner_id: int | None) -> list[ColumnElement[bool]]:
    """Return the conditions of the filters on the rows themselves."""
    found = [Environment.marks.contains(f" {one} ", autoescape=True) for one in wanted.marks()]
    return found if owner_id is None else [*found, Environment.owner_id == owner_id]


def _required(session: Session, wanted: EnvironmentFilter, owner_id: int | None) -> list[list[str]]:
    """Return the words of which one of each group must stand among the marks."""
    required = [[_token(one)] for one in wanted.marks()]
    if owner_id is not None:
        required.append([_token(f"by {owner_id}")])
    reader: Identity | None = session.info.get(READER)
    if reader is not None and (reader.admin or len(reader.roles) + len(reader.grants) > _MOST_SCOPES):
        return required
    scopes = [_PUBLIC]
    if reader is not None:
        scopes += [
            _INTERNAL,
            *(f"owner {one}" for one in reader.roles),
            *(f"environment {one}" for one in reader.grants),
        ]
    return [*required, [_token(one) for one in scopes]]


def _ids(
    session: Session, words: Sequence[Sequence[str]], where: str, required: list[list[str]], *, prefix: bool
) -> FromClause:
    """Return the ids of the rows in which one word of each group occurs, newest first."""
    if where == "name":
        words, required, where = [], [*([_in_name(one) for one in some] for some in words), *required], "head"
    if _is_sqlite(session):
        columns = {"head": "{name tags summary}", "body": "{name tags summary readme}"}
        groups = [f"({columns[where]} : {_any_of(some, _FTS5, '*' if prefix else '')})" for some in words]
        groups += [f"(marks : {_any_of(some, _FTS5)})" for some in required]
        matches = literal_column("environment_search").op("MATCH")(" AND ".join(groups))
        return (
            select(literal_column("rowid").label("id")).select_from(_SEARCH).where(matches).subquery("found")
        )
    # A weight has every match looked up: without it, only what begins as a token does could be one of a mark.
    end = ":*AB" if prefix else ""
    vector = _SEARCH.c.body if where == "body" else _SEARCH.c.head
    # Apart from each other: words that the dictionary leaves out, alone, must not find everything.
    asked = [[_any_of(some, _TSQUERY, end) for some in words], [_any_of(some, _TSQUERY) for some in required]]
    wanted = [vector.op("@@")(func.to_tsquery(_CONFIGURATION, " & ".join(some))) for some in asked if some]
    return select(_SEARCH.c.environment_id.label("id")).where(*wanted).subquery("found")


def _any_of(words: Sequence[str], syntax: tuple[str, str], end: str = "") -> str:
    """Return the expression for any of some words, which hold letters and digits alone."""
    quote, between = syntax
    return f"({between.join(f'{quote}{one}{quote}{end}' for one in words)})"


def _in_name(word: str) -> str:
    """Return the mark of a word that stands in the name: sought there alone, whatever texts have it too."""
    return f"zn{word}"


def _token(mark: str) -> str:
    """Return a mark as one word that no text has and no dictionary changes: digits after two letters."""
    return f"zq{int.from_bytes(hashlib.sha256(mark.encode()).digest()[:7]):017d}"


def _is_sqlite(session: Session) -> bool:
    return session.get_bind().dialect.name == "sqlite"
