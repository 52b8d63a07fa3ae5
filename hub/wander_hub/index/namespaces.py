"""Ownership of names in the combined index: each owner has the namespace with the owner's name (PEP 752).

The owner `alice` has `alice` and `alice-*`, so two owners never offer the same name in the combined index,
and nobody can publish under another owner's name. If one owner's name is a prefix of another's (`lab` and
`lab-robots`), the older owner keeps its names. All other names are served only by their owner's index.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import Select, func, select
from sqlalchemy.orm import aliased

from wander_hub.accounts.models import Owner


def namespaces_of(project: str) -> list[str]:
    """Return the namespaces that cover a normalized name, shortest first: `a` and `a-b` for `a-b`."""
    words = project.split("-")
    return ["-".join(words[: count + 1]) for count in range(len(words))]


def namespace_owner(spaces: Sequence[Any]) -> Select[int]:
    """Return the statement for the ID of the owner of a name: the oldest owner of its namespaces."""
    candidate = aliased(Owner)
    return select(func.min(candidate.id)).where(candidate.name.in_(spaces))


def covers(namespace: str, project: str) -> bool:
    """Return whether a name is in a namespace."""
    return project == namespace or project.startswith(f"{namespace}-")


def oldest(spaces: Sequence[str], ages: Mapping[str, int]) -> str | None:
    """Return the oldest owner among namespaces, given the numbers that order owners by age."""
    return min((space for space in spaces if space in ages), key=ages.__getitem__, default=None)
