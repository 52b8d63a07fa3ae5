"""Posted runs: their digest, which anybody can compute again, their signatures, and their links.

The digest of a run covers everything: it is the SHA-256 of a `sha256sum` listing, sorted by name, of
`run.json`, `rollouts.jsonl` and `artifacts/NAME`. The entry of `rollouts.jsonl` is the SHA-256 over the
digests of its lines (each without its newline, 32 bytes each), in the manifest's order of examples and
indexes: so the lines that a hub gives back prove themselves, and one line can be told to belong without the
others.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path

from pydantic import Field

from wander.system.plain_files import open_file
from wander.types import Record
from wander.wire.fields import Count, Line, RunId, RunName, Sha256, Text, Word

__all__ = ["RolloutsDigest", "key_fingerprint", "line_digest", "run_digest", "signed_text"]

MANIFEST, ROLLOUTS = "run.json", "rollouts.jsonl"
MAX_CHUNK_BYTES = 64 * 1024 * 1024
"""Most plain bytes of a part of `rollouts.jsonl`, and so of a rollout; a client aims at far less."""
MAX_CHUNK_ROLLOUTS = 1000
"""Most rollouts of a part of `rollouts.jsonl`."""
DIGEST_BYTES = 32


class RolloutsDigest:
    """The digest of a run's rollouts, line by line in the manifest's order."""

    def __init__(self) -> None:
        self._whole = hashlib.sha256()
        self.lines = 0

    def add(self, digest: bytes) -> None:
        """Take the digest of the next line, as `line_digest` gives it."""
        self._whole.update(digest)
        self.lines += 1

    def hexdigest(self) -> str | None:
        """Return the digest, None for a run without rollouts."""
        return self._whole.hexdigest() if self.lines else None


def line_digest(line: bytes) -> bytes:
    """Return the SHA-256 of a rollout's line without its newline: 32 bytes."""
    return hashlib.sha256(line.rstrip(b"\n")).digest()


def file_digest(path: Path) -> str:
    """Return the SHA-256 of a file, read piece by piece."""
    with open_file(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def run_digest(manifest: bytes, rollouts_sha256: str | None, artifacts: Mapping[str, str]) -> str:
    """Return the digest of a run from its `run.json`, `RolloutsDigest` and the SHA-256 of each artifact."""
    files = {MANIFEST: hashlib.sha256(manifest).hexdigest()}
    files |= {f"artifacts/{name}": sha256 for name, sha256 in artifacts.items()}
    if rollouts_sha256 is not None:
        files[ROLLOUTS] = rollouts_sha256
    return listing_digest(files)


def listing_digest(files: Mapping[str, str]) -> str:
    """Return the SHA-256 of a `sha256sum` listing, sorted by name, of files with these digests."""
    listing = "".join(f"{sha256}  {name}\n" for name, sha256 in sorted(files.items()))
    return hashlib.sha256(listing.encode()).hexdigest()


def signed_text(run_sha256: str) -> bytes:
    """Return what a signature of a run is made over: no other protocol signs the same bytes."""
    return f"wander run sha256:{run_sha256}\n".encode()


def key_fingerprint(public_key: str) -> str:
    """Return the name of an Ed25519 public key in base64: the SHA-256 of its 32 bytes."""
    return hashlib.sha256(base64.b64decode(public_key)).hexdigest()


class RunSignature(Record, defer_build=False):
    """A user's signature of a run's digest."""

    fingerprint: str = Field(max_length=64)
    signature: str = Field(max_length=100)
    """Ed25519 over `signed_text`, base64."""


class NewRunName(Record, defer_build=False):
    """Names a run, or takes its name away with an empty one."""

    name: RunName


class SignatureInfo(RunSignature):
    """A signature on a posted run, with all that it takes to check it."""

    public_key: Word
    """Ed25519, 32 bytes, base64."""
    signed_by: Line
    key_revoked_at: datetime | None = None
    """Set when its user took the key back: then nobody should count on the signature."""


class Withdrawal(Record):
    """Why a run's rollouts are gone."""

    at: datetime
    by: Text
    reason: Text


class Checkpoint(Record):
    """Weights that a training run made: a line of `checkpoints.jsonl`."""

    step: int = Field(ge=0, lt=2**31)
    weights_sha256: str = Field(pattern=r"^[0-9a-f]{64}$")
    """As `model.weights_sha256` of an evaluation of these weights says."""


class LinkedRun(Record):
    """The other end of a link between a training run and a run with the weights that it made."""

    run_id: RunId
    step: Count
    """Of the training run, at which the weights were made."""
    weights_sha256: Sha256
    environment: Line
    model: Line
    name: RunName | None = None
    reward_mean: float | None = None
    stated_by: Line | None = None
    """Who posted that run and names the weights in it; None if the same user pushed the weights first."""


class RunLinks(Record):
    """How a run hangs together with others; only runs that the reader may see."""

    checkpoints: list[Checkpoint] = Field(default_factory=list)
    """What a training run made, by step."""
    evaluated_by: list[LinkedRun] = Field(default_factory=list)
    """Evaluations of the weights that a training run began with (step 0) and made, by step."""
    trained_by: list[LinkedRun] = Field(default_factory=list)
    """Training runs that made the weights of an evaluation."""
    continued_by: list[LinkedRun] = Field(default_factory=list)
    """Training runs that went on from weights that a training run made, by step."""
    pushed: dict[Text, Text] = Field(default_factory=dict)
    """`owner/name@revision` of those weights among them that lie on this hub, by their digest."""
    stated_by: Line | None = None
    """Who says that this run has these weights; None if the same user pushed them first."""


class NewKey(Record, defer_build=False):
    """Registers a public key."""

    name: Line = Field(min_length=1, max_length=80)
    public_key: str = Field(min_length=44, max_length=44)
    """Ed25519, 32 bytes, base64."""


class KeyInfo(Record):
    """A registered public key."""

    fingerprint: Word
    name: Line
    public_key: Word
    created_at: datetime
    revoked_at: datetime | None = None


class KeyList(Record):
    """A user's keys."""

    data: list[KeyInfo]
