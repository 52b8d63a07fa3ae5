"""What a posted run carries, and how rollouts are read from it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import BinaryIO

from wander.wire import RunManifest, RunSummary

from wander_hub.runs.blocks import Place


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
    manifest_text: str
    rollouts: BinaryIO | None
    """Plain or zstd-compressed JSON lines."""
    artifacts: list[PostedFile] = field(default_factory=list)


@dataclass(frozen=True)
class RolloutLine:
    """What a list shows of one stored rollout."""

    example_id: str
    index: int
    reward: float | None
    stop_reason: str | None
    failure: str | None
    truncated: bool
    turns: int
    completion_tokens: int
    seconds: float
    preview: str
    place: Place


@dataclass(frozen=True)
class StoredRollouts:
    """All rollouts of a run after validation, packed and summarised."""

    lines: list[RolloutLine]
    summary: RunSummary
    sha256: str
    """Of the plain lines as posted."""
