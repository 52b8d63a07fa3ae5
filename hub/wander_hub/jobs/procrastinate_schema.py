"""procrastinate's own tables, brought to what the installed version of it needs.

It ships its schema and a list of migrations, and leaves to its user which of them are applied: that is kept
in a table beside. Alembic knows nothing of either.
"""

from __future__ import annotations

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
    with database.engine.begin() as connection:
        connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _LOCK})
        _make_or_mark(connection)
    while _apply_next(database):
        pass


def is_current(database: Database) -> bool:
    """Tell whether nothing is missing."""
    with database.engine.connect() as connection:
        return _exists(connection, _APPLIED) and not _list_missing(connection)


def _make_or_mark(connection: Connection) -> None:
    if _exists(connection, _APPLIED):
        return
    if _exists(connection, "procrastinate_jobs"):
        raise HubProblem(
            500,
            "foreign_procrastinate",
            "the database has tables of procrastinate that this hub did not make",
            hint="give the hub a database of its own",
        )
    _run(connection, SchemaManager.get_schema())
    connection.execute(
        text(
            f"CREATE TABLE {_APPLIED} (name text PRIMARY KEY, applied_at timestamptz NOT NULL DEFAULT now())"
        )
    )
    for path in _list_shipped():
        _mark(connection, path)


def _apply_next(database: Database) -> bool:
    """Apply the first missing migration in a transaction of its own; False when there was none."""
    with database.engine.begin() as connection:
        connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _LOCK})
        missing = _list_missing(connection)
        if missing:
            _run(connection, missing[0].read_text(encoding="utf-8"))
            _mark(connection, missing[0])
        return bool(missing)


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
