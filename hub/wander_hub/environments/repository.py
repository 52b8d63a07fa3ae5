"""Queries on environments. Every read starts from `visible`, so that no listing can forget a permission."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import ColumnElement, Select, and_, func, or_, select
from sqlalchemy.orm import Session, joinedload, selectinload
from sqlalchemy.sql.base import ExecutableOption

from wander_hub.accounts.models import Owner
from wander_hub.environments.models import Environment, File, Version
from wander_hub.environments.schemas import EnvironmentFilter, Position

_ROW_DIGITS = 18


def visible() -> Select[Environment]:
    """Return the statement every read builds on: the environments the caller may see, owner loaded."""
    return select(Environment).join(Environment.owner).options(joinedload(Environment.owner))


def environment_named(session: Session, owner: str, name: str) -> Environment | None:
    """Return one environment or package."""
    return session.scalar(visible().where(Owner.name == owner, Environment.name == name))


def lock_environment(session: Session, environment: Environment) -> None:
    """Make other changes of this environment's totals wait (PostgreSQL)."""
    session.execute(select(Environment.id).where(Environment.id == environment.id).with_for_update())


def names_of_all(session: Session) -> Sequence[tuple[str, str]]:
    """Return (owner, name) of every listed environment."""
    rows = session.execute(
        select(Owner.name, Environment.name).join(Environment.owner).where(Environment.listed)
    )
    return [(owner, name) for owner, name in rows]


def page(session: Session, wanted: EnvironmentFilter) -> Sequence[Environment]:
    """Return up to `limit + 1` environments, most recently updated first."""
    query = visible().where(Environment.listed, *_conditions(wanted))
    if wanted.cursor:
        at = Position.from_cursor(wanted.cursor)
        row = int(at.row) if at.row.isdecimal() and len(at.row) < _ROW_DIGITS else 0
        earlier = Environment.updated_at < at.moment
        query = query.where(or_(earlier, and_(Environment.updated_at == at.moment, Environment.id < row)))
    query = query.order_by(Environment.updated_at.desc(), Environment.id.desc()).limit(wanted.limit + 1)
    return session.scalars(query).all()


def count_listed(session: Session) -> int:
    """Return the number of environments."""
    return session.scalar(select(func.count()).select_from(Environment).where(Environment.listed)) or 0


def packages_of(session: Session, owner_id: int) -> Sequence[str]:
    """Return the normalised name of everything an owner's index offers."""
    query = select(Environment.name).where(Environment.owner_id == owner_id).order_by(Environment.name)
    return session.scalars(query).all()


def version_of(session: Session, environment: Environment, version: str) -> Version | None:
    """Return one version with files and uploader."""
    query = select(Version).where(Version.environment_id == environment.id, Version.version == version)
    return session.scalar(query.options(*_whole_version()))


def versions_of(session: Session, environment: Environment) -> Sequence[Version]:
    """Return every version with files and uploader, in order of upload."""
    query = select(Version).where(Version.environment_id == environment.id).order_by(Version.id)
    return session.scalars(query.options(*_whole_version())).all()


def file_named(session: Session, owner: str, name: str, filename: str) -> File | None:
    """Return one distribution file."""
    query = (
        select(File)
        .join(Environment, File.environment_id == Environment.id)
        .join(Environment.owner)
        .where(Owner.name == owner, Environment.name == name, File.filename == filename)
    )
    return session.scalar(query)


def _whole_version() -> tuple[ExecutableOption, ExecutableOption]:
    return selectinload(Version.files), joinedload(Version.uploaded_by)


def _conditions(wanted: EnvironmentFilter) -> list[ColumnElement[bool]]:
    conditions: list[ColumnElement[bool]] = [
        Environment.search_text.contains(word.lower(), autoescape=True) for word in wanted.q.split()
    ]
    if wanted.owner is not None:
        conditions.append(Owner.name == wanted.owner)
    if wanted.tag is not None:
        # search_text holds tags as ` #tag `, so one LIKE finds a whole tag on every database
        conditions.append(Environment.search_text.contains(f" #{wanted.tag.lower()} ", autoescape=True))
    return conditions
