"""What an upload carries, and what its checks read out of the file."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import BinaryIO, Literal

from wander_hub.problems import HubProblem


@dataclass(frozen=True)
class Limits:
    """Bounds that the checks hold every file to."""

    file_bytes: int
    unpacked_bytes: int
    members: int


@dataclass(frozen=True)
class Upload:
    """One file as it arrived, before anything is believed."""

    owner: str
    filename: str
    body: BinaryIO
    """Seekable."""
    size: int
    sha256: str
    fields: dict[str, str] = field(default_factory=dict)
    """First value of every text field of the form."""


@dataclass(frozen=True)
class FileName:
    """What a distribution's file name says."""

    kind: Literal["wheel", "sdist"]
    name: str
    """Normalised."""
    version: str
    stem: str
    """The `{name}-{version}` part as written, which names the folders inside."""


@dataclass(frozen=True)
class Contents:
    """What one pass over an archive's members found."""

    metadata: bytes
    """METADATA of a wheel, PKG-INFO of a source archive."""
    entry_point: str | None
    """`module:function` of the `wander.environments` group."""
    has_loader: bool
    """A top-level module defines `load_environment`."""


@dataclass(frozen=True)
class Package:
    """A checked distribution file; everything in it was read from the file itself."""

    filename: str
    kind: Literal["wheel", "sdist"]
    size: int
    sha256: str
    name: str
    """Normalised."""
    version: str
    summary: str
    requires_python: str | None
    requires_dist: list[str]
    license: str | None
    tags: list[str]
    readme: str
    readme_type: str
    entry_point: str | None
    has_loader: bool
    core_metadata: bytes | None
    """METADATA byte for byte, for wheels."""


def refused(code: str, detail: str, *, hint: str | None = None, status: int = 422) -> HubProblem:
    """Return the refusal of a file."""
    return HubProblem(status, code, detail, hint=hint)
