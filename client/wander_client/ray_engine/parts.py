"""Where Ray plays the shards of a run, and where they lie: beside the folder that the run will have."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True)
class RayChoice:
    """Where and how shards are played."""

    address: str | None = None
    """Of a cluster's head, `HOST:PORT` or `auto`; None takes `RAY_ADDRESS`, or starts Ray on this machine."""
    shards: int | None = None
    """None makes one for each processor, or accelerator, of the cluster."""
    shared: str | None = None
    """URL of object storage that keeps the shards meanwhile; None where all nodes see their folder."""
    ended: threading.Event = field(default_factory=threading.Event)
    """Set by whoever wants the shards to end in order; Ctrl-C asks for the same."""


def parts_of(out: Path) -> Path:
    """Return the folder of the shards of a run, or a suite, that is played into `out`."""
    return out.with_name(f"{out.name}.shards")


def has_begun(out: Path) -> bool:
    """Tell whether shards are there to go on with."""
    return parts_of(out).is_dir() and not out.exists()
