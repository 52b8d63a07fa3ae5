"""Documents of versions, such as the lock of a tested set of dependencies: attached once, then read.

The bytes lie in the storage, the row says which. Who attaches one stores the bytes first, then calls `attach`
in the transaction in which rights were checked and, on PostgreSQL, objects are locked (`lock_objects`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import BinaryIO, Literal

from sqlalchemy import select
from sqlalchemy.orm import Session

from wander_hub.database import now
from wander_hub.environments.models import Version, VersionDocument
from wander_hub.http.problems import HubProblem
from wander_hub.storage import Storage

Kind = Literal["lock"]
NAMES: dict[Kind, str] = {"lock": "pylock.toml"}
"""What the file of each kind is called."""


def document_of(session: Session, version: Version, kind: Kind) -> VersionDocument | None:
    """Return a version's document of a kind; None where it has none."""
    return session.get(VersionDocument, (version.id, kind))


def documents_of(session: Session, version: Version) -> Sequence[VersionDocument]:
    """Return all documents of a version."""
    query = select(VersionDocument).where(VersionDocument.version_id == version.id)
    return session.scalars(query.order_by(VersionDocument.kind)).all()


def attach(
    session: Session, storage: Storage, version: Version, kind: Kind, body: BinaryIO, sha256: str, size: int
) -> VersionDocument:
    """Give a version a document whose bytes are stored; the same bytes again are fine, others are a 409."""
    known = document_of(session, version, kind)
    if known is not None:
        if known.sha256 != sha256:
            detail = f"version {version.version} has another `{NAMES[kind]}` already"
            hint = "documents of a version never change: publish a new version"
            raise HubProblem(409, "document_exists", detail, hint=hint)
        return known
    storage.ensure(sha256, body)
    document = VersionDocument(version_id=version.id, kind=kind, sha256=sha256, size=size, created_at=now())
    session.add(document)
    session.flush()
    return document


def copy(session: Session, source: Version, target: Version) -> None:
    """Give a version all documents of another one."""
    for one in documents_of(session, source):
        session.add(
            VersionDocument(
                version_id=target.id, kind=one.kind, sha256=one.sha256, size=one.size, created_at=now()
            )
        )
