"""The place of a project, a page as it is sent, and a namespace as PEP 752 describes it."""

from __future__ import annotations

from typing import Any, NamedTuple

from pydantic import BaseModel, Field

from wander_hub.http.problems import HubProblem
from wander_hub.index.namespaces import namespaces_of


class IndexedProject(NamedTuple):
    """A project of an owner's index, or of the combined index if `owner` is None."""

    owner: str | None
    project: str
    """Normalized name; empty for the owner's project list."""

    @property
    def shape(self) -> int:
        """Return the shape of the query: the number of owners that may have the name, 0 for a given owner."""
        return 0 if self.owner is not None else self.project.count("-") + 1

    def values(self) -> dict[str, str]:
        """Return the parameters of the query."""
        if self.owner is not None:
            return {"project": self.project, "owner": self.owner}
        spaces = {f"space{number}": name for number, name in enumerate(namespaces_of(self.project))}
        return {"project": self.project, **spaces}


class RenderedPage(NamedTuple):
    """A page as it is sent."""

    body: bytes
    media_type: str
    etag: str
    """Strong entity tag without quotes, made from the plain bytes and the encoding."""
    encoding: str | None = None

    @classmethod
    def of(cls, row: tuple[Any, ...], media_type: str, encoding: str | None) -> RenderedPage:
        """Return a page from a row of `page_query`."""
        body, etag, encoded = row
        return (
            cls(body, media_type, f"{etag}-{encoding}", encoding) if encoded else cls(body, media_type, etag)
        )


class Absent(NamedTuple):
    """A name that the hub does not have, or that it hides from the caller."""

    refusal: HubProblem
    """Response if the index behind the hub does not have the name either."""
    hidden: bool
    """Whether the hub has the name."""


class NamespaceInfo(BaseModel):
    """A namespace: the owner's name, and every name that starts with it and a hyphen."""

    name: str
    owner: str
    parent: str | None = None
    """Namespace of an owner that contains this namespace."""
    children: list[str] = Field(default_factory=list)
    """Namespaces of other owners inside this namespace."""
