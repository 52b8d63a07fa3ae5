"""Transfers: what passes between a client and a hub while a version, a model or a run is sent.

A client announces all files with their sizes and digests before the first byte. Parts follow in any order,
each under its offset and digest, and as often as it takes. Finishing makes everything visible together, or
nothing.
Every request is harmless when it is repeated.
"""

from __future__ import annotations

import re
from datetime import datetime
from typing import Literal

from pydantic import Field

from wander.types import Record
from wander.wire import CheckSummary
from wander.wire.changes import Body
from wander.wire.fields import Count, FileName, RunName, Sha256, Values, Word
from wander.wire.gate import MANIFEST
from wander.wire.postings import RunSignature

FileKind = Literal["wheel", "sdist", "lock"]
TransferKind = Literal["versions", "models", "runs"]
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


class RunFile(Body):
    """A file of a run that is going to be sent: `rollouts.jsonl`, or an artifact."""

    filename: str = Field(min_length=1, max_length=100)
    size: int = Field(ge=0, lt=2**40)
    """In bytes; of the plain lines of rollouts in the manifest's order."""
    sha256: str = Field(pattern=_SHA256)
    """Of the rollouts, the digest of their lines (`wander.wire.postings.RolloutsDigest`)."""


class NewRun(Body):
    """All that a run has, which says where it belongs."""

    manifest: str = Field(max_length=MANIFEST.most_bytes)
    """`run.json`, byte for byte."""
    files: list[RunFile] = Field(default_factory=list, max_length=1000)
    private: bool = False
    """Only for its submitter and everyone who has a role there."""
    name: RunName = ""
    """What the run is called on the hub; empty for no name."""
    signature: RunSignature | None = None


class TransferFile(Record):
    """A file of a transfer."""

    filename: FileName
    size: Count
    sha256: Sha256
    there: bool = False
    """Whether the hub has the file already, so that it need not be sent."""


class TransferredPart(Record):
    """A part of a file that the hub has."""

    filename: FileName
    offset: Count
    sha256: Sha256
    """Of its plain bytes."""


class TransferInfo(Record):
    """A transfer as the hub shows it."""

    id: Word
    kind: TransferKind
    files: list[TransferFile]
    parts: list[TransferredPart]
    part_bytes: int = Field(ge=1024, lt=2**63)
    """The longest part that the hub takes."""
    finished: bool = False
    """The hub has the very same already: only finishing is left, which returns it."""
    expires_at: datetime
    """Each part puts it off; what was sent until then is dropped."""
