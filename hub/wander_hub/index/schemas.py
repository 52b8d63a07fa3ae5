"""One stored page as a route sends it, and a namespace as PEP 752 describes one."""

from __future__ import annotations

from dataclasses import dataclass

from pydantic import BaseModel, Field

from wander_hub.index.negotiation import encoding_for


@dataclass(frozen=True)
class StoredPage:
    """Bytes, their media type and their strong entity tag."""

    body: bytes
    media_type: str
    etag: str
    """Without quotes, of the plain bytes."""
    gzip: bytes | None = None
    zstd: bytes | None = None

    def encoded_for(self, accept_encoding: str | None) -> tuple[bytes, str, str | None]:
        """Return the body, its entity tag and its encoding, for a client that accepts these."""
        encoding = encoding_for(accept_encoding)
        body = {"gzip": self.gzip, "zstd": self.zstd}.get(encoding or "")
        if body is None:
            return self.body, self.etag, None
        return body, etag_of(self.etag, encoding), encoding


def etag_of(etag: str, encoding: str | None) -> str:
    """Return the entity tag of a page in an encoding: strong tags tell every two bodies apart."""
    return f"{etag}-{encoding}" if encoding else etag


class NamespaceInfo(BaseModel):
    """A namespace: the owner's name, and every name that begins with it and a hyphen."""

    name: str
    owner: str
    parent: str | None = None
    """The namespace that this one lies in, of an owner who came later."""
    children: list[str] = Field(default_factory=list)
    """The namespaces of older owners that lie in this one."""
