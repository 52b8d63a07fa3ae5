"""Whose a name is in the combined index: an owner has the namespace of its own name (PEP 752).

The owner `alice` has `alice` and `alice-*`, so two owners never offer one name there, and nobody can slip a
package under somebody else's. Where the names of two owners begin alike (`lab` and `lab-robots`), the older
keeps what it had when the younger came. Everything else is served by the index of its owner alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import Select, func, select
from sqlalchemy.orm import aliased

from wander_hub.accounts.models import Owner


def namespaces_of(project: str) -> list[str]:
    """Return the namespaces that cover a normalised name, shortest first: `a` and `a-b` for `a-b`."""
    words = project.split("-")
    return ["-".join(words[: count + 1]) for count in range(len(words))]


def namespace_owner(spaces: Sequence[Any]) -> Select[int]:
    """Return the statement for the id of who has a name: the oldest of the owners of its namespaces."""
    candidate = aliased(Owner)
    return select(func.min(candidate.id)).where(candidate.name.in_(spaces))


def covers(namespace: str, project: str) -> bool:
    """Tell whether a name lies in a namespace."""
    return project == namespace or project.startswith(f"{namespace}-")


def oldest(spaces: Sequence[str], ages: Mapping[str, int]) -> str | None:
    """Return the oldest owner among namespaces, given what orders owners by age."""
    return min((one for one in spaces if one in ages), key=ages.__getitem__, default=None)
