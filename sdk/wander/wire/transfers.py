"""Requests and answers of a transfer, which sends a version, a model or a run from a client to a hub.

The client first announces all files with their sizes and digests. It then sends the files in parts, in any
order, each with its offset and digest. The last request finishes the transfer and makes all files visible
together, or none of them.
Every request can be repeated safely.
"""

from __future__ import annotations

import hashlib
import re
import secrets
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any, Literal

from pydantic import Field, FiniteFloat

from wander.types import Record, canonical_json
from wander.wire import CheckSummary
from wander.wire.changes import Body
from wander.wire.environments import VerificationLevel
from wander.wire.fields import (
    Address,
    Count,
    FileName,
    Line,
    ProjectName,
    Release,
    RunId,
    RunName,
    Sha256,
    Text,
    Values,
    Word,
)
from wander.wire.postings import RunSignature
from wander.wire.untrusted_text import MANIFEST, SEALED_SET, RefusedText, read_json
from wander.wire.verification import JobState

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


# The file of a sealed task set is JSON Lines. The first line is an object with a random `salt`, and every
# other line is a row in canonical JSON. The commitment is the SHA-256 of the file. Without the file, the salt
# keeps anyone from guessing rows by their digest. With the file, `sha256sum` shows whether a row was changed.
_SALT = re.compile(r"[0-9a-f]{64}")
MOST_EXAMPLES = 10_000
"""Maximum number of examples in a sealed set."""


def make_set(rows: Iterable[Mapping[str, Any]]) -> bytes:
    """Return the file of a new set with a random salt. Raises `ValueError` for a row that is not JSON."""
    lines = [{"salt": secrets.token_hex(32)}, *map(dict, rows)]
    return "".join(canonical_json(line) + "\n" for line in lines).encode()


def commitment_of(content: bytes) -> str:
    """Return the commitment to the file of a set."""
    return hashlib.sha256(content).hexdigest()


def read_rows(content: bytes) -> list[dict[str, Any]]:
    """Return the objects in a JSON Lines text. Raises `RefusedText`, which does not quote the text."""
    SEALED_SET.check_size(len(content))
    rows: list[dict[str, Any]] = []
    for number, line in enumerate(content.splitlines(), start=1):
        if not line.strip():
            continue
        try:
            row = read_json(line, SEALED_SET)
        except RefusedText as error:
            raise RefusedText(
                "it is not valid JSON in UTF-8", place=f"line {number}", too_large=error.too_large
            ) from None
        if not isinstance(row, dict):
            raise RefusedText("it is not a JSON object", place=f"line {number}")
        if len(rows) > MOST_EXAMPLES:
            raise RefusedText(f"it has over {MOST_EXAMPLES:,} examples", too_large=True)
        rows.append(row)
    return rows


def read_set(content: bytes) -> list[dict[str, Any]]:
    """Return the rows in the file of a set. Raises `RefusedText`, which does not quote the file."""
    head, *rows = read_rows(content) or [{}]
    if head.keys() != {"salt"} or not _SALT.fullmatch(str(head["salt"])):
        raise RefusedText("its first line is not an object with a `salt` of 64 hexadecimal digits")
    if not rows:
        raise RefusedText("it has no examples")
    if "".join(canonical_json(line) + "\n" for line in (head, *rows)).encode() != content:
        raise RefusedText("its lines are not in canonical JSON")
    return rows


class NewSealedPlay(Body):
    """Request to play a sealed set with a model."""

    model: Line = Field(min_length=1, max_length=300)
    """Model of the endpoint; without an endpoint, `owner/name[@revision]` of a model on the hub."""
    endpoint: Address | None = Field(default=None, min_length=1, max_length=1000)
    """Base URL of an OpenAI-compatible endpoint; None lets the hub run one of its models."""
    key: Word | None = Field(default=None, repr=False)
    """Key of the endpoint, which the hub uses for this play and does not store."""
    rollouts: int = Field(default=1, ge=1, le=64)
    """Number of rollouts per example."""
    temperature: float | None = Field(default=None, ge=0, le=10)
    max_tokens: int | None = Field(default=None, ge=1, le=1_000_000)


class SealOpening(Body):
    """Request to open a sealed set earlier than planned."""

    opens_at: datetime | None = None
    """New date, which must be before the current date; None opens the set now."""


class SealedPlay(Record):
    """A play of a sealed set. Until the set is opened, the aggregates are everything that anyone can see."""

    id: Count
    model: Line
    host: Line | None
    """Host that received the questions; None if the hub ran the model itself."""
    submitted_by: Line
    created_at: datetime
    finished_at: datetime | None = None
    state: JobState
    error: Line | None = None
    """Reason why the play failed."""
    level: Literal["sealed"] | VerificationLevel | None = None
    """`sealed` until the set is opened, then the level of the run; None without a result."""
    rollouts: Count = 0
    failed: Count = 0
    reward_mean: FiniteFloat | None = None
    reward_low: FiniteFloat | None = None
    reward_high: FiniteFloat | None = None
    """Upper end of the 95% confidence interval of the mean reward."""
    run_id: RunId | None = None
    """Run with the rollouts, once the set is opened."""


class SealedSetInfo(Record):
    """A sealed task set as the hub shows it."""

    commitment: Sha256
    """SHA-256 of the set's file."""
    owner: Line
    environment: ProjectName
    version: Release
    state: Literal["checking", "refused", "sealed", "opening", "opened"]
    error: Text | None = None
    """Reason why the environment refused the set, or why it could not be opened yet."""
    examples: Count
    created_by: Line
    created_at: datetime
    opens_at: datetime
    opened_at: datetime | None = None
    exposures: Count
    """Number of plays in which the questions were sent to an endpoint."""
    plays: list[SealedPlay]
    """Plays, best mean reward first."""
    url: Address


class SealedSetList(Record):
    """The sealed sets of an environment, newest first."""

    data: list[SealedSetInfo]
