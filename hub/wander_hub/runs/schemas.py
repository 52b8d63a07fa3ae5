"""The parts of a run that is posted in one request."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import BinaryIO

from wander.wire import RunManifest


@dataclass(frozen=True)
class PostedFile:
    """One artifact as it arrived."""

    name: str
    media_type: str
    body: BinaryIO
    size: int
    sha256: str


@dataclass(frozen=True)
class PostedRun:
    """One run folder as it arrived, its manifest parsed."""

    manifest: RunManifest
    manifest_text: bytes
    rollouts: BinaryIO | None
    """Plain or zstd-compressed JSON lines."""
    artifacts: list[PostedFile] = field(default_factory=list)
    private: bool = False
