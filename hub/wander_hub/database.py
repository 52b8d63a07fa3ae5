"""The database: engine, sessions, base of all models, migrations.

Only the boundaries (requests, jobs and the command line) commit. On SQLite a writing
session takes the write lock with its first statement, so that two requests queue instead of failing
half-way.
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

if TYPE_CHECKING:  # Alembic is imported by those alone who find the schema old
    from alembic.config import Config

    from wander_hub.identity import Identity

logger = logging.getLogger("wander_hub")

Result = TypeVar("Result")
Answer = TypeVar("Answer", bound=BaseModel)

READER = "reader"
"""The key under which a session holds its reader; every query on environments depends on it."""
PUBLIC_FILES = "public_files"
"""The key under which a session holds the links that nginx follows, where the hub keeps any."""
FIRST_REVISION = "0100"
"""The schema of 0.1.0."""
UNRELEASED_REVISION = "0043"
"""The last schema before it, which was never released. A backup or an export of it can still be loaded."""
QUIET = {"quiet": True}
"""Execution options of a statement that changes no page."""
_UNSHOWN_TABLES = frozenset(
    {
        *("attempts", "audit", "browser_sessions", "imports", "invitations", "linked_identities"),
        *("one_time_codes", "quotas", "second_factors"),
        *("spending", "tokens", "transfer_parts", "transfers", "used_assertions"),
        *("alembic_version", "content_revision", "webhook_deliveries", "webhooks"),
    }
)
"""Tables that no page shows to somebody who is not signed in."""
_CHANGE = re.compile(r"\s*(?:INSERT INTO|UPDATE|DELETE FROM)\s+\"?(\w+)", re.I)
_ABSENT = object()
_OBJECTS_LOCK, _MIGRATIONS_LOCK = 7_403_926_551, 7_403_926_553
"""Any numbers that nothing else locks."""
_CALLED_OFF = ("40P01", "40001")
"""What PostgreSQL says to one of two transactions that wait for each other, or whose order shows."""
_MOST_TRIES = 6
POOL_KEPT = 10
"""Connections that stay open while nobody needs them."""
SOON_GIVEN_UP = {
    "connect_timeout": 10,
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 25_000,
}
"""How long a server that says nothing is waited for: seconds, and milliseconds at the end. By default it is
up to two hours, where a network lost what was sent."""


class UtcDateTime(TypeDecorator[datetime]):
    """A time stamp that is always aware and in UTC, also where the database forgets the zone."""

    impl = DateTime(timezone=True)
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        """Refuse naive values and store UTC."""
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
    """One row that counts the transactions which changed something that anonymous pages show.

    So the entity tag of such a page is known without reading what it shows.
    """

    __tablename__ = "content_revision"

    epoch: Mapped[str] = mapped_column(String(32), primary_key=True)
    """Random per database: a restored copy never repeats the tags of the original."""
    number: Mapped[int] = mapped_column(BigInteger)


def now() -> datetime:
    """Return the present moment in UTC."""
    return datetime.now(UTC)


def fill(answer: type[Answer], row: object, **given: Any) -> Answer:
    """Return an answer whose fields are a row's attributes of the same names, but for those given."""
    for name in answer.__pydantic_fields__:
        if name not in given and (value := getattr(row, name, _ABSENT)) is not _ABSENT:
            given[name] = value
    return answer(**given)


class UnreleasedDatabase(Exception):
    """A hub from before 0.1.0 made the database; `hint` says how to move its content to this release."""

    def __init__(self, revision: str) -> None:
        super().__init__(f"this database was made before Wander 0.1.0 (schema {revision})")
        self.hint = (
            "run `wander-hub backup FOLDER` with commit 13dc2cf7, the last one before 0.1.0, then "
            "`wander-hub restore FOLDER --data NEW` with this release"
        )


class Database:
    """One engine and its two kinds of session."""

    def __init__(self, url: str, connections: int = 50) -> None:
        self.url = url
        self.session_info: dict[str, Any] = {}
        """The values that every session of this hub holds."""
        sqlite = url.startswith("sqlite")
        # A database made under the locale C says nothing of its encoding, and text would come as bytes.
        arguments: dict[str, Any] = {"check_same_thread": False}
        if not sqlite:
            arguments = {"client_encoding": "utf8", **SOON_GIVEN_UP}
        self.engine = create_engine(
            url,
            pool_size=min(POOL_KEPT, connections),
            max_overflow=max(0, connections - POOL_KEPT),
            pool_pre_ping=not sqlite,
            hide_parameters=True,  # values of a failed statement stay out of logs
            connect_args=arguments,
        )
        if sqlite:
            event.listen(self.engine, "connect", _prepare_sqlite)
            event.listen(self.engine, "begin", _begin_sqlite)
        event.listen(self.engine, "after_cursor_execute", _note_change)
        event.listen(self.engine, "commit", _raise_revision)
        event.listen(self.engine, "rollback", _forget_changes)
        self._one_moment: dict[str, Any] = {} if sqlite else {"isolation_level": "REPEATABLE READ"}
        """What has a transaction see the rows of one moment; with SQLite each does."""
        self._read = sessionmaker(self.engine, expire_on_commit=False)
        self._write = sessionmaker(self.engine.execution_options(writes=True), expire_on_commit=False)

    @contextmanager
    def read(self, reader: Identity | None = None, *, one_moment: bool = False) -> Iterator[Session]:
        """Give a session whose work is thrown away; it sees what `reader` may see: for None the public.

        With `one_moment` all its statements see the same rows, whatever changes meanwhile.
        """
        with self._read(info={**self.session_info, READER: reader}) as session:
            if one_moment:
                session.connection(execution_options=self._one_moment)
            yield session

    @contextmanager
    def connect_at_one_moment(self) -> Iterator[Connection]:
        """Give a connection that sees the rows of one moment, whatever changes meanwhile."""
        with self.engine.connect().execution_options(**self._one_moment) as connection:
            yield connection

    @contextmanager
    def write(self, reader: Identity | None = None) -> Iterator[Session]:
        """Give a session that commits when the block ends well, and rolls back otherwise."""
        with self._write(info={**self.session_info, READER: reader}) as session, session.begin():
            yield session

    def commit(self, work: Callable[[Session], Result], reader: Identity | None = None) -> Result:
        """Do `work` in a writing session; when another transaction got in between, again from the start.

        A constraint that breaks twice is raised: then it is not a race.
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
                time.sleep(SystemRandom().uniform(0, 0.2))  # lest the same ones meet again
        with self.write(reader) as session:
            return work(session)

    def lock_objects(self, session: Session, *, exclusive: bool) -> None:
        """Keep objects that a transaction counts on from being deleted until it ends.

        Who adds a row that points to an object takes the lock shared and looks once more that the object is
        there; who deletes objects takes it exclusive and looks once more that no row points to them. On
        SQLite a writing transaction is alone anyhow.
        """
        if self.engine.dialect.name == "postgresql":
            lock = "pg_advisory_xact_lock" if exclusive else "pg_advisory_xact_lock_shared"
            session.execute(text(f"SELECT {lock}(:key)"), {"key": _OBJECTS_LOCK})

    def moment(self, later: timedelta = timedelta()) -> ColumnElement[datetime]:
        """Return an expression for now, or some time later, by a clock that all processes of a hub share.

        That is the database's; with SQLite all are on one machine.
        """
        if self.engine.dialect.name != "postgresql":
            return literal(now() + later, UtcDateTime())
        return type_coerce(func.clock_timestamp() + later, UtcDateTime())

    def healthy(self) -> bool:
        """Tell whether the database answers."""
        try:
            with self.read() as session:
                session.execute(text("SELECT 1"))
        except Exception:  # noqa: BLE001 - any failure at all means unhealthy
            return False
        return True

    def migrate(self) -> None:
        """Bring the schema to the newest migration; hubs that start together take turns."""
        with self._turn():
            if self.is_current():
                if self.is_newer():
                    logger.warning("a newer release made this database; this one leaves alone what it added")
                return
            from alembic import command

            with self.engine.execution_options(writes=True).begin() as connection:
                command.upgrade(alembic_config(connection), "head")

    @contextmanager
    def _turn(self) -> Iterator[None]:
        """Hold the lock of migrations (PostgreSQL; of SQLite a writing transaction has all).

        It belongs to a connection of its own, and is asked for again and again: who waited for it within a
        transaction would hold up an index that is built concurrently.
        """
        if self.engine.dialect.name != "postgresql":
            yield
            return
        with self.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as holder:
            key, told = {"key": _MIGRATIONS_LOCK}, False
            while not holder.scalar(text("SELECT pg_try_advisory_lock(:key)"), key):
                if not told:
                    logger.warning("another hub migrates this database; waiting for it")
                told = True
                time.sleep(0.1)
            try:
                yield
            finally:
                holder.execute(text("SELECT pg_advisory_unlock(:key)"), key)

    def is_current(self) -> bool:
        """Tell whether the schema is that of the newest migration, or of a release after this one.

        A migration adds, and what it adds has a default: this release works with what a newer one has added.
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
        """Tell whether a later release has changed the schema."""
        with self.engine.connect() as connection:
            revision = connection.execute(text("SELECT version_num FROM alembic_version")).scalar_one()
        return bool(revision > newest_revision())

    def is_begun(self) -> bool:
        """Tell whether a hub, of whatever release, has made its schema here."""
        with self.engine.connect() as connection:
            return look_at(connection).has_table("alembic_version")

    def close(self) -> None:
        """Return every connection."""
        self.engine.dispose()


def _note_change(connection: Connection, _cursor: Any, statement: str, *rest: Any) -> None:
    found = _CHANGE.match(statement)
    if found is not None and found[1].lower() not in _UNSHOWN_TABLES:
        context = rest[1]
        if not context.execution_options.get("quiet"):
            connection.info["changed"] = True


def _raise_revision(connection: Connection) -> None:
    """Count a transaction that changed a page; last of all, so that the row is locked only briefly."""
    if connection.info.pop("changed", False):
        connection.exec_driver_sql("UPDATE content_revision SET number = number + 1")


def _forget_changes(connection: Connection) -> None:
    if not connection.invalidated:  # a lost connection took its info along
        connection.info.pop("changed", None)


def alembic_config(connection: Connection) -> Config:
    """Return an Alembic configuration that works on the given connection."""
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(migrations_folder()).replace("%", "%%"))
    config.attributes["connection"] = connection
    return config


def newest_revision() -> str:
    """Return the number of the newest migration, with which the name of its file begins."""
    files = (migrations_folder() / "versions").glob("[0-9]*.py")
    return max(one.name.partition("_")[0] for one in files)


def migrations_folder() -> Path:
    """Return the migrations shipped in the wheel, or in a source checkout those at its root."""
    here = Path(__file__).resolve().parent
    shipped = here / "migrations"
    return shipped if shipped.is_dir() else here.parent.parent / "migrations"


def _prepare_sqlite(connection: Any, _record: Any) -> None:
    connection.isolation_level = None  # the driver must not open transactions of its own: _begin_sqlite does
    # The log is moved into the database, which waits for the disk, after 16 MB instead of 4: a publication
    # writes its pages anew.
    pragmas = ("journal_mode=WAL", "synchronous=NORMAL", "wal_autocheckpoint=4096", "foreign_keys=ON")
    for pragma in (*pragmas, "busy_timeout=15000"):
        connection.execute(f"PRAGMA {pragma}")


def _begin_sqlite(connection: Connection) -> None:
    writes = connection.get_execution_options().get("writes", False)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")
