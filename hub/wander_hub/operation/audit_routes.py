"""The API of the audit log: everything for administrators, an owner's entries for its owners."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Annotated, Any

from fastapi import Depends, Query
from sqlalchemy.orm import Session
from starlette.responses import Response, StreamingResponse
from wander.wire.events import AuditEntry, AuditPage

from wander_hub import audit
from wander_hub.database import Database, fill
from wander_hub.http.boundary import Before, Caller, HubDatabase, ReadSession
from wander_hub.http.problems import HubProblem, refusals
from wander_hub.http.routing import HubRouter
from wander_hub.identity import HUB, Identity
from wander_hub.rights import members, rights
from wander_hub.rights.rights import Administrator

router = HubRouter(prefix="/api/v1", tags=["audit"])

JSON_LINES = "application/x-ndjson"
_AT_ONCE = 1000
_LINES: dict[int | str, dict[str, Any]] = {
    200: {"content": {JSON_LINES: {"schema": {"type": "string"}}}},
    **refusals(401, 403, 404, 422),
}
Word = Annotated[str | None, Query(max_length=300)]


def _asked(
    actor: Word = None,
    action: Annotated[str | None, Query(max_length=40, description="`version.yank`, or `version`")] = None,
    target: Word = None,
    since: datetime | None = None,
    until: datetime | None = None,
) -> dict[str, Any]:
    return {
        "actor": actor,
        "action": action,
        "target": target,
        "since": since and _in_utc(since),
        "until": until and _in_utc(until),
    }


def _in_utc(moment: datetime) -> datetime:
    try:
        return moment.replace(tzinfo=moment.tzinfo or UTC).astimezone(UTC)
    except OverflowError as error:
        raise HubProblem(422, "invalid_request", "the time is outside of the years 1 to 9999") from error


Asked = Annotated[dict[str, Any], Depends(_asked)]
Limit = Annotated[int, Query(ge=1, le=_AT_ONCE)]


@router.get("/audit", responses=refusals(401, 403, 422))
def list_audit(
    session: ReadSession, _caller: Administrator, asked: Asked, before: Before = None, limit: Limit = 100
) -> AuditPage:
    """List the audit log, newest first. For administrators."""
    return _page(session, limit, before=before, **asked)


@router.get("/audit.jsonl", response_class=Response, responses=_LINES)
def export_audit(database: HubDatabase, _caller: Administrator, asked: Asked) -> Response:
    """Export the audit log as JSON lines, newest first. For administrators."""
    return StreamingResponse(json_lines(database, **asked), media_type=JSON_LINES)


@router.get("/owners/{owner}/audit", responses=refusals(401, 403, 404, 422))
def list_owner_audit(
    session: ReadSession,
    caller: Caller,
    owner: str,
    asked: Asked,
    before: Before = None,
    limit: Limit = 100,
) -> AuditPage:
    """List the audit entries of an owner's environments, runs, models, roles and tokens. For its owners."""
    name = _owned(session, caller, owner)
    page = _page(session, limit, owner=name, before=before, **asked)
    known = _known(session, caller, name)
    return page.model_copy(update={"data": [_shown(entry, known) for entry in page.data]})


@router.get("/owners/{owner}/audit.jsonl", response_class=Response, responses=_LINES)
def export_owner_audit(
    session: ReadSession, database: HubDatabase, caller: Caller, owner: str, asked: Asked
) -> Response:
    """Export an owner's audit entries as JSON lines, newest first. For its owners."""
    name = _owned(session, caller, owner)
    known = _known(session, caller, name)
    return StreamingResponse(json_lines(database, known=known, owner=name, **asked), media_type=JSON_LINES)


def json_lines(database: Database, **asked: Any) -> Iterator[str]:
    """Yield entries as lines, read page by page; addresses are hidden for actors other than the `known`
    ones."""
    known: frozenset[str] | None = asked.pop("known", None)
    before: int | None = None
    while True:
        with database.read(HUB) as session:
            page = _page(session, _AT_ONCE, before=before, **asked)
        yield from (_shown(entry, known).model_dump_json() + "\n" for entry in page.data)
        if (before := page.next) is None:
            return


def _page(session: Session, limit: int, **asked: Any) -> AuditPage:
    entries = audit.list_entries(session, limit=limit + 1, **asked)
    data = [fill(AuditEntry, entry) for entry in entries[:limit]]
    return AuditPage(data=data, next=data[-1].id if len(entries) > limit else None)


def _known(session: Session, caller: Identity, owner: str) -> frozenset[str] | None:
    """Return the names of users with a role on an owner; None if the caller may see the addresses of
    everyone."""
    if caller.administers:
        return None
    return frozenset(member.user for member in members.members_of_owner(session, caller, owner))


def _shown(entry: AuditEntry, known: frozenset[str] | None) -> AuditEntry:
    """Return an entry without the address and token of a person without a role."""
    if known is None or entry.actor in known:
        return entry
    return entry.model_copy(update={"address": None, "token": None, "request_id": None})


def _owned(session: Session, caller: Identity, owner: str) -> str:
    return rights.owner_for(session, caller, "manage", owner).name
