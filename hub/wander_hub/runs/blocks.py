"""Stored rollouts: zstd frames of some 128 KiB of JSON lines each, so one rollout is one small range read."""

from __future__ import annotations

import io
from dataclasses import dataclass
from typing import BinaryIO

import zstandard

BLOCK_BYTES = 128 * 1024
MAX_BLOCK_BYTES = 1024 * 1024 * 1024
_LEVEL = 6


@dataclass
class Place:
    """Where one line lies: its frame in the object, and its bytes in the unpacked frame."""

    block_start: int
    block_length: int
    offset: int
    length: int


class BlockWriter:
    """Appends lines to a file of frames; a line's place is whole once its frame is closed."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._compressor = zstandard.ZstdCompressor(level=_LEVEL, write_content_size=True)
        self._pending = io.BytesIO()
        self._open_places: list[Place] = []
        self._position = 0

    def add(self, line: bytes) -> Place:
        """Append a line; call `close` before relying on the place."""
        place = Place(self._position, 0, self._pending.tell(), len(line))
        self._open_places.append(place)
        self._pending.write(line)
        if self._pending.tell() >= BLOCK_BYTES:
            self.close()
        return place

    def close(self) -> None:
        """Write the frame that is being filled."""
        if not self._open_places:
            return
        frame = self._compressor.compress(self._pending.getvalue())
        self._file.write(frame)
        for place in self._open_places:
            place.block_length = len(frame)
        self._position += len(frame)
        self._pending = io.BytesIO()
        self._open_places = []


def unpack(block: bytes) -> bytes:
    """Return the lines of a frame."""
    return zstandard.ZstdDecompressor().decompress(block, max_output_size=MAX_BLOCK_BYTES)
