"""Queries on staged uploads. A session is looked up with its user: another one's does not exist."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime

from sqlalchemy import delete, func, select, update
from sqlalchemy.orm import Session, joinedload, selectinload

from wander_hub.upload.models import StagedChunk, StagedFile, UploadSession


def session_of(
    session: Session, user_id: int, session_id: str, at: datetime, *, lock: bool = False
) -> UploadSession | None:
    """Return a user's unexpired session with owner, files and chunks; `lock` makes others wait."""
    query = select(UploadSession).where(
        UploadSession.id == session_id, UploadSession.user_id == user_id, UploadSession.expires_at > at
    )
    query = query.options(
        joinedload(UploadSession.owner),
        selectinload(UploadSession.files).selectinload(StagedFile.chunks),
    )
    if lock:
        query = query.with_for_update(of=UploadSession)
    return session.scalar(query.execution_options(populate_existing=True))


def open_sessions(
    session: Session, user_id: int, owner_id: int, name: str, version: str, at: datetime
) -> Sequence[UploadSession]:
    """Return a user's open sessions for one version, the newest first."""
    query = select(UploadSession).where(
        UploadSession.user_id == user_id,
        UploadSession.owner_id == owner_id,
        UploadSession.name == name,
        UploadSession.version == version,
        UploadSession.status == "open",
        UploadSession.expires_at > at,
    )
    query = query.order_by(UploadSession.created_at.desc(), UploadSession.id)
    query = query.options(
        joinedload(UploadSession.owner),
        selectinload(UploadSession.files).selectinload(StagedFile.chunks),
    )
    return session.scalars(query).all()


def count_open(session: Session, user_id: int, at: datetime) -> int:
    """Return how many sessions a user has open."""
    query = select(func.count()).select_from(UploadSession)
    query = query.where(UploadSession.user_id == user_id, UploadSession.status == "open")
    return session.scalar(query.where(UploadSession.expires_at > at)) or 0


def advance(session: Session, file: StagedFile, offset: int, size: int) -> bool:
    """Count a chunk in if the file has got exactly as far as its offset; tell whether it had."""
    statement = update(StagedFile).where(StagedFile.id == file.id, StagedFile.received == offset)
    moved = session.connection().execute(statement.values(received=offset + size))
    return bool(moved.rowcount)


def drop_chunks(session: Session, files: Iterable[StagedFile]) -> None:
    """Forget all chunks of files."""
    ids = [one.id for one in files]
    session.execute(delete(StagedChunk).where(StagedChunk.file_id.in_(ids)))


def files_under_way(session: Session, at: datetime) -> Sequence[StagedFile]:
    """Return the files of all sessions that are open, with their chunks."""
    query = select(StagedFile).join(UploadSession, StagedFile.session_id == UploadSession.id)
    query = query.where(UploadSession.status == "open", UploadSession.expires_at > at)
    return session.scalars(query.options(selectinload(StagedFile.chunks)).order_by(StagedFile.id)).all()


def file_numbered(session: Session, file_id: int) -> StagedFile | None:
    """Return a file of an open session with its chunks; others that would change it wait."""
    query = select(StagedFile).join(UploadSession, StagedFile.session_id == UploadSession.id)
    query = query.where(StagedFile.id == file_id, UploadSession.status == "open")
    query = query.with_for_update(of=StagedFile)
    return session.scalar(query.options(selectinload(StagedFile.chunks)))


def find_live_sessions(session: Session, at: datetime) -> set[str]:
    """Return the ids of the sessions whose chunks are still needed."""
    query = select(UploadSession.id).where(UploadSession.status == "open", UploadSession.expires_at > at)
    return set(session.scalars(query))


def find_expired_sessions(session: Session, at: datetime) -> Sequence[str]:
    """Return the ids of the sessions that are over."""
    return session.scalars(select(UploadSession.id).where(UploadSession.expires_at <= at)).all()


def drop_sessions(session: Session, ids: Sequence[str]) -> None:
    """Forget sessions and all that belongs to them."""
    files = select(StagedFile.id).where(StagedFile.session_id.in_(ids))
    session.execute(delete(StagedChunk).where(StagedChunk.file_id.in_(files)))
    session.execute(delete(StagedFile).where(StagedFile.session_id.in_(ids)))
    session.execute(delete(UploadSession).where(UploadSession.id.in_(ids)))
