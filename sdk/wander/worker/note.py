"""Which rollout's code runs in a worker at this moment, told so that it outlives the process.

A process that ends in the middle of environment code (`os._exit`, a crash of native code) says nothing any
more. Before each callback of its event loop the worker therefore notes in a small shared file to which `Play`
the callback belongs: the host reads there whose code it was. Behind that number the worker leaves its last
words, where it knows more. The file is one in the folder of the worker's socket, or, for a worker that sees
no files of the host, memory that it is given as a descriptor.
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
"""The id of the `Play` whose code runs; ids begin with 1. Every task that a play starts inherits it."""
NOTE_FILE = "running"
"""Name of the file beside the worker's socket."""
NOTE_BYTES = 4096
"""Size of the file."""
_SILENCE_AT = NOTE_BYTES // 2
"""Where the last `Silence` stands."""
_NUMBER = struct.Struct("<Q")


class Note:
    """Holds the play of the callback that runs; `current` is 0 between callbacks, and in those of no play."""

    def __init__(self, descriptor: int | None) -> None:
        """Share the note in the file behind a descriptor, which is not kept; None: nobody reads it."""
        self.current = 0
        self._shared: mmap.mmap | bytearray = bytearray(NOTE_BYTES)
        if descriptor is not None:
            self._shared = mmap.mmap(descriptor, NOTE_BYTES)
            os.close(descriptor)

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

    def leave(self, words: LastWords) -> None:
        """Leave the last words; those that are too long are cut where that can be done."""
        text = words.model_dump_json().encode()
        if len(text) > _SILENCE_AT - _NUMBER.size:
            text = words.model_copy(update={"where": ""}).model_dump_json().encode()
        self._shared[_NUMBER.size : _NUMBER.size + len(text)] = text

    def leave_silence(self, silence: Silence) -> None:
        """Leave what a loop that stands still cannot send; it takes the place of what was left before."""
        text = silence.model_copy(update={"examples": silence.examples[:1]}).model_dump_json().encode()
        if len(text) <= NOTE_BYTES - _SILENCE_AT:
            self._shared[_SILENCE_AT:] = text.ljust(NOTE_BYTES - _SILENCE_AT, b"\0")

    def _keep_to_itself(self) -> None:
        self._shared = bytearray(NOTE_BYTES)


def read_note(note: bytes) -> tuple[int | None, LastWords | None]:
    """Return the play whose code the process was running when it ended, and its last words, if any."""
    if len(note) != NOTE_BYTES:
        return None, None
    (play,) = _NUMBER.unpack_from(note)
    try:
        words = LastWords.model_validate_json(note[_NUMBER.size : _SILENCE_AT].rstrip(b"\0"))
    except ValidationError:
        words = None
    return play or None, words


def read_silence(note: bytes) -> Silence | None:
    """Return the rollout without progress that a worker left last, if any."""
    try:
        return Silence.model_validate_json(note[_SILENCE_AT:].rstrip(b"\0"))
    except ValidationError:
        return None
