"""Finds what a worker's environment has left running, however it hid: by a variable that children inherit."""

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path

MARK = "WANDER_WORKER"
"""The environment variable that holds the worker's mark."""
_ROUNDS = 20


def end_marked_processes(mark: str) -> None:
    """Kill every process whose variables hold the mark, until there is none; on Linux, elsewhere nothing.

    The worker's process group is ended before. This finds children that left it, as daemons do.
    """
    entry = f"{MARK}={mark}".encode()
    for _ in range(_ROUNDS):
        found = False
        for folder in Path("/proc").glob("[0-9]*"):
            # Gone meanwhile, or another user's. What was killed and not reaped yet has no variables any more.
            with contextlib.suppress(OSError):
                if entry in (folder / "environ").read_bytes().split(b"\0"):
                    found = True
                    os.kill(int(folder.name), signal.SIGKILL)
        if not found:
            return
