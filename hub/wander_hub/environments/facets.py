"""Facets of a search, with the number of results for each kind, tag, license and check status."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from sqlalchemy import select
from sqlalchemy.orm import Session

from wander_hub.environments import browse, search
from wander_hub.environments.models import Environment
from wander_hub.environments.repository import readable
from wander_hub.environments.schemas import EnvironmentFilter

FACETS = ("kind", "tag", "license", "deterministic", "checked")


def count(session: Session, wanted: EnvironmentFilter) -> dict[str, Counter[str]]:
    """Return the number of results for each value of each facet, ignoring the facet's own filter.

    A text search counts its best results (`search.MOST`). Otherwise all environments are counted, or none if
    there are more than `browse.COUNTED`, so the cost of a page is limited.
    """
    base = replace(wanted, kind=None, tag=None, license=None, deterministic=None, checked=None, cursor=None)
    query = select(Environment.marks).where(Environment.listed, readable(session))
    counts = {name: Counter[str]() for name in FACETS}
    owner_id = browse.owner_id_of(session, wanted)
    if owner_id is not None:
        query = query.where(Environment.owner_id == owner_id)
    if base.q.strip():
        ids = browse.find_ids(session, base, owner_id, search.MOST)
        query = query.where(Environment.id.in_(ids))
    rows = session.scalars(query.limit(browse.COUNTED + 1)).all()
    if len(rows) > browse.COUNTED:
        return counts
    filters = {_facet(mark)[0]: mark for mark in wanted.marks()}
    for row in rows:
        marks = row.split()
        lacking = {name for name, mark in filters.items() if mark not in marks}
        for name, value in map(_facet, marks):
            if name in counts and lacking <= {name}:
                counts[name][value] += 1
    return counts


def _facet(mark: str) -> tuple[str, str]:
    """Return the facet and the value of a mark."""
    if mark.startswith("#"):
        return "tag", mark[1:]
    name, _, value = mark.partition(":")
    return name, value
