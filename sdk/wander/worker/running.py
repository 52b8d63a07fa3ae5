"""Which rollout's code runs in a worker at this moment, told so that it outlives the process.

A process that ends in the middle of environment code (`os._exit`, a crash of native code) says nothing any
more. Before each callback of its event loop the worker therefore notes in a small shared file to which `Play`
the callback belongs: the host reads there whose code it was.
"""

from __future__ import annotations

import asyncio
import mmap
import os
import struct
from contextvars import ContextVar
from pathlib import Path
from typing import Any

PLAY: ContextVar[int] = ContextVar("wander_play", default=0)
"""The id of the `Play` whose code runs; ids begin with 1. Every task that a play starts inherits it."""
RUNNING = "running"
"""Name of the file beside the worker's socket."""
_NUMBER = struct.Struct("<Q")


class Running:
    """Notes the play of the callback that runs; `current` is 0 between callbacks, and in those of no play."""

    def __init__(self, path: Path | None) -> None:
        """Share the note in a file, unless there is no folder that the host can read."""
        self.current = 0
        self._shared: mmap.mmap | bytearray = bytearray(_NUMBER.size)
        if path is not None:
            path.write_bytes(bytes(_NUMBER.size))
            with path.open("r+b") as file:
                self._shared = mmap.mmap(file.fileno(), _NUMBER.size)

    def follow(self) -> None:
        """Note from now on: every callback of every loop of this process runs through `Handle._run`."""
        handle_class: Any = asyncio.Handle
        run, write = handle_class._run, _NUMBER.pack_into

        def noted(handle: Any) -> None:
            play = handle._context.get(PLAY, 0)
            if not play:
                run(handle)
                return
            self.current = play
            write(self._shared, 0, play)
            run(handle)
            self.current = 0
            write(self._shared, 0, 0)

        handle_class._run = noted
        os.register_at_fork(after_in_child=self._keep_to_itself)

    def _keep_to_itself(self) -> None:
        self._shared = bytearray(_NUMBER.size)


def read_running(path: Path) -> int | None:
    """Return the play whose code the process was running when it ended, if any."""
    try:
        (play,) = _NUMBER.unpack(path.read_bytes())
    except (OSError, struct.error):
        return None
    return play or None
