"""Staged uploads: what passes between a client and a hub while the files of one version are sent.

A session names all files with their sizes and digests before the first byte is sent. Chunks follow, each at
the offset that the hub has reached; publishing makes all files visible together, or none. The shapes follow
the draft of PEP 694.
"""

from __future__ import annotations

import re
from datetime import datetime
from typing import Literal

from pydantic import Field

from wander.types import Record
from wander.wire import CheckSummary
from wander.wire.changes import Body
from wander.wire.fields import Address, Count, FileName, OwnerName, ProjectName, Sha256, Values, Word

FileKind = Literal["wheel", "sdist", "lock"]
StagedKind = Literal["wheel", "sdist", "lock", "model"]
UploadStatus = Literal["open", "published", "canceled"]
"""In the words of PEP 694."""
OFFSET_HEADER = "Upload-Offset"
"""Where a chunk begins, and how far the hub has got."""
MOST_ATTESTATIONS = 10
"""Of one file."""
DATA_FOLDERS = ("share", "etc", "include")
"""Folders of a virtual environment in which a package may put files that are neither modules nor commands."""
RESERVED_COMMAND = re.compile(
    r"(python|pypy|pip|pydoc)[dtw]?[0-9.]*[dtw]?(-config)?(\.[a-z0-9]+)?|(de)?activate.*", re.IGNORECASE
)
"""Names of the commands that a virtual environment has of its own, or that would be taken for one of them."""
_SHA256 = r"^[0-9a-f]{64}$"


class UploadFile(Body):
    """One file that is going to be sent."""

    filename: str = Field(min_length=1, max_length=255)
    kind: FileKind
    size: int = Field(ge=1, lt=2**40)
    """In bytes."""
    sha256: str = Field(pattern=_SHA256)
    attestations: list[Values] = Field(default_factory=list, max_length=MOST_ATTESTATIONS)
    """Who signed it (PEP 740); the hub takes those that it can verify, of trusted publishers."""


class NewUpload(Body):
    """All files that one version is to have from this session."""

    owner: str = Field(min_length=1, max_length=39)
    name: str = Field(min_length=1, max_length=200)
    version: str = Field(min_length=1, max_length=100)
    files: list[UploadFile] = Field(min_length=1, max_length=32)
    private: bool | None = None
    """Of an environment that is new; None leaves it to the owner's settings."""
    internal: bool = Field(default=False, exclude_if=lambda internal: not internal)
    """Of an environment that is new: for everybody who is signed in."""
    source_sha256: str | None = Field(default=None, pattern=_SHA256)
    """Tree digest of the source archive; the hub refuses an archive of another one."""
    check: CheckSummary | None = None
    """What `wander check` found; shown as the publisher's word."""


class UploadedFile(Record):
    """How far a file has been sent."""

    filename: FileName
    kind: StagedKind
    size: Count
    sha256: Sha256
    offset: Count
    """Bytes that the hub has; the next chunk begins here."""
    published: bool
    """True when the version had the file before; nothing of it is to be sent."""
    url: Address
    """Where chunks are sent to."""


class UploadSession(Record):
    """A session as the hub tells of it."""

    id: Word
    owner: OwnerName
    name: ProjectName
    version: Word
    """Of a model its revision."""
    status: UploadStatus
    files: list[UploadedFile]
    chunk_bytes: int = Field(ge=1024, lt=2**63)
    """The longest chunk that the hub takes."""
    expires_at: datetime
    """Each chunk puts it off; what was sent until then is dropped."""
