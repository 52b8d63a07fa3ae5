"""Posted runs: their digest, which anyone can recompute, their signatures, and their links to other runs.

The digest of a run covers all of its files. It is the SHA-256 of a `sha256sum` listing, sorted by name, of
`run.json`, `rollouts.jsonl` and `artifacts/NAME`. The entry of `rollouts.jsonl` is the SHA-256 over the
digests of its lines (32 bytes each, computed without the newline), in the manifest's order of examples and
indexes. A reader who downloads the lines from a hub can therefore verify them, and needs only the other
lines' digests to verify a single line.
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
"""Maximum uncompressed size of a part of `rollouts.jsonl`, and so of a rollout. Clients send smaller
parts."""
MAX_CHUNK_ROLLOUTS = 1000
"""Maximum number of rollouts in a part of `rollouts.jsonl`."""
DIGEST_BYTES = 32


class RolloutsDigest:
    """The digest of a run's rollouts, line by line in the manifest's order."""

    def __init__(self) -> None:
        self._whole = hashlib.sha256()
        self.lines = 0

    def add(self, digest: bytes) -> None:
        """Add the digest of the next line, as returned by `line_digest`."""
        self._whole.update(digest)
        self.lines += 1

    def hexdigest(self) -> str | None:
        """Return the digest, or None for a run without rollouts."""
        return self._whole.hexdigest() if self.lines else None


def line_digest(line: bytes) -> bytes:
    """Return the SHA-256 of a rollout's line without its newline: 32 bytes."""
    return hashlib.sha256(line.rstrip(b"\n")).digest()


def file_digest(path: Path) -> str:
    """Return the SHA-256 of a file without loading the whole file into memory."""
    with open_file(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def run_digest(manifest: bytes, rollouts_sha256: str | None, artifacts: Mapping[str, str]) -> str:
    """Return the digest of a run.

    `manifest` is the content of `run.json`, `rollouts_sha256` comes from `RolloutsDigest`, and `artifacts`
    maps names to SHA-256 digests.
    """
    files = {MANIFEST: hashlib.sha256(manifest).hexdigest()}
    files |= {f"artifacts/{name}": sha256 for name, sha256 in artifacts.items()}
    if rollouts_sha256 is not None:
        files[ROLLOUTS] = rollouts_sha256
    return listing_digest(files)


def listing_digest(files: Mapping[str, str]) -> str:
    """Return the SHA-256 of a `sha256sum` listing, sorted by name, of the given files and digests."""
    listing = "".join(f"{sha256}  {name}\n" for name, sha256 in sorted(files.items()))
    return hashlib.sha256(listing.encode()).hexdigest()


def signed_text(run_sha256: str) -> bytes:
    """Return the bytes that a run's signature covers; their prefix is used by no other protocol."""
    return f"wander run sha256:{run_sha256}\n".encode()


def key_fingerprint(public_key: str) -> str:
    """Return the fingerprint of an Ed25519 public key given in base64: the SHA-256 of its 32 bytes."""
    return hashlib.sha256(base64.b64decode(public_key)).hexdigest()


class RunSignature(Record, defer_build=False):
    """A user's signature of a run's digest."""

    fingerprint: str = Field(max_length=64)
    signature: str = Field(max_length=100)
    """Ed25519 signature of `signed_text`, in base64."""


class NewRunName(Record, defer_build=False):
    """Request to name a run; an empty name removes the run's name."""

    name: RunName


class SignatureInfo(RunSignature):
    """A signature of a posted run, with the public key that verifies it."""

    public_key: Word
    """Ed25519 public key, 32 bytes in base64."""
    signed_by: Line
    key_revoked_at: datetime | None = None
    """Time when the user revoked the key. Do not trust a signature of a revoked key."""


class Withdrawal(Record):
    """The removal of a run's rollouts, with its time, author and reason."""

    at: datetime
    by: Text
    reason: Text


class Checkpoint(Record):
    """Weights that a training run saved: a line of `checkpoints.jsonl`."""

    step: int = Field(ge=0, lt=2**31)
    weights_sha256: str = Field(pattern=r"^[0-9a-f]{64}$")
    """Digest of the weights, equal to `model.weights_sha256` of an evaluation of these weights."""


class LinkedRun(Record):
    """A run that is linked to another run because it trained, continued or evaluated the same weights."""

    run_id: RunId
    step: Count
    """Step of the training run after which the weights were saved."""
    weights_sha256: Sha256
    environment: Line
    model: Line
    name: RunName | None = None
    reward_mean: float | None = None
    stated_by: Line | None = None
    """User who posted that run and states its weights; None if the same user first pushed the weights."""


class RunLinks(Record):
    """Links of a run to other runs that the reader may see."""

    checkpoints: list[Checkpoint] = Field(default_factory=list)
    """Checkpoints of a training run, by step."""
    evaluated_by: list[LinkedRun] = Field(default_factory=list)
    """Evaluations of the checkpoints of a training run and of its initial weights (step 0), by step."""
    trained_by: list[LinkedRun] = Field(default_factory=list)
    """Training runs that produced the weights of an evaluation."""
    continued_by: list[LinkedRun] = Field(default_factory=list)
    """Training runs that started from a checkpoint of this training run, by step."""
    pushed: dict[Text, Text] = Field(default_factory=dict)
    """`owner/name@revision` of the weights that were pushed to this hub, by their digest."""
    stated_by: Line | None = None
    """User who states that this run has these weights; None if the same user first pushed them."""


class NewKey(Record, defer_build=False):
    """Request to register a public key."""

    name: Line = Field(min_length=1, max_length=80)
    public_key: str = Field(min_length=44, max_length=44)
    """Ed25519 public key, 32 bytes in base64."""


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
