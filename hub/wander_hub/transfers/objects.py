"""Finds the stored objects that rows point to, and removes those that no row points to any more."""

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
"""Digests a statement; SQLite takes some thousand values."""
_ALWAYS = (RunChunk.object_sha256, RunArtifact.sha256, Run.order_sha256, TransferPart.object_sha256)
"""Columns of runs and of transfers that name objects."""
_MOST_HELD = 20_000
"""Chunks of rollouts up to which all objects are compared at once, a kilobyte each."""
_REMOVED_AT_ONCE = 100
"""Objects that one transaction removes, while nobody else may store any."""


def in_use(session: Session, digests: Sequence[str]) -> set[str]:
    """Return those of the digests that files, documents and models that may be had, and runs have."""
    files = select(File.sha256).join(File.version).where(Version.deleted_at.is_(None))
    documents = select(VersionDocument.sha256).join(Version, VersionDocument.version_id == Version.id)
    documents = documents.where(Version.deleted_at.is_(None))
    weights = select(RevisionFile.sha256).join(Revision, RevisionFile.revision_id == Revision.id)
    weights = weights.where(Revision.deleted_at.is_(None))
    found: set[str] = set()
    for start in range(0, len(digests), _BATCH):
        some = digests[start : start + _BATCH]
        found.update(session.scalars(files.where(File.sha256.in_(some))))
        found.update(session.scalars(documents.where(VersionDocument.sha256.in_(some))))
        found.update(session.scalars(weights.where(RevisionFile.sha256.in_(some))))
        for column in _ALWAYS:
            found.update(one for one in session.scalars(select(column).where(column.in_(some))) if one)
    return found


def discard(database: Database, storage: Storage, digests: Iterable[str]) -> list[str]:
    """Remove the objects that nothing points to; return their digests.

    Called after the change that let go of them is committed: dying before this leaves objects too many, which
    `wander-hub fsck` finds, never one too few.
    """
    wanted = sorted(set(digests))
    removed = []
    for start in range(0, len(wanted), _REMOVED_AT_ONCE):
        some = wanted[start : start + _REMOVED_AT_ONCE]
        with database.write(HUB) as session:
            database.lock_objects(session, exclusive=True)
            loose = sorted(set(some) - in_use(session, some))
            for sha256 in loose:
                session.execute(select(1))  # whoever lost the database has lost the lock
                storage.delete(sha256)
        removed += loose
    return removed


def parts_of_digests(session: Session) -> list[tuple[str, str]]:
    """Return ranges of digests, the end of each not in it: one alone, or many where objects are many."""
    some = select(RunChunk.first).limit(_MOST_HELD + 1).subquery()
    if session.scalars(select(func.count()).select_from(some)).one() <= _MOST_HELD:
        return [("", "g")]
    return [(f"{one:02x}", f"{one + 1:02x}" if one < 255 else "g") for one in range(256)]


def list_expected(session: Session, start: str, end: str) -> Iterator[tuple[str, int | None, str]]:
    """Yield digest, size where a row tells it, and what it is, of every object that must be there.

    Those of a range of digests, as `parts_of_digests` gives them.
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
        yield sha256, None, f"a part of `{filename}`, which has not arrived whole"
    artifacts = select(RunArtifact.sha256, RunArtifact.size, RunArtifact.name, RunArtifact.run_id)
    for sha256, size, name, run_id in rows(artifacts):
        yield sha256, size, f"artifact `{name}` of the run `{run_id}`"
