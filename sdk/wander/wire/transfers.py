"""Requests and answers of a transfer, which sends a version, a model or a run from a client to a hub.

The client first announces all files with their sizes and digests. It then sends the files in parts, in any
order, each with its offset and digest. The last request finishes the transfer and makes all files visible
together, or none of them.
Every request can be repeated safely.
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
from wander.wire.postings import RunSignature
from wander.wire.untrusted_text import MANIFEST

FileKind = Literal["wheel", "sdist", "lock"]
TransferKind = Literal["versions", "models", "runs"]
MOST_ATTESTATIONS = 10
"""Maximum number of attestations of a file."""
DATA_FOLDERS = ("share", "etc", "include")
"""Folders of a virtual environment into which a package may install data files."""
RESERVED_COMMAND = re.compile(
    r"(python|pypy|pip|pydoc)[dtw]?[0-9.]*[dtw]?(-config)?(\.[a-z0-9]+)?|(de)?activate.*", re.IGNORECASE
)
"""Pattern of the commands that every virtual environment contains, and of names easily confused with them."""
_SHA256 = r"^[0-9a-f]{64}$"


class UploadFile(Body):
    """A file that the client is about to send."""

    filename: str = Field(min_length=1, max_length=255)
    kind: FileKind
    size: int = Field(ge=1, lt=2**40)
    """Size in bytes."""
    sha256: str = Field(pattern=_SHA256)
    attestations: list[Values] = Field(default_factory=list, max_length=MOST_ATTESTATIONS)
    """PEP 740 attestations; the hub keeps those of trusted publishers that it can verify."""


class NewUpload(Body):
    """The announcement of all files of a version that this transfer sends."""

    owner: str = Field(min_length=1, max_length=39)
    name: str = Field(min_length=1, max_length=200)
    version: str = Field(min_length=1, max_length=100)
    files: list[UploadFile] = Field(min_length=1, max_length=32)
    private: bool | None = None
    """Whether a new environment is private; None uses the owner's default."""
    internal: bool = Field(default=False, exclude_if=lambda internal: not internal)
    """Whether every signed-in user sees a new environment."""
    source_sha256: str | None = Field(default=None, pattern=_SHA256)
    """Tree digest of the source archive; the hub rejects an archive with another digest."""
    check: CheckSummary | None = None
    """Results of `wander check`, which the hub shows as the publisher's statement."""


class RunFile(Body):
    """A file of a run that the client is about to send: `rollouts.jsonl` or an artifact."""

    filename: str = Field(min_length=1, max_length=100)
    size: int = Field(ge=0, lt=2**40)
    """Size in bytes; for rollouts, the size of the uncompressed lines in the manifest's order."""
    sha256: str = Field(pattern=_SHA256)
    """SHA-256 of the file; for rollouts, the digest of their lines
    (`wander.wire.postings.RolloutsDigest`)."""


class NewRun(Body):
    """The announcement of a run: its manifest, which names its environment, and its files."""

    manifest: str = Field(max_length=MANIFEST.most_bytes)
    """Content of `run.json`, byte for byte."""
    files: list[RunFile] = Field(default_factory=list, max_length=1000)
    private: bool = False
    """Whether only the submitter and users with a role on the environment see the run."""
    name: RunName = ""
    """Name of the run on the hub; empty for no name."""
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
    """SHA-256 of the part's uncompressed bytes."""


class TransferInfo(Record):
    """A transfer as the hub shows it."""

    id: Word
    kind: TransferKind
    files: list[TransferFile]
    parts: list[TransferredPart]
    part_bytes: int = Field(ge=1024, lt=2**63)
    """Maximum size of a part in bytes."""
    finished: bool = False
    """Whether the hub already has exactly these files. The client then only needs to finish the transfer."""
    expires_at: datetime
    """Time when the hub deletes an unfinished transfer and its parts; each new part postpones it."""
