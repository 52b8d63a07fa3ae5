"""procrastinate's own tables, brought to what the installed version of it needs.

It ships its schema and a list of migrations, and leaves to its user which of them are applied: that is kept
in a table beside. Alembic knows nothing of either.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from procrastinate.schema import SchemaManager
from sqlalchemy import Connection, text

from wander_hub.database import Database
from wander_hub.http.problems import HubProblem

_APPLIED = "procrastinate_migrations"
_LOCK = 7_403_926_552
"""Any number that nothing else locks."""


def bring(database: Database) -> None:
    """Make the tables, or apply the migrations that are missing; hubs that start together queue up."""
    with _lock(database) as connection:
        if not _exists(connection, _APPLIED):
            if _exists(connection, "procrastinate_jobs"):
                raise HubProblem(
                    500,
                    "foreign_procrastinate",
                    "the database has tables of procrastinate that this hub did not make",
                    hint="give the hub a database of its own",
                )
            _run(connection, SchemaManager.get_schema())
            columns = "name text PRIMARY KEY, applied_at timestamptz NOT NULL DEFAULT now()"
            connection.execute(text(f"CREATE TABLE {_APPLIED} ({columns})"))
            for path in _list_shipped():
                _mark(connection, path)
    more = True
    while more:  # each migration in a transaction of its own
        with _lock(database) as connection:
            missing = _list_missing(connection)
            for path in missing[:1]:
                _run(connection, path.read_text(encoding="utf-8"))
                _mark(connection, path)
            more = len(missing) > 1


@contextmanager
def _lock(database: Database) -> Iterator[Connection]:
    with database.engine.begin() as connection:
        connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _LOCK})
        yield connection


def is_current(database: Database) -> bool:
    """Tell whether nothing is missing."""
    with database.engine.connect() as connection:
        return _exists(connection, _APPLIED) and not _list_missing(connection)


def _list_missing(connection: Connection) -> list[Path]:
    applied = set(connection.scalars(text(f"SELECT name FROM {_APPLIED}")))  # noqa: S608 - our own constant
    return [path for path in _list_shipped() if path.name not in applied]


def _list_shipped() -> list[Path]:
    return sorted(Path(SchemaManager.get_migrations_path()).glob("*.sql"))


def _mark(connection: Connection, path: Path) -> None:
    connection.execute(text(f"INSERT INTO {_APPLIED} (name) VALUES (:name)"), {"name": path.name})  # noqa: S608


def _exists(connection: Connection, table: str) -> bool:
    return connection.scalar(text("SELECT to_regclass(:table)"), {"table": table}) is not None


def _run(connection: Connection, statements: str) -> None:
    """Run several statements as they stand, which the driver does where there are no parameters."""
    driver = connection.connection.driver_connection
    assert driver is not None
    driver.execute(statements)
