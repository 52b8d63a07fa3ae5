"""The audit log: who did what, to which object, and from where.

Entries are written in the transaction of the change. They are only ever added: database triggers reject
updates and deletions.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from sqlalchemy import JSON, Index, String, select
from sqlalchemy.orm import Mapped, Session, mapped_column

from wander_hub.database import Base, Result, now
from wander_hub.security import without_secrets

_PENDING = "audit"
"""Key of the session's `info` that holds the audit entry of the current transaction."""
_LONGEST = {"actor": 80, "target": 300, "address": 64, "owner": 39}


class AuditEntry(Base):
    """One action. It stores names instead of foreign keys, so that it outlives the objects that it
    mentions."""

    __tablename__ = "audit"
    __table_args__ = (
        Index("ix_audit_owner", "owner", "id"),
        Index("ix_audit_actor", "actor", "id"),
        Index("ix_audit_action", "action", "id"),
    )

    id: Mapped[int] = mapped_column(primary_key=True)
    at: Mapped[datetime] = mapped_column(index=True)
    actor: Mapped[str] = mapped_column(String(80))
    token: Mapped[str | None] = mapped_column(String(16))
    """Prefix of the token that was used, as listings show it."""
    action: Mapped[str] = mapped_column(String(40))
    owner: Mapped[str | None] = mapped_column(String(39))
    """Name of the owner of the target. Owners of that name may read the entry."""
    target: Mapped[str] = mapped_column(String(300))
    detail: Mapped[dict[str, Any]] = mapped_column(JSON)
    address: Mapped[str | None] = mapped_column(String(64))
    request_id: Mapped[str | None] = mapped_column(String(64))


@dataclass(frozen=True)
class Origin:
    """The actor of a change, its source and its action; `params` are the path parameters of the request."""

    action: str
    actor: str
    token: str | None = None
    address: str | None = None
    request_id: str | None = None
    params: Mapping[str, Any] = field(default_factory=dict)
    detail: Mapping[str, Any] = field(default_factory=dict)


def recorded(work: Callable[[Session], Result], origin: Origin) -> Callable[[Session], Result]:
    """Return a version of `work` that adds an audit entry to its transaction."""

    def do(session: Session) -> Result:
        entry = session.info[_PENDING] = _entry(origin)
        result = work(session)
        if session.info.pop(_PENDING, None) is not None:
            _add(session, entry)
        return result

    return do


def record(session: Session, origin: Origin, **details: Any) -> None:
    """Add an audit entry for the current transaction. `details` has the same keys as in `about`."""
    entry = _entry(origin)
    _fill(entry, details)
    _add(session, entry)


def about(session: Session, **details: Any) -> None:
    """Add details to the audit entry of the current transaction.

    `actor`, `owner` and `target` set those fields. `whose` overrides the owner of the request's path; None
    means that the entry has no owner. Everything else becomes part of `detail`.
    """
    entry = session.info.get(_PENDING)
    if entry is not None:
        _fill(entry, details)


def nothing_done(session: Session) -> None:
    """Discard the audit entry of this transaction, because nothing changed."""
    session.info.pop(_PENDING, None)


def list_entries(
    session: Session,
    *,
    owner: str | None = None,
    actor: str | None = None,
    action: str | None = None,
    target: str | None = None,
    since: datetime | None = None,
    until: datetime | None = None,
    before: int | None = None,
    limit: int = 100,
) -> list[AuditEntry]:
    """Return entries, newest first.

    `target` also matches everything below it, and `action` also matches its more specific actions.
    """
    query = select(AuditEntry).order_by(AuditEntry.id.desc()).limit(limit)
    for column, wanted in ((AuditEntry.owner, owner), (AuditEntry.actor, actor)):
        query = query.where(column == wanted) if wanted is not None else query
    if action is not None:
        query = query.where((AuditEntry.action == action) | AuditEntry.action.startswith(action + "."))
    if target is not None:
        below = [AuditEntry.target.startswith(target + sign, autoescape=True) for sign in "/@"]
        query = query.where((AuditEntry.target == target) | below[0] | below[1])
    if since is not None:
        query = query.where(AuditEntry.at >= since)
    if until is not None:
        query = query.where(AuditEntry.at < until)
    if before is not None:
        query = query.where(AuditEntry.id < before)
    return list(session.scalars(query))


def _entry(origin: Origin) -> AuditEntry:
    params = {name: str(value) for name, value in origin.params.items()}
    owner, name = params.pop("owner", None), params.pop("name", None)
    version = params.pop("version", None) or params.pop("revision", None)
    if owner is not None:
        owner = owner.lower()
        target = owner + (f"/{name}" if name else "") + (f"@{version}" if version else "")
    else:
        target = next(iter(params.values()), "")
    entry = AuditEntry(
        actor=origin.actor,
        token=origin.token,
        action=origin.action,
        owner=owner,
        target=target,
        detail={**params, **origin.detail},
        address=origin.address,
        request_id=origin.request_id,
    )
    return entry


def _fill(entry: AuditEntry, detail: dict[str, Any]) -> None:
    owner, target, actor = (detail.pop(name, None) for name in ("owner", "target", "actor"))
    entry.actor, entry.target = actor or entry.actor, target or entry.target
    entry.owner = entry.owner or owner  # an owner in the request's path takes precedence
    if "whose" in detail:
        entry.owner = detail.pop("whose")
    entry.detail = {**entry.detail, **detail}


def _add(session: Session, entry: AuditEntry) -> None:
    entry.at = now()
    entry.detail = json.loads(without_secrets(json.dumps(entry.detail)))
    for name, longest in _LONGEST.items():
        value = getattr(entry, name)
        setattr(entry, name, without_secrets(value)[:longest] if value is not None else None)
    session.add(entry)
