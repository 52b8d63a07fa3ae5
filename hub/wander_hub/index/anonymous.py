"""Reads the parts of the index that are public, each with one query that includes the permission check.

Installers send a hub more of these requests than of any other kind, mostly without a token. The statements
are compiled once. On SQLite they run on their own connection in the event loop: reading a page takes a
few microseconds, less than handing it to a thread. SQLite also reports whether any process has changed the
database, so responses can be cached until then. Other databases are queried from a thread every time.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeAlias

from sqlalchemy import Select, select
from sqlalchemy.dialects import sqlite
from sqlalchemy.exc import SQLAlchemyError
from starlette.concurrency import run_in_threadpool

from wander_hub.database import ContentRevision, Database
from wander_hub.index import rendering, repository, service
from wander_hub.index.negotiation import JSON_V1
from wander_hub.index.schemas import IndexedProject, RenderedPage

Statement: TypeAlias = Select[*tuple[Any, ...]]
Row: TypeAlias = tuple[Any, ...]
_BUSY_MILLISECONDS = 50
"""Time that the event loop waits for a locked database (in WAL mode, readers rarely wait); after that the
routes take over."""


class PublicFile(NamedTuple):
    """The location of a distribution file and the digests needed to serve it."""

    sha256: str
    size: int
    core_metadata: str | None
    core_metadata_sha256: str | None
    version_id: int


class AnonymousReader:
    """Looks up public pages and files, for requests without credentials."""

    def __init__(self, database: Database) -> None:
        self._database = database
        path = database.engine.url.database if database.engine.dialect.name == "sqlite" else None
        self._path = path if path not in (None, "", ":memory:") else None
        self._connection: sqlite3.Connection | None = None
        self._changes: sqlite3.Cursor | None = None
        self._statements: dict[Any, str | Statement] = {}

    async def page(self, place: IndexedProject, media_type: str, encoding: str | None) -> RenderedPage | None:
        """Return a page, or None if it is not public."""
        key = ("page" if place.project else "list", place.shape, media_type == JSON_V1, encoding)
        values = place.values() if place.project else {**place.values(), "nothing": rendering.root_json([])}
        row = await self._first_row(key, lambda: repository.page_query(place, media_type, encoding), values)
        return RenderedPage.of(row, media_type, encoding) if row is not None else None

    async def combined_root(self, media_type: str) -> RenderedPage:
        """Return the public project list of the combined index, rendered on request."""

        def make() -> RenderedPage:
            with self._database.read() as session:
                return service.render_combined_root(session, media_type)

        return await run_in_threadpool(make)

    def last_change(self) -> int | None:
        """Return a number that differs after every change to the database, or None if the database does
        not provide one."""
        if self._path is None:
            return None
        try:
            if self._changes is None:
                self._changes = self._open_database().cursor()
            version: int = self._changes.execute("PRAGMA data_version").fetchone()[0]
        except sqlite3.Error:
            return None
        return version

    async def revision(self) -> str | None:
        """Return the revision of the public pages, or None if the database cannot be read right now."""
        query = select(ContentRevision.epoch, ContentRevision.number)
        row = await self._first_row("revision", lambda: query, {})
        return f"{row[0]} {row[1]}" if row is not None else None

    async def file(self, place: IndexedProject, filename: str) -> PublicFile | None:
        """Return a distribution file, or None if it is not public."""
        values = place.values() | {"filename": filename}
        row = await self._first_row(("file", place.shape), lambda: repository.file_query(place), values)
        return PublicFile(*row) if row else None

    def close(self) -> None:
        """Close the connection."""
        if self._connection is not None:
            self._connection.close()
            self._connection = self._changes = None

    async def _first_row(
        self,
        key: object,
        build: Callable[[], Statement],
        values: Mapping[str, object],
    ) -> Row | None:
        statement = self._statements.get(key)
        if statement is None:
            statement = build()
            if self._path is not None:
                statement = str(statement.compile(dialect=sqlite.dialect(paramstyle="named")))
            self._statements[key] = statement
        if isinstance(statement, str):
            try:
                row: Row | None = self._open_database().execute(statement, values).fetchone()
            except sqlite3.Error:
                return None  # locked or broken: the routes wait for the database and report errors
            return row
        try:
            return await run_in_threadpool(self._from_pool, statement, values)
        except SQLAlchemyError:
            return None  # as above

    def _open_database(self) -> sqlite3.Connection:
        if self._connection is None:
            assert self._path is not None
            connection = sqlite3.connect(self._path, isolation_level=None, check_same_thread=False)
            connection.execute(f"PRAGMA busy_timeout={_BUSY_MILLISECONDS}")
            connection.execute("PRAGMA query_only=ON")
            self._connection = connection
        return self._connection

    def _from_pool(self, statement: Statement, values: Mapping[str, object]) -> Row | None:
        with self._database.engine.connect() as connection:
            row = connection.execute(statement, values).first()
        return tuple(row) if row is not None else None
