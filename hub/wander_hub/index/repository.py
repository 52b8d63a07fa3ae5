"""Reads and writes stored pages."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from sqlalchemy import or_, select
from sqlalchemy.orm import Session, load_only

from wander_hub.accounts.models import Owner
from wander_hub.environments.models import Environment
from wander_hub.environments.repository import readable
from wander_hub.index.compression import compressed
from wander_hub.index.models import IndexPage
from wander_hub.index.namespaces import namespace_owner


def stored_page(session: Session, owner: str, project: str) -> IndexPage | None:
    """Return the stored page of a project that the caller may read, or with an empty name of the owner."""
    query = select(IndexPage).join(Owner, IndexPage.owner_id == Owner.id)
    query = query.outerjoin(Environment, IndexPage.environment_id == Environment.id)
    seen = or_(IndexPage.environment_id.is_(None), readable(session))
    return session.scalar(query.where(Owner.name == owner, IndexPage.project == project, seen))


def projects_of(session: Session, owner: str) -> Sequence[str]:
    """Return the projects of an owner that the caller may read and that were not deleted, by name."""
    query = select(IndexPage.project).join(Environment, IndexPage.environment_id == Environment.id)
    query = query.join(Owner, IndexPage.owner_id == Owner.id)
    query = query.where(Owner.name == owner, Environment.deleted_at.is_(None), readable(session))
    return session.scalars(query.order_by(IndexPage.project)).all()


def public_projects_of(session: Session, owner_id: int) -> Sequence[str]:
    """Return what everybody may read of an owner's list, whoever asks."""
    query = select(IndexPage.project).join(Environment, IndexPage.environment_id == Environment.id)
    public = (Environment.deleted_at.is_(None), Environment.private.is_(False))
    query = query.where(IndexPage.owner_id == owner_id, *public)
    return session.scalars(query.order_by(IndexPage.project)).all()


def owner_of_namespaces(session: Session, spaces: Sequence[str]) -> str | None:
    """Return the name of the oldest owner of one of these names."""
    found = namespace_owner(spaces).scalar_subquery()
    return session.scalar(select(Owner.name).where(Owner.id == found))


def owner_ages(session: Session) -> dict[str, int]:
    """Return every owner's name with its number, which orders owners by age."""
    return {name: number for name, number in session.execute(select(Owner.name, Owner.id))}


def projects_in_namespaces(session: Session) -> Sequence[tuple[str, str]]:
    """Return name and owner of what the caller may see and what begins with its owner's name."""
    query = select(IndexPage.project, Owner.name).join(Owner, IndexPage.owner_id == Owner.id)
    query = query.join(Environment, IndexPage.environment_id == Environment.id)
    own = or_(IndexPage.project == Owner.name, IndexPage.project.startswith(Owner.name + "-"))
    query = query.where(own, Environment.deleted_at.is_(None), readable(session)).order_by(IndexPage.project)
    return [(project, owner) for project, owner in session.execute(query)]


def has_pages(session: Session, owner_id: int) -> bool:
    """Tell whether an owner ever published anything."""
    return (
        session.scalar(select(IndexPage.project).where(IndexPage.owner_id == owner_id).limit(1)) is not None
    )


def pages_of(session: Session, environment_id: int, *, whole: bool = True) -> Sequence[IndexPage]:
    """Return every page of an environment, one a name that its files ever had; `whole` with their bodies."""
    query = select(IndexPage).where(IndexPage.environment_id == environment_id)
    if not whole:
        query = query.options(load_only(IndexPage.environment_id))
    return session.scalars(query).all()


def store_page(
    session: Session, owner_id: int, project: str, environment_id: int | None, *, html: bytes, json: bytes
) -> bool:
    """Write or replace a page; return whether it is a new one."""
    page = session.get(IndexPage, (owner_id, project))
    is_new = page is None
    if page is None:
        page = IndexPage(owner_id=owner_id, project=project)
        session.add(page)
    page.environment_id = environment_id
    page.html, page.html_etag = html, etag_of(html)
    page.json, page.json_etag = json, etag_of(json)
    page.html_gzip, page.html_zstd = compressed(html)
    page.json_gzip, page.json_zstd = compressed(json)
    return is_new


def etag_of(body: bytes) -> str:
    """Return the entity tag of a page's bytes."""
    return hashlib.sha256(body).hexdigest()[:32]
