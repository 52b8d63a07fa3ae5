"""Queries on staged uploads. A session is looked up with its user: another one's does not exist."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from sqlalchemy import ColumnElement, and_, delete, func, select
from sqlalchemy.orm import Session, joinedload, selectinload

from wander_hub.database import now
from wander_hub.upload.models import StagedChunk, StagedFile, UploadSession

_WHOLE = (
    joinedload(UploadSession.owner),
    selectinload(UploadSession.files).selectinload(StagedFile.chunks),
)


def _is_open() -> ColumnElement[bool]:
    return and_(UploadSession.status == "open", UploadSession.expires_at > now())


def session_of(
    session: Session, user_id: int, session_id: str, *, lock: bool = False
) -> UploadSession | None:
    """Return a user's unexpired session with owner, files and chunks; `lock` makes others wait."""
    query = select(UploadSession).where(UploadSession.id == session_id, UploadSession.user_id == user_id)
    query = query.where(UploadSession.expires_at > now()).options(*_WHOLE)
    if lock:
        query = query.with_for_update(of=UploadSession)
    return session.scalar(query.execution_options(populate_existing=True))


def open_sessions(
    session: Session, user_id: int, owner_id: int, name: str, version: str
) -> Sequence[UploadSession]:
    """Return a user's open sessions for one version, the newest first."""
    place = {"user_id": user_id, "owner_id": owner_id, "name": name, "version": version}
    query = select(UploadSession).filter_by(**place).where(_is_open()).options(*_WHOLE)
    return session.scalars(query.order_by(UploadSession.created_at.desc(), UploadSession.id)).all()


def count_open(session: Session, user_id: int) -> int:
    """Return how many sessions a user has open."""
    query = select(func.count()).select_from(UploadSession).where(UploadSession.user_id == user_id)
    return session.scalar(query.where(_is_open())) or 0


def drop_chunks(session: Session, files: Iterable[StagedFile]) -> None:
    """Forget all chunks of files."""
    ids = [one.id for one in files]
    session.execute(delete(StagedChunk).where(StagedChunk.file_id.in_(ids)))


def files_under_way(session: Session) -> Sequence[StagedFile]:
    """Return the files of all sessions that are open, with their chunks."""
    query = select(StagedFile).join(UploadSession, StagedFile.session_id == UploadSession.id)
    query = query.where(_is_open())
    return session.scalars(query.options(selectinload(StagedFile.chunks)).order_by(StagedFile.id)).all()


def file_numbered(session: Session, file_id: int) -> StagedFile | None:
    """Return a file of an open session with its chunks; others that would change it wait."""
    query = select(StagedFile).join(UploadSession, StagedFile.session_id == UploadSession.id)
    query = query.where(StagedFile.id == file_id, UploadSession.status == "open")
    query = query.with_for_update(of=StagedFile)
    return session.scalar(query.options(selectinload(StagedFile.chunks)))


def find_live_sessions(session: Session) -> set[str]:
    """Return the ids of the sessions whose chunks are still needed."""
    return set(session.scalars(select(UploadSession.id).where(_is_open())))


def find_expired_sessions(session: Session) -> Sequence[str]:
    """Return the ids of the sessions that are over."""
    return session.scalars(select(UploadSession.id).where(UploadSession.expires_at <= now())).all()


def drop_sessions(session: Session, ids: Sequence[str]) -> None:
    """Forget sessions and all that belongs to them."""
    files = select(StagedFile.id).where(StagedFile.session_id.in_(ids))
    session.execute(delete(StagedChunk).where(StagedChunk.file_id.in_(files)))
    session.execute(delete(StagedFile).where(StagedFile.session_id.in_(ids)))
    session.execute(delete(UploadSession).where(UploadSession.id.in_(ids)))
