"""Queries for pages and the files on them, and the read permissions behind every address of the index."""

from __future__ import annotations

import gzip
import hashlib
from collections.abc import Iterable, Sequence
from typing import Any

import zstandard
from sqlalchemy import BindParameter, ColumnElement, Select, bindparam, func, null, or_, select
from sqlalchemy.orm import Session, load_only

from wander_hub.accounts.models import Owner
from wander_hub.environments.models import Environment, File, FormerName, Version
from wander_hub.environments.repository import readable, readable_by
from wander_hub.identity import Identity
from wander_hub.index.models import IndexPage, PrivateName
from wander_hub.index.namespaces import covers, namespace_owner, namespaces_of
from wander_hub.index.negotiation import JSON_V1
from wander_hub.index.schemas import IndexedProject

_AT_ONCE = 500
_SMALL = 1024
"""Smaller pages fit into one network packet without compression."""
_GZIP_LEVEL, _ZSTD_LEVEL = 2, 1
"""A page is mostly digests: higher levels double the time of every upload to save a tenth of the size."""


def page_query(
    place: IndexedProject, media_type: str, encoding: str | None, reader: Identity | None = None
) -> Select[*tuple[Any, ...]]:
    """Return the query for an index page that the reader may see.

    Its columns are the body, the entity tag of the uncompressed body, and whether the body is compressed.
    For an owner without a project, the query finds the list of the owner's public projects. It does not find
    an empty list, because the response to such a request depends on the caller's rights.
    """
    name = "json" if media_type == JSON_V1 else "html"
    plain, etag = getattr(IndexPage, name), getattr(IndexPage, f"{name}_etag")
    encoded = getattr(IndexPage, f"{name}_{encoding}") if encoding else null()
    shown = func.coalesce(encoded, plain) if encoding else plain
    query = select(shown, etag, encoded.is_not(None)).join(Owner, IndexPage.owner_id == Owner.id)
    query = query.where(IndexPage.project == bindparam("project"), _has_owner(place))
    if not place.project:
        return query.where(IndexPage.environment_id.is_(None), IndexPage.json != bindparam("nothing"))
    query = query.join(Environment, IndexPage.environment_id == Environment.id)
    return query.where(readable_by(reader))


def file_query(place: IndexedProject) -> Select[*tuple[Any, ...]]:
    """Return the query for a public file: digest, size, metadata, metadata digest and version."""
    described = (File.sha256, File.size, File.core_metadata, File.core_metadata_sha256, File.version_id)
    query = select(*described).join(File.version)
    query = query.join(Environment, File.environment_id == Environment.id).join(Environment.owner)
    named = (Environment.name == bindparam("project"), File.filename == bindparam("filename"))
    return query.where(*named, _has_owner(place), *downloadable())


def downloadable() -> tuple[ColumnElement[bool], ...]:
    """Return the conditions on environment and version under which a file is public."""
    present = (Version.deleted_at.is_(None), Environment.deleted_at.is_(None))
    return readable_by(None), *present, Environment.quarantine_reason.is_(None)


def _has_owner(place: IndexedProject) -> ColumnElement[bool]:
    if not place.shape:
        return Owner.name == bindparam("owner")
    spaces: list[BindParameter[str]] = [bindparam(f"space{number}") for number in range(place.shape)]
    return Owner.id == namespace_owner(spaces).scalar_subquery()


def projects_of(session: Session, owner: str) -> Sequence[str]:
    """Return the projects of an owner that the caller may read and that are not deleted, by name."""
    query = select(IndexPage.project).join(Environment, IndexPage.environment_id == Environment.id)
    query = query.join(Owner, IndexPage.owner_id == Owner.id)
    query = query.where(Owner.name == owner, Environment.deleted_at.is_(None), readable(session))
    return session.scalars(query.order_by(IndexPage.project)).all()


def public_projects_of(session: Session, owner_id: int) -> Sequence[str]:
    """Return the public projects of an owner, also to readers who may see more."""
    query = select(IndexPage.project).join(Environment, IndexPage.environment_id == Environment.id)
    query = query.where(IndexPage.owner_id == owner_id, Environment.deleted_at.is_(None), readable_by(None))
    return session.scalars(query.order_by(IndexPage.project)).all()


def owner_of_namespaces(session: Session, spaces: Sequence[str]) -> str | None:
    """Return the name of the oldest owner with one of these names."""
    owner_id = namespace_owner(spaces).scalar_subquery()
    return session.scalar(select(Owner.name).where(Owner.id == owner_id))


def owner_ages(session: Session, named: Iterable[str]) -> dict[str, int]:
    """Return the owners with these names and their numbers, which order owners by age."""
    ages, wanted = dict[str, int](), sorted(named)
    for start in range(0, len(wanted), _AT_ONCE):
        query = select(Owner.name, Owner.id).where(Owner.name.in_(wanted[start : start + _AT_ONCE]))
        ages |= {name: number for name, number in session.execute(query)}
    return ages


def projects_in_namespaces(session: Session, around: str | None = None) -> Sequence[tuple[str, str]]:
    """Return the name and owner of each project that the caller may see and that starts with its owner's
    name.

    `around` limits the owners to one namespace and the namespaces above and below it.
    """
    query = select(IndexPage.project, Owner.name).join(Owner, IndexPage.owner_id == Owner.id)
    query = query.join(Environment, IndexPage.environment_id == Environment.id)
    query = query.where(IndexPage.in_namespace)  # a partial database index covers these few rows
    if around is not None:
        query = query.where(Owner.name.in_(namespaces_of(around)) | Owner.name.startswith(f"{around}-"))
    query = query.where(Environment.deleted_at.is_(None), readable(session)).order_by(IndexPage.project)
    return [(project, owner) for project, owner in session.execute(query)]


def holds(session: Session, owner: str, project: str) -> bool:
    """Return whether an owner has or ever had a name, even a hidden one."""
    page = select(IndexPage.project).join(Owner, IndexPage.owner_id == Owner.id)
    left = select(FormerName.name).join(Owner, FormerName.owner_id == Owner.id)
    held = or_(
        page.where(Owner.name == owner, IndexPage.project == project).exists(),
        left.where(Owner.name == owner, FormerName.name == project).exists(),
        _private_name(owner, project).exists(),
    )
    return bool(session.scalar(select(held)))  # one query in any case, so its time reveals nothing


def note_private(session: Session, owner_id: int, projects: Iterable[str]) -> None:
    """Record that these names of an owner have been private."""
    for project in projects:
        if session.get(PrivateName, (owner_id, project)) is None:
            session.add(PrivateName(owner_id=owner_id, project=project))


def was_private(session: Session, owner: str, project: str) -> bool:
    """Return whether a name of an owner is or ever was private."""
    return session.scalar(_private_name(owner, project).limit(1)) is not None


def _private_name(owner: str, project: str) -> Select[*tuple[Any, ...]]:
    query = select(PrivateName.project).join(Owner, PrivateName.owner_id == Owner.id)
    return query.where(Owner.name == owner, PrivateName.project == project)


def is_closed_to(session: Session, owner: str, reader: Identity | None) -> bool:
    """Return whether an owner has or had names that the reader may not see, unless the reader is a member.

    A role on a single environment does not make its holder a member, nor does a token limited to part of the
    owner.
    """
    shown = select(IndexPage.project).join(Environment, IndexPage.environment_id == Environment.id)
    shown = shown.where(IndexPage.owner_id == PrivateName.owner_id, IndexPage.project == PrivateName.project)
    left = select(FormerName.name).join(Environment, FormerName.environment_id == Environment.id)
    left = left.where(FormerName.owner_id == PrivateName.owner_id, FormerName.name == PrivateName.project)
    seen = readable(session)
    hidden = select(PrivateName.owner_id).join(Owner, PrivateName.owner_id == Owner.id)
    hidden = hidden.where(~shown.where(seen).exists(), ~left.where(seen).exists())
    owner_id = session.scalar(hidden.where(Owner.name == owner).limit(1))
    if owner_id is None:
        return False
    return reader is None or owner_id not in reader.roles or not reader.covers("read", owner_id, None)


def has_pages(session: Session, owner_id: int) -> bool:
    """Return whether an owner has ever published anything."""
    return (
        session.scalar(select(IndexPage.project).where(IndexPage.owner_id == owner_id).limit(1)) is not None
    )


def pages_of(session: Session, environment_id: int, *, whole: bool = True) -> Sequence[IndexPage]:
    """Return the pages of an environment, one for each name its files ever had; `whole` loads the bodies."""
    query = select(IndexPage).where(IndexPage.environment_id == environment_id)
    if not whole:
        query = query.options(load_only(IndexPage.environment_id))
    return session.scalars(query).all()


def store_page(
    session: Session, owner_id: int, project: str, environment_id: int | None, *, html: bytes, json: bytes
) -> bool:
    """Write or replace a page; return whether it is new."""
    page = session.get(IndexPage, (owner_id, project))
    is_new = page is None
    if page is None:
        page = IndexPage(owner_id=owner_id, project=project)
        session.add(page)
    page.in_namespace = covers(session.get_one(Owner, owner_id).name, project)
    page.environment_id = environment_id
    page.html, page.html_etag = html, etag_of(html)
    page.json, page.json_etag = json, etag_of(json)
    page.html_gzip, page.html_zstd = compress(html)
    page.json_gzip, page.json_zstd = compress(json)
    return is_new


def etag_of(body: bytes) -> str:
    """Return the entity tag of a page."""
    return hashlib.sha256(body).hexdigest()[:32]


def compress(body: bytes) -> tuple[bytes | None, bytes | None]:
    """Return a page compressed with gzip and zstd, reproducibly; None for a small page."""
    if len(body) < _SMALL:
        return None, None
    zstd = zstandard.ZstdCompressor(level=_ZSTD_LEVEL).compress(body)
    return gzip.compress(body, _GZIP_LEVEL, mtime=0), zstd
