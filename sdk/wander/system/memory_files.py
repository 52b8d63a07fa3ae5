"""Files in memory, which are handed to other processes as descriptors."""

from __future__ import annotations

import os
import sys
import tempfile
from typing import IO


def open_memory_file(name: str) -> IO[bytes]:
    """Open an empty, unbuffered file in memory, or a temporary file where the system cannot do that."""
    if sys.platform == "linux":  # what a sandbox writes to this file counts toward the sandbox's memory limit
        return os.fdopen(os.memfd_create(name), "w+b", buffering=0)
    return tempfile.TemporaryFile(buffering=0)


def make_memory_file(name: str, content: bytes) -> int:
    """Return the descriptor of a file in memory, at the start of its content. Needs Linux."""
    descriptor = os.memfd_create(name)
    rest = memoryview(content)
    while rest:
        rest = rest[os.write(descriptor, rest) :]
    os.lseek(descriptor, 0, os.SEEK_SET)
    return descriptor
