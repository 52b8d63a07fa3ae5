"""Pages of a package index as the client reads them (PEP 691 and 700)."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field

from wander.wire.fields import Address, Count, FileName, Line, ProjectName, Sha256, Text


class _Read(BaseModel):
    """An index may say more than is read here."""

    model_config = ConfigDict(extra="ignore", populate_by_name=True)


class FileHashes(_Read):
    """The digests of a file."""

    sha256: Sha256 | None = None


class IndexFile(_Read):
    """A file of a project."""

    filename: FileName
    url: Address
    """Absolute, or relative to the page."""
    hashes: FileHashes = FileHashes()
    size: Count | None = None
    """Bytes."""
    upload_time: Line | None = Field(default=None, alias="upload-time")
    requires_python: Line | None = Field(default=None, alias="requires-python")
    yanked: bool | Text = False
    """True or a reason for a file that installers pass over."""
    core_metadata: bool | FileHashes = Field(default=False, alias="core-metadata")
    """Whether the metadata of a wheel can be had by itself, with its digest."""


class IndexMeta(_Read):
    """What a page says of itself."""

    upstream: bool = Field(default=False, alias="_upstream")
    """Whether a hub passed the page on from the index behind it."""


class PassedPage(_Read):
    """What tells a page of the hub from one that it passed on."""

    meta: IndexMeta = IndexMeta()


class IndexPage(_Read):
    """The files of one project."""

    files: list[IndexFile]


class IndexProject(_Read):
    """A project of a list."""

    name: ProjectName


class IndexRoot(_Read):
    """The projects of an index."""

    projects: list[IndexProject]
