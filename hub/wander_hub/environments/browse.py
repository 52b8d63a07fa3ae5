"""Listings of environments: ordered by a column, filtered, paged, or as search results.

The cost of a page does not depend on the number of environments. Without filters, an index has the page. With
filters, the first rows in the order are checked one by one. If too few of them match, the text index finds
the matches, as long as they are few. If there are many, a longer walk through the rows finds enough.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import ColumnElement, Select, and_, func, or_, select
from sqlalchemy.orm import Session
from sqlalchemy.sql.expression import FromClause

from wander_hub.accounts import repository as accounts
from wander_hub.database import READER
from wander_hub.environments import search
from wander_hub.environments.models import SORT_KEYS, Environment
from wander_hub.environments.repository import chosen, readable, visible
from wander_hub.environments.schemas import KINDS, EnvironmentFilter, ListPosition
from wander_hub.http.problems import HubProblem

_FIRST, _WALKED = 100, (400, 2000)
"""Rows in listing order that are checked against filters: at first, and if there are many matches."""
_FEW = 500
"""Largest number of matches that are all read and sorted."""
COUNTED = 1000
"""Largest number of results that is counted exactly."""


NOBODY = 0
"""Id that no owner has."""


def owner_id_of(session: Session, wanted: EnvironmentFilter) -> int | None:
    """Return the id of a listing's owner: None for all owners, `NOBODY` if the owner does not exist."""
    if wanted.owner is None:
        return None
    owner = accounts.owner_named(session, wanted.owner)
    return NOBODY if owner is None else owner.id


def page(session: Session, wanted: EnvironmentFilter) -> tuple[list[Environment], str | None]:
    """Return a page of environments and the next cursor. Raises a 422 problem for an unknown kind."""
    if wanted.kind is not None and wanted.kind not in KINDS:
        of_kind = search.marked(session, EnvironmentFilter(kind=wanted.kind), None)
        if session.scalar(select(of_kind.c.id).limit(1)) is None:
            hint = "the kinds are " + ", ".join(f"`{kind.replace('_', '-')}`" for kind in KINDS)
            raise HubProblem(
                422, "unknown_kind", f"there is no environment of kind `{wanted.kind}`", hint=hint
            )
    owner_id = owner_id_of(session, wanted)
    if owner_id == NOBODY:
        return [], None
    if wanted.q.strip():
        return _search_page(session, wanted, owner_id)
    order = "updated" if wanted.order == "relevance" else wanted.order
    key = getattr(Environment, SORT_KEYS[order])
    at = ListPosition.from_cursor(wanted.cursor, order) if wanted.cursor else None
    rows: list[Environment] = []
    for share in _shares(session):
        rows += _in_order(session, wanted, owner_id, key, at, share)
    rows.sort(key=lambda row: (getattr(row, SORT_KEYS[order]), row.id), reverse=True)
    shown = rows[: wanted.limit]
    if len(rows) <= wanted.limit:
        return shown, None
    last = shown[-1]
    value = getattr(last, SORT_KEYS[order])
    plain = value.isoformat() if isinstance(value, datetime) else int(value)
    return shown, ListPosition(order, plain, last.id).cursor()


def _search_page(
    session: Session, wanted: EnvironmentFilter, owner_id: int | None
) -> tuple[list[Environment], str | None]:
    """Return a page of search results."""
    order = wanted.order
    offset = ListPosition.from_cursor(wanted.cursor, "relevance").row if wanted.cursor else 0
    until = offset + wanted.limit
    ids = search.find(session, wanted, owner_id, until + 1 if order == "relevance" else search.MOST)
    if order == "relevance":
        shown = ids[offset:until]
    else:
        key = getattr(Environment, SORT_KEYS[order])
        query = (
            select(Environment.id).where(Environment.id.in_(ids)).order_by(key.desc(), Environment.id.desc())
        )
        shown = list(session.scalars(query.offset(offset).limit(wanted.limit)))
    rows = {row.id: row for row in session.scalars(visible(session).where(Environment.id.in_(shown)))}
    following = ListPosition("relevance", 0, until).cursor() if len(ids) > until else None
    return [rows[row_id] for row_id in shown if row_id in rows], following


def _in_order(
    session: Session,
    wanted: EnvironmentFilter,
    owner_id: int | None,
    key: Any,
    at: ListPosition | None,
    share: ColumnElement[bool],
) -> Sequence[Environment]:
    """Return up to `limit + 1` environments that meet a condition, largest key first."""
    where = [Environment.listed, share]
    if owner_id is not None:
        where.append(Environment.owner_id == owner_id)
    if at is not None:
        value = datetime.fromisoformat(str(at.value)) if at.sort in ("updated", "newest") else at.value
        where.append(or_(key < value, and_(key == value, Environment.id < at.row)))

    def ordered(query: Select[Any], most: int) -> Select[Any]:
        return query.order_by(key.desc(), Environment.id.desc()).limit(most)

    if not wanted.marks():
        return session.scalars(ordered(visible(session).where(*where), wanted.limit + 1)).all()
    where_marked = [*where, *search.conditions(wanted, owner_id)]

    def fitting(ids: FromClause) -> Sequence[Environment]:
        among = visible(session).join(ids, chosen(session, ids)).where(*where_marked)
        return session.scalars(ordered(among, wanted.limit + 1)).all()

    def walk(most: int) -> Sequence[Environment]:
        return fitting(ordered(select(Environment.id).where(*where), most).subquery("found"))

    rows = walk(_FIRST)
    if len(rows) > wanted.limit:
        return rows
    ids = search.marked(session, wanted, owner_id)
    few = session.scalars(select(ids.c.id).limit(_FEW + 1)).all()
    for most in _WALKED if len(few) > _FEW else ():
        if len(rows := walk(most)) > wanted.limit:
            return rows
    return fitting(ids) if few else []


def _shares(session: Session) -> list[ColumnElement[bool]]:
    """Return conditions that together cover what the reader may see; an index serves each of them."""
    public = Environment.private.is_(False)
    if session.info.get(READER) is None:
        return [public]
    return [public, and_(Environment.private.is_(True), readable(session))]


def count_listed(session: Session) -> int:
    """Return the number of environments, counting up to one more than `COUNTED`."""
    listed = select(Environment.id).where(Environment.listed, readable(session)).limit(COUNTED + 1)
    return session.scalar(select(func.count()).select_from(listed.subquery())) or 0
