"""Queries on transfers. They always include the user, so another user's transfer cannot be found."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from sqlalchemy import ColumnElement, delete, func, select
from sqlalchemy.orm import Session
from wander.wire.transfers import TransferKind

from wander_hub.database import now
from wander_hub.transfers.models import Transfer, TransferPart

_SWEPT_AT_ONCE = 20


def transfer_of(
    session: Session, user_id: int, kind: TransferKind, transfer_id: str, *, lock: bool = False
) -> Transfer | None:
    """Return a user's unexpired transfer, or None; `lock` makes concurrent requests for it wait."""
    query = select(Transfer).where(Transfer.id == transfer_id, Transfer.user_id == user_id)
    query = query.where(Transfer.kind == kind, Transfer.expires_at > now())
    if lock:
        query = query.with_for_update()
    return session.scalar(query.execution_options(populate_existing=True))


def transfer_with_digest(session: Session, user_id: int, kind: TransferKind, digest: str) -> Transfer | None:
    """Return a user's transfer of the same content, even if it has expired, or None."""
    same = (Transfer.user_id == user_id) & (Transfer.kind == kind) & (Transfer.digest == digest)
    return session.scalar(select(Transfer).where(same).with_for_update())


def count_open(session: Session, user_id: int) -> int:
    """Return the number of a user's unfinished transfers."""
    query = select(func.count()).select_from(Transfer).where(Transfer.user_id == user_id)
    query = query.where(Transfer.finished.is_(False), Transfer.expires_at > now())
    return session.scalar(query) or 0


def parts_of(session: Session, transfer_id: str) -> Sequence[TransferPart]:
    """Return the parts of a transfer by file, each file in order."""
    query = select(TransferPart).where(TransferPart.transfer_id == transfer_id)
    return session.scalars(query.order_by(TransferPart.filename, TransferPart.offset)).all()


def drop_overlapping(session: Session, part: TransferPart) -> list[str]:
    """Remove the parts that another part replaces; return the digests of their objects."""
    return _drop(
        session,
        (TransferPart.transfer_id == part.transfer_id)
        & (TransferPart.filename == part.filename)
        & (TransferPart.offset < part.offset + part.size)
        & (TransferPart.offset + TransferPart.size > part.offset),
    )


def drop_parts(session: Session, transfer_ids: Sequence[str]) -> list[str]:
    """Remove all parts of transfers; return the digests of their objects."""
    return _drop(session, TransferPart.transfer_id.in_(transfer_ids))


def remove(session: Session, transfer_ids: Sequence[str]) -> list[str]:
    """Remove transfers and their parts; return the digests of the objects of the parts."""
    loose = drop_parts(session, transfer_ids)
    session.execute(delete(Transfer).where(Transfer.id.in_(transfer_ids)))
    return loose


def drop_lost(session: Session, transfer_id: str, lost: Collection[str]) -> None:
    """Remove the parts of a transfer whose objects are lost."""
    for part in parts_of(session, transfer_id):
        if part.object_sha256 in lost:
            session.delete(part)
    session.flush()


def any_expired(session: Session) -> bool:
    """Return whether any transfer has expired."""
    return session.scalar(select(Transfer.id).where(Transfer.expires_at <= now()).limit(1)) is not None


def list_expired(session: Session) -> Sequence[str]:
    """Return some expired transfers, locked; transfers that are in use are skipped."""
    query = select(Transfer.id).where(Transfer.expires_at <= now()).order_by(Transfer.expires_at)
    return session.scalars(query.limit(_SWEPT_AT_ONCE).with_for_update(skip_locked=True)).all()


def _drop(session: Session, which: ColumnElement[bool]) -> list[str]:
    loose = list(session.scalars(select(TransferPart.object_sha256).where(which)))
    session.execute(delete(TransferPart).where(which))
    return loose
