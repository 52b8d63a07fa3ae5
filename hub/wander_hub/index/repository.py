"""Reads and writes stored pages."""

from __future__ import annotations

import hashlib

from sqlalchemy import select
from sqlalchemy.orm import Session

from wander_hub.accounts.models import Owner
from wander_hub.index.models import IndexPage


def stored_page(session: Session, owner: str, project: str) -> IndexPage | None:
    """Return the stored page of a project, or with an empty name of the owner."""
    query = select(IndexPage).join(Owner, IndexPage.owner_id == Owner.id)
    return session.scalar(query.where(Owner.name == owner, IndexPage.project == project))


def store_page(session: Session, owner_id: int, project: str, *, html: bytes, json: bytes) -> None:
    """Write or replace a page."""
    page = session.get(IndexPage, (owner_id, project))
    if page is None:
        page = IndexPage(owner_id=owner_id, project=project)
        session.add(page)
    page.html, page.html_etag = html, hashlib.sha256(html).hexdigest()[:32]
    page.json, page.json_etag = json, hashlib.sha256(json).hexdigest()[:32]
