"""Drops staged uploads that nobody finished: expired sessions, and chunks that no session counts on.

Chunks are listed before sessions: one that is listed belongs to a session that was open before, so where that
is not kept any more, nobody needs the chunk.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import takewhile
from typing import NamedTuple

from wander_hub.database import Database
from wander_hub.identity import HUB
from wander_hub.storage import Storage, StoredObject
from wander_hub.upload import session_repository as repository
from wander_hub.upload.sessions import chunk_key


def sweep(database: Database, storage: Storage) -> tuple[int, int]:
    """Drop what is over; return how many sessions and how many chunks that were."""
    with database.read(HUB) as session:
        expired = repository.find_expired_sessions(session)
    if expired:
        with database.write(HUB) as session:
            repository.drop_sessions(session, expired)
    loose = list(loose_chunks(database, storage))
    for one in loose:
        storage.unstage(one.path)
    return len(expired), len(loose)


def loose_chunks(database: Database, storage: Storage) -> Iterator[StoredObject]:
    """Yield the staged chunks whose session is over."""
    staged = list(storage.list_staged())
    with database.read(HUB) as session:
        kept = repository.find_live_sessions(session)
    yield from (one for one in staged if one.path.partition("/")[0] not in kept)


class CountedChunk(NamedTuple):
    """A chunk of an open session."""

    key: str
    session_id: str
    file_id: int
    filename: str


def find_lost_chunks(database: Database, storage: Storage) -> list[CountedChunk]:
    """Return the chunks that open sessions count on and that are not there."""
    counted = _list_counted(database)  # before the objects: a chunk is stored before it is counted
    stored = {one.path for one in storage.list_staged()}
    missing = [one for one in counted if one.key not in stored]
    return [one for one in missing if one in _list_counted(database)] if missing else []


def count_again(database: Database, storage: Storage, file_id: int) -> None:
    """Set a file back to the chunks that are there without a gap."""
    with database.write(HUB) as session:
        file = repository.file_numbered(session, file_id)
        if file is None or file.published:
            return
        stored = {one.path for one in storage.list_staged(f"{file.session_id}/")}
        whole = list(takewhile(lambda one: chunk_key(file, one) in stored, file.chunks))
        file.chunks[:] = whole
        file.received = sum(one.size for one in whole)


def _list_counted(database: Database) -> list[CountedChunk]:
    with database.read(HUB) as session:
        return [
            CountedChunk(chunk_key(file, chunk), file.session_id, file.id, file.filename)
            for file in repository.files_under_way(session)
            for chunk in file.chunks
        ]
