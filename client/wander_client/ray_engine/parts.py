"""Where and how Ray plays the shards of a run."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field


@dataclass(frozen=True)
class RayChoice:
    """Where and how shards are played."""

    address: str | None = None
    """Of a cluster's head, `HOST:PORT` or `auto`; None takes `RAY_ADDRESS`, or starts Ray on this machine."""
    shards: int | None = None
    """None makes one for each processor, or accelerator, of the cluster."""
    ended: threading.Event = field(default_factory=threading.Event)
    """Set by whoever wants the shards to end in order; Ctrl-C asks for the same."""
