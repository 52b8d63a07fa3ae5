"""Records which rollout's code a worker is running, in memory that outlives the process.

A process that ends in the middle of environment code (`os._exit`, a crash of native code) cannot report
anything. Before each callback of its event loop, the worker therefore writes the id of the callback's `Play`
into a small shared file. The host reads there whose code was running. After that number, the worker leaves
its last words if it knows more. The file is in the folder of the worker's socket. A worker that cannot see
the host's files gets shared memory as a descriptor instead.
"""

from __future__ import annotations

import asyncio
import mmap
import os
import struct
from contextvars import ContextVar
from typing import Any

from pydantic import ValidationError

from wander.rollout.activity import Silence
from wander.worker.protocol import LastWords

PLAY: ContextVar[int] = ContextVar("wander_play", default=0)
"""Id of the `Play` whose code is running. Ids start at 1. Every task that a play starts inherits it."""
NOTE_FILE = "running"
"""Name of the file in the folder of the worker's socket."""
NOTE_BYTES = 4096
"""Size of the file in bytes."""
_SILENCE_AT = NOTE_BYTES // 2
"""Offset of the last `Silence`."""
_NUMBER = struct.Struct("<Q")


class Note:
    """Holds the play of the running callback.

    `current` is 0 between callbacks and in those without a play.
    """

    def __init__(self, descriptor: int | None) -> None:
        """Share the note in the file behind a descriptor, and close the descriptor.

        With None, nobody reads it.
        """
        self.current = 0
        self._shared: mmap.mmap | bytearray = bytearray(NOTE_BYTES)
        if descriptor is not None:
            self._shared = mmap.mmap(descriptor, NOTE_BYTES)
            os.close(descriptor)

    def follow(self) -> None:
        """Start recording. Every callback of every loop in this process runs through `Handle._run`."""
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
        os.register_at_fork(after_in_child=self._stop_sharing)

    def leave(self, words: LastWords) -> None:
        """Write the last words. If they are too long, they are written without their location."""
        text = words.model_dump_json().encode()
        if len(text) > _SILENCE_AT - _NUMBER.size:
            text = words.model_copy(update={"where": ""}).model_dump_json().encode()
        self._shared[_NUMBER.size : _NUMBER.size + len(text)] = text

    def leave_silence(self, silence: Silence) -> None:
        """Write a silence that a blocked event loop cannot send. It replaces the previous one."""
        text = silence.model_copy(update={"examples": silence.examples[:1]}).model_dump_json().encode()
        if len(text) <= NOTE_BYTES - _SILENCE_AT:
            self._shared[_SILENCE_AT:] = text.ljust(NOTE_BYTES - _SILENCE_AT, b"\0")

    def _stop_sharing(self) -> None:
        self._shared = bytearray(NOTE_BYTES)


def read_note(note: bytes) -> tuple[int | None, LastWords | None]:
    """Return the play whose code was running when the process ended, and its last words, if any."""
    if len(note) != NOTE_BYTES:
        return None, None
    (play,) = _NUMBER.unpack_from(note)
    try:
        words = LastWords.model_validate_json(note[_NUMBER.size : _SILENCE_AT].rstrip(b"\0"))
    except ValidationError:
        words = None
    return play or None, words


def read_silence(note: bytes) -> Silence | None:
    """Return the last rollout without progress that a worker recorded, if any."""
    try:
        return Silence.model_validate_json(note[_SILENCE_AT:].rstrip(b"\0"))
    except ValidationError:
        return None
