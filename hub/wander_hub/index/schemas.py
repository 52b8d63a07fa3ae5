"""A project's place, a page as it is sent, and a namespace as PEP 752 describes one."""

from __future__ import annotations

from typing import Any, NamedTuple

from pydantic import BaseModel, Field

from wander_hub.index.namespaces import namespaces_of


class IndexedProject(NamedTuple):
    """A project of an owner's index, or with no owner of the combined one."""

    owner: str | None
    project: str
    """Normalised; empty for the owner's list of projects."""

    @property
    def shape(self) -> int:
        """Return what its query depends on: how many owners may have the name, 0 for a given one."""
        return 0 if self.owner is not None else self.project.count("-") + 1

    def values(self) -> dict[str, str]:
        """Return the values of its query."""
        if self.owner is not None:
            return {"project": self.project, "owner": self.owner}
        spaces = {f"space{number}": name for number, name in enumerate(namespaces_of(self.project))}
        return {"project": self.project, **spaces}


class RenderedPage(NamedTuple):
    """The bytes of a page as they are sent."""

    body: bytes
    media_type: str
    etag: str
    """Strong and without quotes: that of the plain bytes, and their encoding."""
    encoding: str | None = None

    @classmethod
    def of(cls, row: tuple[Any, ...], media_type: str, encoding: str | None) -> RenderedPage:
        """Return a page from a row of `page_query`."""
        body, etag, encoded = row
        return (
            cls(body, media_type, f"{etag}-{encoding}", encoding) if encoded else cls(body, media_type, etag)
        )


class NamespaceInfo(BaseModel):
    """A namespace: the owner's name, and every name that begins with it and a hyphen."""

    name: str
    owner: str
    parent: str | None = None
    """The namespace that this one lies in, of an owner who came later."""
    children: list[str] = Field(default_factory=list)
    """The namespaces of older owners that lie in this one."""
