"""Documents of versions, such as the lock of tested dependencies. They are attached once and then only read.

The bytes are in the storage, and the row has their digest. To attach a document, store its bytes first and
then call `attach` in the transaction that checked the permission and, on PostgreSQL, locked the objects
(`lock_objects`).
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
"""File name of each kind of document."""


def document_of(session: Session, version: Version, kind: Kind) -> VersionDocument | None:
    """Return a version's document of a kind, or None."""
    return session.get(VersionDocument, (version.id, kind))


def documents_of(session: Session, version: Version) -> Sequence[VersionDocument]:
    """Return all documents of a version."""
    query = select(VersionDocument).where(VersionDocument.version_id == version.id)
    return session.scalars(query.order_by(VersionDocument.kind)).all()


def attach(
    session: Session, storage: Storage, version: Version, kind: Kind, body: BinaryIO, sha256: str, size: int
) -> VersionDocument:
    """Attach a document whose bytes are stored. The same bytes again are accepted; other bytes are a 409
    problem."""
    known = document_of(session, version, kind)
    if known is not None:
        if known.sha256 != sha256:
            detail = f"version {version.version} already has another `{NAMES[kind]}`"
            hint = "documents of a version cannot be changed: publish a new version"
            raise HubProblem(409, "document_exists", detail, hint=hint)
        return known
    storage.ensure(sha256, body)
    document = VersionDocument(version_id=version.id, kind=kind, sha256=sha256, size=size, created_at=now())
    session.add(document)
    session.flush()
    return document
