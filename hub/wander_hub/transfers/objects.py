"""Finds the stored objects that rows refer to, and deletes unreferenced objects."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from sqlalchemy import Row, Select, func, select
from sqlalchemy.orm import Session

from wander_hub.database import Database
from wander_hub.environments.models import File, Version, VersionDocument
from wander_hub.identity import HUB
from wander_hub.models.models import Revision, RevisionFile
from wander_hub.runs.models import Run, RunArtifact, RunChunk
from wander_hub.storage import Storage
from wander_hub.transfers.models import TransferPart

_BATCH = 500
"""Number of digests per statement, because SQLite limits the number of values to some thousand."""
_ALWAYS = (RunChunk.object_sha256, RunArtifact.sha256, Run.order_sha256, TransferPart.object_sha256)
"""Columns of runs and of transfers with digests of objects."""
_MOST_HELD = 20_000
"""Largest number of chunks with which all objects are compared at once, at a kilobyte each."""
_REMOVED_AT_ONCE = 100
"""Number of objects that one transaction deletes while it blocks others from storing objects."""


def in_use(session: Session, digests: Sequence[str]) -> set[str]:
    """Return the digests to which present files, documents, models, runs or transfers refer."""
    files = select(File.sha256).join(File.version).where(Version.deleted_at.is_(None))
    documents = select(VersionDocument.sha256).join(Version, VersionDocument.version_id == Version.id)
    documents = documents.where(Version.deleted_at.is_(None))
    weights = select(RevisionFile.sha256).join(Revision, RevisionFile.revision_id == Revision.id)
    weights = weights.where(Revision.deleted_at.is_(None))
    used: set[str] = set()
    for start in range(0, len(digests), _BATCH):
        batch = digests[start : start + _BATCH]
        used.update(session.scalars(files.where(File.sha256.in_(batch))))
        used.update(session.scalars(documents.where(VersionDocument.sha256.in_(batch))))
        used.update(session.scalars(weights.where(RevisionFile.sha256.in_(batch))))
        for column in _ALWAYS:
            used.update(
                sha256 for sha256 in session.scalars(select(column).where(column.in_(batch))) if sha256
            )
    return used


def discard(database: Database, storage: Storage, digests: Iterable[str]) -> list[str]:
    """Delete the unreferenced objects; return their digests.

    Call this after the commit of the change that removed the references. A crash in between then leaves
    unreferenced objects, which `wander-hub fsck` finds, but never a missing object.
    """
    wanted = sorted(set(digests))
    removed = []
    for start in range(0, len(wanted), _REMOVED_AT_ONCE):
        batch = wanted[start : start + _REMOVED_AT_ONCE]
        with database.write(HUB) as session:
            database.lock_objects(session, exclusive=True)
            loose = sorted(set(batch) - in_use(session, batch))
            for sha256 in loose:
                session.execute(select(1))  # fails if the connection, and so the lock, was lost
                storage.delete(sha256)
        removed += loose
    return removed


def parts_of_digests(session: Session) -> list[tuple[str, str]]:
    """Return ranges of digests with exclusive ends: a single range, or many if there are many objects."""
    sample = select(RunChunk.first).limit(_MOST_HELD + 1).subquery()
    if session.scalars(select(func.count()).select_from(sample)).one() <= _MOST_HELD:
        return [("", "g")]
    return [(f"{byte:02x}", f"{byte + 1:02x}" if byte < 255 else "g") for byte in range(256)]


def list_expected(session: Session, start: str, end: str) -> Iterator[tuple[str, int | None, str]]:
    """Yield digest, size (if a row has it) and description of every object that must exist.

    `start` and `end` limit the digests to a range from `parts_of_digests`.
    """

    def rows(query: Select[*tuple[Any, ...]]) -> Iterator[Row[*tuple[Any, ...]]]:
        digest = query.selected_columns[0]
        yield from session.execute(query.where(digest >= start, digest < end))

    files = select(File.sha256, File.size, File.filename).join(File.version)
    for sha256, size, filename in rows(files.where(Version.deleted_at.is_(None))):
        yield sha256, size, f"file `{filename}`"
    documents = select(VersionDocument.sha256, VersionDocument.size, VersionDocument.kind)
    documents = documents.join(Version, VersionDocument.version_id == Version.id)
    for sha256, size, kind in rows(documents.where(Version.deleted_at.is_(None))):
        yield sha256, size, f"{kind} of a version"
    weights = select(RevisionFile.sha256, RevisionFile.size, RevisionFile.filename)
    weights = weights.join(Revision, RevisionFile.revision_id == Revision.id)
    for sha256, size, filename in rows(weights.where(Revision.deleted_at.is_(None))):
        yield sha256, size, f"file `{filename}` of a model"
    for sha256, run_id in rows(select(RunChunk.object_sha256, RunChunk.run_id)):
        yield sha256, None, f"rollouts of the run `{run_id}`"
    for sha256, run_id in rows(select(Run.order_sha256, Run.run_id)):
        yield sha256, None, f"the order of the rollouts of the run `{run_id}`"
    for sha256, filename in rows(select(TransferPart.object_sha256, TransferPart.filename)):
        yield sha256, None, f"a part of `{filename}` in an unfinished transfer"
    artifacts = select(RunArtifact.sha256, RunArtifact.size, RunArtifact.name, RunArtifact.run_id)
    for sha256, size, name, run_id in rows(artifacts):
        yield sha256, size, f"artifact `{name}` of the run `{run_id}`"
