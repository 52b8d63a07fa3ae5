"""Queries on environments. Every read starts from `visible`, so that no listing can forget the
permissions."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date, datetime
from functools import cache, lru_cache
from itertools import chain
from typing import Any, NamedTuple

from sqlalchemy import (
    ColumnElement,
    Select,
    and_,
    bindparam,
    event,
    exists,
    func,
    inspect,
    literal_column,
    or_,
    select,
    true,
)
from sqlalchemy.orm import (
    ORMExecuteState,
    Session,
    contains_eager,
    joinedload,
    with_loader_criteria,
)
from sqlalchemy.sql.expression import FromClause
from wander.wire.environments import Visibility

from wander_hub import audit
from wander_hub.accounts.models import Owner, User
from wander_hub.accounts.repository import NEIGHBORS
from wander_hub.database import READER, now
from wander_hub.environments.models import Downloads, Environment, File, FileProvenance, FormerName, Version
from wander_hub.identity import Identity
from wander_hub.names import release_of

KEPT_STATEMENTS = 200
"""Number of cached statements of one kind, one for each reader, because building a statement takes longer
than executing it."""


def readable(session: Session) -> ColumnElement[bool]:
    """Return the condition that selects the environments that the session's reader may see.

    A session without a reader sees only public environments. So if code forgets to set the reader, it shows
    too little rather than too much.
    """
    return readable_by(session.info.get(READER))


def readable_by(reader: Identity | None) -> ColumnElement[bool]:
    """Return the condition that selects the environments that a reader may see. None means the public.

    A token for one owner or environment sees these objects and public environments, but no other internal
    environments.
    """
    if reader is None:
        return Environment.private.is_(False)
    mine: list[ColumnElement[bool]] = [true()]
    if not reader.admin:
        held = Environment.owner_id.in_(reader.roles) | Environment.id.in_(reader.grants)
        mine = [held | Environment.internal.is_(True)]
    if reader.only_owner is not None:
        mine.append(Environment.owner_id == reader.only_owner)
    if reader.only_new is not None:
        owner_id, name = reader.only_new
        mine.append(and_(Environment.owner_id == owner_id, Environment.name == name))
    elif reader.only_environment is not None:
        mine.append(Environment.id.in_({reader.only_environment, *reader.required}))
    return or_(Environment.private.is_(False), and_(*mine))


@event.listens_for(Session, "do_orm_execute")
def _narrow_to_version(state: ORMExecuteState) -> None:
    """Restrict the token of a job about a version to that version and its files."""
    reader: Identity | None = state.session.info.get(READER)
    if reader is None or reader.only_version is None or not state.is_select:
        return
    own, version = reader.only_environment, reader.only_version
    state.statement = state.statement.options(
        with_loader_criteria(Version, or_(Version.environment_id != own, Version.id == version)),
        with_loader_criteria(File, or_(File.environment_id != own, File.version_id == version)),
    )


def visible(session: Session) -> Select[Environment]:
    """Return the base statement of every read: environments that the reader may see, with their owners."""
    return visible_to(session.info.get(READER))


@lru_cache(KEPT_STATEMENTS)
def visible_to(reader: Identity | None) -> Select[Environment]:
    """Return the statement for environments that a reader may see, with their owners; None is the public."""
    query = select(Environment).join(Environment.owner).options(contains_eager(Environment.owner))
    return query.where(readable_by(reader))


@lru_cache(KEPT_STATEMENTS)
def _named(reader: Identity | None) -> Select[Environment]:
    return visible_to(reader).where(
        Owner.name == bindparam("owner"), Environment.name == bindparam("environment")
    )


def chosen(session: Session, found: FromClause) -> ColumnElement[bool]:
    """Return the condition that joins environments with a subquery of ids, `found.id`.

    The unary plus makes SQLite go from the ids to the rows instead of reading all rows.
    """
    sqlite = session.get_bind().dialect.name == "sqlite"
    return Environment.id == (literal_column("+found.id") if sqlite else found.c.id)


def environment_named(session: Session, owner: str, name: str) -> Environment | None:
    """Return the environment or package with this current name, or None."""
    named = _named(session.info.get(READER))
    return session.scalar(named, {"owner": owner, "environment": name})


def environment_once_named(session: Session, owner: str, name: str) -> Environment | None:
    """Return the environment that had this name before it was renamed or transferred, or None."""
    former = select(FormerName.environment_id).join(Owner, FormerName.owner_id == Owner.id)
    ids = former.where(Owner.name == owner, FormerName.name == name).scalar_subquery()
    return session.scalar(visible(session).where(Environment.id == ids))


def find_taken(session: Session, owner_id: int, name: str) -> Environment | FormerName | None:
    """Return the current or former holder of a name, even if hidden from the reader. Names are never
    reused."""
    query = select(Environment).where(Environment.owner_id == owner_id, Environment.name == name)
    present = session.scalar(query.options(joinedload(Environment.owner)))
    return present or session.get(FormerName, (owner_id, name))


def add_environment(
    session: Session, owner: Owner, name: str, *, latest_version: str, listed: bool, visibility: Visibility
) -> Environment:
    """Add an environment. Its totals are computed when it has a version."""
    environment = Environment(
        owner=owner,
        owner_id=owner.id,
        name=name,
        listed=listed,
        visibility=visibility,
        latest_version=latest_version,
        summary="",
        tags=[],
        version_count=0,
        run_count=0,
        created_at=now(),
        updated_at=now(),
    )
    session.add(environment)
    session.flush()
    return environment


def environment_numbered(session: Session, environment_id: int) -> Environment | None:
    """Return an environment by id if the reader may see it, otherwise None."""
    return session.scalar(visible(session).where(Environment.id == environment_id))


def lock_environment(session: Session, environment: Environment) -> None:
    """Lock an environment against concurrent changes of it, its runs and its boards on PostgreSQL, and read
    it again.

    The lock still allows adding rows that refer to the environment. Otherwise, two transactions that both
    added a row could deadlock.
    """
    columns = inspect(Environment).column_attrs.keys()
    session.refresh(environment, columns, with_for_update={"key_share": True})
    # The audit entry of a change to a run needs the owner, which the path of the request does not name.
    owner = session.get_one(Owner, environment.owner_id).name
    audit.about(session, owner=owner, environment=f"{owner}/{environment.name}")


def owners_of(session: Session, name: str) -> Sequence[str]:
    """Return owners of listed environments with this name, up to a limit."""
    same_name = select(Environment.id).where(Environment.name == name).limit(NEIGHBORS).subquery("found")
    query = select(Owner.name).join(Environment, Environment.owner_id == Owner.id)
    query = query.join(same_name, chosen(session, same_name)).where(Environment.listed, readable(session))
    return session.scalars(query.order_by(Owner.name)).all()


def names_around(session: Session, owner: str, name: str) -> Sequence[str]:
    """Return names of an owner's listed environments that are close to this name in alphabetical order.

    The number of rows that are read is limited, even if many of them are hidden.
    """
    owned = select(Environment.id).where(
        Environment.owner_id == select(Owner.id).where(Owner.name == owner).scalar_subquery()
    )
    after = owned.where(Environment.name >= name).order_by(Environment.name).limit(NEIGHBORS)
    before = owned.where(Environment.name < name).order_by(Environment.name.desc()).limit(NEIGHBORS)
    shown = select(Environment.name).where(Environment.listed, readable(session))
    around = (after.subquery("found"), before.subquery("found"))
    by_order = (session.scalars(shown.join(ids, chosen(session, ids))) for ids in around)
    return [*chain.from_iterable(by_order)]


def packages_of(session: Session, owner_id: int, limit: int) -> Sequence[str]:
    """Return the first normalized names of an owner's index."""
    query = select(Environment.name).where(
        Environment.owner_id == owner_id, Environment.deleted_at.is_(None), readable(session)
    )
    return session.scalars(query.order_by(Environment.name).limit(limit)).all()


def version_of(session: Session, environment: Environment, version: str) -> Version | None:
    """Return a version in any spelling, with files, documents and uploader, or None."""
    release = release_of(version)  # None matches nothing
    rows = session.scalars(_whole_version(), {"environment_id": environment.id, "release": release})
    return rows.unique().one_or_none()


@cache
def _whole_version() -> Select[Version]:
    own = Version.environment_id == bindparam("environment_id"), Version.release == bindparam("release")
    parts = joinedload(Version.files), joinedload(Version.documents), joinedload(Version.uploaded_by)
    return select(Version).where(*own).options(*parts)


class ListedVersion(NamedTuple):
    """One row of a list of versions."""

    id: int
    version: str
    summary: str
    yanked: bool
    yanked_reason: str | None
    deleted_at: datetime | None
    uploaded_at: datetime
    uploaded_by_id: int | None
    uploaded_by: str | None
    """Name of the uploader; None for the hub's own packages."""


def versions_of(session: Session, environment: Environment) -> list[ListedVersion]:
    """Return all versions, in order of upload."""
    return [ListedVersion(*row) for row in session.execute(_versions(), {"environment_id": environment.id})]


@cache
def _versions() -> Select[Any]:
    row: Any = Version
    query = select(row.id, row.version, row.summary, row.yanked, row.yanked_reason, row.deleted_at)
    query = query.add_columns(row.uploaded_at, row.uploaded_by_id, User.name)
    query = query.outerjoin(User, User.id == row.uploaded_by_id).order_by(row.id)
    return query.where(row.environment_id == bindparam("environment_id"))


class OfferedFile(NamedTuple):
    """A file as an index page describes it, including columns of its version."""

    filename: str
    sha256: str
    size: int
    uploaded_at: datetime
    core_metadata_sha256: str | None
    version: str
    requires_python: str | None
    yanked: bool
    yanked_reason: str | None
    attested: bool = False
    """Whether it has stored attestations (PEP 740)."""


def files_for_pages(session: Session, environment: Environment) -> list[tuple[OfferedFile, bool]]:
    """Return all files in order of upload, each with whether it may be downloaded.

    The result has plain rows instead of objects, because every upload renders a page with hundreds of files.
    """
    columns = (File.filename, File.sha256, File.size, File.uploaded_at, File.core_metadata_sha256)
    query = select(*columns, Version.version, Version.requires_python, Version.yanked, Version.yanked_reason)
    attested = exists().where(FileProvenance.file_id == File.id)
    query = query.add_columns(attested, Version.deleted_at).join(Version, File.version_id == Version.id)
    query = query.where(File.environment_id == environment.id)
    rows = session.execute(query.order_by(Version.id, File.filename.desc()))
    open_ = environment.quarantine_reason is None
    return [(OfferedFile._make(row[:-1]), open_ and row.deleted_at is None) for row in rows]


def downloads_of(session: Session, environment: Environment, since: date) -> Sequence[tuple[date, str, int]]:
    """Return day, version and count of an environment's downloads, newest first."""
    rows = session.execute(_downloads(), {"environment_id": environment.id, "since": since})
    return [(day, version, count) for day, version, count in rows]


@cache
def _downloads() -> Select[date, str, int]:
    query = select(Downloads.day, Version.version, Downloads.count)
    query = query.join(Version, Downloads.version_id == Version.id)
    query = query.where(Version.environment_id == bindparam("environment_id"))
    return query.where(Downloads.day >= bindparam("since")).order_by(Downloads.day.desc(), Version.id.desc())


def count_downloads(session: Session, environment: Environment) -> int:
    """Return the total number of downloads of an environment's files."""
    query = select(func.coalesce(func.sum(Downloads.count), 0)).join(
        Version, Downloads.version_id == Version.id
    )
    return int(session.scalar(query.where(Version.environment_id == environment.id)) or 0)


def file_of(session: Session, environment: Environment, filename: str) -> File | None:
    """Return a distribution file with its version, even if the version was deleted, or None."""
    query = select(File).where(File.environment_id == environment.id, File.filename == filename)
    return session.scalar(query.options(joinedload(File.version)))
