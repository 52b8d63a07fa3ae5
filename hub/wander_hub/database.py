"""The database: engine, sessions, base class of the models, migrations.

Only the boundaries (requests, jobs and the command line) commit. On SQLite, a writing session takes the write
lock with its first statement, so that two requests queue instead of failing halfway through.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from secrets import SystemRandom
from typing import TYPE_CHECKING, Any, TypeVar

from pydantic import BaseModel
from sqlalchemy import (
    BigInteger,
    ColumnElement,
    Connection,
    DateTime,
    Dialect,
    MetaData,
    String,
    TypeDecorator,
    create_engine,
    event,
    func,
    literal,
    text,
    type_coerce,
)
from sqlalchemy import inspect as look_at
from sqlalchemy.exc import IntegrityError, OperationalError
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column, sessionmaker

if TYPE_CHECKING:  # Alembic is only imported if the schema must be migrated
    from alembic.config import Config

    from wander_hub.identity import Identity

logger = logging.getLogger("wander_hub")

Result = TypeVar("Result")
Answer = TypeVar("Answer", bound=BaseModel)

READER = "reader"
"""Key of the session's `info` that holds the reader. Every query on environments depends on the reader."""
"""Key of the session's `info` that holds the links for nginx, if the hub maintains them."""
FIRST_REVISION = "0100"
"""Schema revision of release 0.1.0."""
UNRELEASED_REVISION = "0043"
"""Last schema revision before 0.1.0. It was never released, but its backups and exports can still be
loaded."""
QUIET = {"quiet": True}
"""Execution options of a statement that does not change any page."""
_UNSHOWN_TABLES = frozenset(
    {
        *("attempts", "audit", "browser_sessions", "imports", "invitations", "linked_identities"),
        *("one_time_codes", "quotas", "second_factors"),
        *("spending", "tokens", "transfer_parts", "transfers", "used_assertions"),
        *("alembic_version", "content_revision", "webhook_deliveries", "webhooks"),
    }
)
"""Tables whose content never appears on a page for anonymous visitors."""
_CHANGE = re.compile(r"\s*(?:INSERT INTO|UPDATE|DELETE FROM)\s+\"?(\w+)", re.I)
_ABSENT = object()
_OBJECTS_LOCK, _MIGRATIONS_LOCK = 7_403_926_551, 7_403_926_553
"""Arbitrary numbers of advisory locks that nothing else uses."""
_CALLED_OFF = ("40P01", "40001")
"""PostgreSQL error codes of a transaction that was aborted because of a deadlock or a serialization
failure."""
_MOST_TRIES = 6
POOL_KEPT = 10
"""Number of idle connections that stay open."""
SOON_GIVEN_UP = {
    "connect_timeout": 10,
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 25_000,
}
"""Connection options that give up on an unresponsive server: `tcp_user_timeout` in milliseconds, all others
in seconds. The default is up to two hours if the network lost the packets."""


class UtcDateTime(TypeDecorator[datetime]):
    """A timestamp that is always aware and in UTC, even if the database does not store the zone."""

    impl = DateTime(timezone=True)
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        """Convert a value to UTC; reject naive values."""
        if value is None:
            return None
        if value.tzinfo is None:
            raise ValueError("a naive datetime reached the database")
        return value.astimezone(UTC)

    def process_result_value(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        """Return an aware value."""
        if value is None or value.tzinfo is not None:
            return value
        return value.replace(tzinfo=UTC)


class Base(DeclarativeBase):
    """Base of every table; constraint names are fixed so that migrations can name them."""

    metadata = MetaData(
        naming_convention={
            "ix": "ix_%(column_0_N_label)s",
            "uq": "uq_%(table_name)s_%(column_0_N_name)s",
            "ck": "ck_%(table_name)s_%(constraint_name)s",
            "fk": "fk_%(table_name)s_%(column_0_N_name)s_%(referred_table_name)s",
            "pk": "pk_%(table_name)s",
        }
    )
    type_annotation_map = {datetime: UtcDateTime}  # noqa: RUF012 - SQLAlchemy's own spelling


class ContentRevision(Base):
    """One row that counts the transactions that changed something on anonymous pages.

    The entity tag of such a page can therefore be computed without reading the content of the page.
    """

    __tablename__ = "content_revision"

    epoch: Mapped[str] = mapped_column(String(32), primary_key=True)
    """Random value of this database, so that a restored copy never repeats the entity tags of the
    original."""
    number: Mapped[int] = mapped_column(BigInteger)


def now() -> datetime:
    """Return the current time in UTC."""
    return datetime.now(UTC)


def fill(answer: type[Answer], row: object, **given: Any) -> Answer:
    """Return a response model with the row's attributes as its fields; `given` overrides them."""
    for name in answer.__pydantic_fields__:
        if name not in given and (value := getattr(row, name, _ABSENT)) is not _ABSENT:
            given[name] = value
    return answer(**given)


class UnreleasedDatabase(Exception):
    """The database was created by a hub older than 0.1.0. `hint` explains how to move it to this release."""

    def __init__(self, revision: str) -> None:
        super().__init__(f"this database was made before Wander 0.1.0 (schema {revision})")
        self.hint = (
            "run `wander-hub backup FOLDER` with commit 13dc2cf7, the last commit before 0.1.0, then "
            "`wander-hub restore FOLDER --data NEW` with this release"
        )


class Database:
    """An engine and its two kinds of sessions, for reading and for writing."""

    def __init__(self, url: str, connections: int = 50) -> None:
        self.url = url
        self.session_info: dict[str, Any] = {}
        """Values that are added to the `info` of every session."""
        sqlite = url.startswith("sqlite")
        # A database made under the locale C does not report its encoding, and text would arrive as bytes.
        arguments: dict[str, Any] = {"check_same_thread": False}
        if not sqlite:
            arguments = {"client_encoding": "utf8", **SOON_GIVEN_UP}
        self.engine = create_engine(
            url,
            pool_size=min(POOL_KEPT, connections),
            max_overflow=max(0, connections - POOL_KEPT),
            pool_pre_ping=not sqlite,
            hide_parameters=True,  # keeps the values of a failed statement out of the log
            connect_args=arguments,
        )
        if sqlite:
            event.listen(self.engine, "connect", _prepare_sqlite)
            event.listen(self.engine, "begin", _begin_sqlite)
        event.listen(self.engine, "after_cursor_execute", _note_change)
        event.listen(self.engine, "commit", _raise_revision)
        event.listen(self.engine, "rollback", _forget_changes)
        self._one_moment: dict[str, Any] = {} if sqlite else {"isolation_level": "REPEATABLE READ"}
        """Options that give a transaction one consistent snapshot. On SQLite, every transaction has one."""
        self._read = sessionmaker(self.engine, expire_on_commit=False)
        self._write = sessionmaker(self.engine.execution_options(writes=True), expire_on_commit=False)

    @contextmanager
    def read(self, reader: Identity | None = None, *, one_moment: bool = False) -> Iterator[Session]:
        """Open a read-only session, whose changes are rolled back.

        Queries return only rows that `reader` may see. If it is None, they return only public rows. With
        `one_moment`, all statements of the session see the same snapshot.
        """
        with self._read(info={**self.session_info, READER: reader}) as session:
            if one_moment:
                session.connection(execution_options=self._one_moment)
            yield session

    @contextmanager
    def connect_at_one_moment(self) -> Iterator[Connection]:
        """Open a connection that sees one consistent snapshot."""
        with self.engine.connect().execution_options(**self._one_moment) as connection:
            yield connection

    @contextmanager
    def write(self, reader: Identity | None = None) -> Iterator[Session]:
        """Open a session that commits if the block succeeds and rolls back if it raises."""
        with self._write(info={**self.session_info, READER: reader}) as session, session.begin():
            yield session

    def commit(self, work: Callable[[Session], Result], reader: Identity | None = None) -> Result:
        """Run `work` in a writing session, and run it again if a concurrent transaction interfered.

        If a constraint fails twice, the error is raised, because the cause is not a race.
        """
        broken = False
        for _ in range(_MOST_TRIES - 1):
            try:
                with self.write(reader) as session:
                    return work(session)
            except IntegrityError:
                if broken:
                    raise
                broken = True
            except OperationalError as error:
                if getattr(error.orig, "sqlstate", None) not in _CALLED_OFF:
                    raise
                time.sleep(SystemRandom().uniform(0, 0.2))  # random, so that they do not collide again
        with self.write(reader) as session:
            return work(session)

    def lock_objects(self, session: Session, *, exclusive: bool) -> None:
        """Take the lock that protects stored objects from being deleted while a transaction adds references
        to them.

        A transaction that adds a reference takes the lock shared and checks again that the object exists. A
        transaction that deletes objects takes it exclusively and checks again that nothing refers to them.
        SQLite needs no lock, because it has only one writing transaction at a time.
        """
        if self.engine.dialect.name == "postgresql":
            lock = "pg_advisory_xact_lock" if exclusive else "pg_advisory_xact_lock_shared"
            session.execute(text(f"SELECT {lock}(:key)"), {"key": _OBJECTS_LOCK})

    def moment(self, later: timedelta = timedelta()) -> ColumnElement[datetime]:
        """Return an SQL expression for the current time plus `later`, by a clock that all processes share.

        This is the database's clock on PostgreSQL. With SQLite, all processes run on one machine anyway.
        """
        if self.engine.dialect.name != "postgresql":
            return literal(now() + later, UtcDateTime())
        return type_coerce(func.clock_timestamp() + later, UtcDateTime())

    def healthy(self) -> bool:
        """Return whether the database responds."""
        try:
            with self.read() as session:
                session.execute(text("SELECT 1"))
        except Exception:  # noqa: BLE001 - any error means that the database does not work
            return False
        return True

    def migrate(self) -> None:
        """Upgrade the schema to the newest revision. Hubs that start at the same time take turns."""
        with self._turn():
            if self.is_current():
                if self.is_newer():
                    logger.warning("a newer release migrated this database; its additions stay unchanged")
                return
            from alembic import command

            with self.engine.execution_options(writes=True).begin() as connection:
                command.upgrade(alembic_config(connection), "head")

    @contextmanager
    def _turn(self) -> Iterator[None]:
        """Hold the migration lock on PostgreSQL; on SQLite, the writing transaction is the lock.

        A separate connection holds the lock and polls for it. Waiting for it within a transaction would
        block an index that is built concurrently.
        """
        if self.engine.dialect.name != "postgresql":
            yield
            return
        with self.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as holder:
            key, is_logged = {"key": _MIGRATIONS_LOCK}, False
            while not holder.scalar(text("SELECT pg_try_advisory_lock(:key)"), key):
                if not is_logged:
                    logger.warning("another hub is migrating this database; waiting")
                is_logged = True
                time.sleep(0.1)
            try:
                yield
            finally:
                holder.execute(text("SELECT pg_advisory_unlock(:key)"), key)

    def is_current(self) -> bool:
        """Return whether the schema is at the newest revision, or at the revision of a later release.

        Migrations only add things, and additions have defaults, so this release works with a newer schema.
        Raises `UnreleasedDatabase` for a schema from before 0.1.0.
        """
        if not self.is_begun():
            return False
        with self.engine.connect() as connection:
            revision = connection.execute(text("SELECT version_num FROM alembic_version")).scalar() or ""
        if "" < revision < FIRST_REVISION:
            raise UnreleasedDatabase(revision)
        return revision >= newest_revision()  # numbers of four digits

    def is_newer(self) -> bool:
        """Return whether a later release changed the schema."""
        with self.engine.connect() as connection:
            revision = connection.execute(text("SELECT version_num FROM alembic_version")).scalar_one()
        return bool(revision > newest_revision())

    def is_begun(self) -> bool:
        """Return whether a hub of any release has created its schema in this database."""
        with self.engine.connect() as connection:
            return look_at(connection).has_table("alembic_version")

    def close(self) -> None:
        """Close every connection."""
        self.engine.dispose()


def _note_change(connection: Connection, cursor: Any, statement: str, *rest: Any) -> None:
    match = _CHANGE.match(statement)
    # Periodic clean-up mostly finds nothing. With RETURNING, the number is not known before rows are fetched.
    is_empty = cursor.rowcount == 0 and "RETURNING" not in statement
    if match is not None and not is_empty and match[1].lower() not in _UNSHOWN_TABLES:
        context = rest[1]
        if not context.execution_options.get("quiet"):
            connection.info["changed"] = True


def _raise_revision(connection: Connection) -> None:
    """Count a transaction that changed a page; this runs last, so that the row is locked only briefly."""
    if connection.info.pop("changed", False):
        connection.exec_driver_sql("UPDATE content_revision SET number = number + 1")


def _forget_changes(connection: Connection) -> None:
    if not connection.invalidated:  # a lost connection also lost its info
        connection.info.pop("changed", None)


def alembic_config(connection: Connection) -> Config:
    """Return an Alembic configuration that uses this connection."""
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(migrations_folder()).replace("%", "%%"))
    config.attributes["connection"] = connection
    return config


def newest_revision() -> str:
    """Return the newest revision: the number that starts the name of the newest migration file."""
    files = (migrations_folder() / "versions").glob("[0-9]*.py")
    return max(file.name.partition("_")[0] for file in files)


def migrations_folder() -> Path:
    """Return the folder of the migrations: inside the wheel, or at the root of a source checkout."""
    here = Path(__file__).resolve().parent
    shipped = here / "migrations"
    return shipped if shipped.is_dir() else here.parent.parent / "migrations"


def _prepare_sqlite(connection: Any, _record: Any) -> None:
    connection.isolation_level = None  # the driver must not open transactions itself: _begin_sqlite does that
    # A checkpoint moves the log into the database and waits for the disk. It happens after 16 MB instead of
    # 4, because a publication writes whole index pages.
    pragmas = ("journal_mode=WAL", "synchronous=NORMAL", "wal_autocheckpoint=4096", "foreign_keys=ON")
    for pragma in (*pragmas, "busy_timeout=15000"):
        connection.execute(f"PRAGMA {pragma}")


def _begin_sqlite(connection: Connection) -> None:
    writes = connection.get_execution_options().get("writes", False)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")
