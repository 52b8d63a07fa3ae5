"""Finds processes left by a worker's environment, by a variable that all children inherit."""

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path

MARK = "WANDER_WORKER"
"""Environment variable with the worker's mark."""
_ROUNDS = 20


def end_marked_processes(mark: str) -> None:
    """Kill every process whose variables contain the mark, until none is left. Works only on Linux.

    The worker's process group has been killed before. This finds children that left the group, as daemons do.
    """
    entry = f"{MARK}={mark}".encode()
    for _ in range(_ROUNDS):
        found = False
        for folder in Path("/proc").glob("[0-9]*"):
            # Errors mean that it is gone, or another user's. A killed process that is not reaped has no
            # variables.
            with contextlib.suppress(OSError):
                if entry in (folder / "environ").read_bytes().split(b"\0"):
                    found = True
                    os.kill(int(folder.name), signal.SIGKILL)
        if not found:
            return
