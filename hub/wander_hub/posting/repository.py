"""Queries on runs that are being posted, each by its submitter."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import delete, func, select
from sqlalchemy.orm import Session

from wander_hub.database import now
from wander_hub.runs.models import PostingArtifact, PostingChunk, PostingRow

_SWEPT_AT_ONCE = 20


def find_posting(session: Session, user_id: int, sha256: str, *, lock: bool = False) -> PostingRow | None:
    """Return a user's posting of the run with that digest; `lock` makes other requests for it wait."""
    query = select(PostingRow).where(PostingRow.user_id == user_id, PostingRow.sha256 == sha256)
    return session.scalar(query.with_for_update() if lock else query)


def count_of(session: Session, user_id: int) -> int:
    """Return how many postings of a user are unfinished."""
    query = select(func.count()).select_from(PostingRow).where(PostingRow.user_id == user_id)
    return session.scalar(query) or 0


def chunks_of(session: Session, posting_id: int) -> Sequence[PostingChunk]:
    """Return the chunks of a posting, in order."""
    query = select(PostingChunk).where(PostingChunk.posting_id == posting_id)
    return session.scalars(query.order_by(PostingChunk.number)).all()


def chunk_numbered(session: Session, posting_id: int, number: int) -> PostingChunk | None:
    """Return one chunk."""
    return session.get(PostingChunk, (posting_id, number))


def bytes_of(session: Session, posting_id: int, *, but: int) -> int:
    """Return the plain bytes of all chunks but one."""
    query = select(func.sum(PostingChunk.size)).where(
        PostingChunk.posting_id == posting_id, PostingChunk.number != but
    )
    return int(session.scalar(query) or 0)


def artifacts_of(session: Session, posting_id: int) -> Sequence[PostingArtifact]:
    """Return the files of a posting, by name."""
    query = select(PostingArtifact).where(PostingArtifact.posting_id == posting_id)
    return session.scalars(query.order_by(PostingArtifact.name)).all()


def any_expired(session: Session) -> bool:
    """Tell whether a posting was left alone for too long."""
    return session.scalar(select(PostingRow.id).where(PostingRow.expires_at < now()).limit(1)) is not None


def list_expired(session: Session) -> Sequence[PostingRow]:
    """Return some postings that were left alone for too long, locked; those in use are passed over."""
    query = select(PostingRow).where(PostingRow.expires_at < now()).order_by(PostingRow.expires_at)
    return session.scalars(query.limit(_SWEPT_AT_ONCE).with_for_update(skip_locked=True)).all()


def remove(session: Session, posting: PostingRow) -> list[str]:
    """Remove the rows of a posting; return the digests of the objects that it had."""
    chunks, artifacts = PostingChunk.posting_id == posting.id, PostingArtifact.posting_id == posting.id
    loose = [
        *session.scalars(select(PostingChunk.object_sha256).where(chunks)),
        *session.scalars(select(PostingArtifact.sha256).where(artifacts)),
    ]
    session.execute(delete(PostingChunk).where(chunks))
    session.execute(delete(PostingArtifact).where(artifacts))
    session.delete(posting)
    session.flush()
    return loose
