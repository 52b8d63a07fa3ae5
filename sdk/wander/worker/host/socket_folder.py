"""The folder of a worker's socket, made for one worker, and what hosts that were killed have left of theirs.

Whoever made a folder holds a lock on it for as long as it lives. A lock ends with its process, however that
ends, also where the process cannot be seen from here (in another container that shares `/tmp`), so a folder
that can be locked is nobody's any more.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

PREFIX = "wander-worker-"
_SOCKET_LIMIT = 100
"""Longest path of a Unix socket that macOS takes is 104 bytes."""


class SocketFolder:
    """A folder of mode 0700; `close` removes it."""

    def __init__(self, path: Path, lock: int) -> None:
        self.path = path
        self._lock = lock

    @classmethod
    def make(cls) -> SocketFolder:
        """Make a folder whose path leaves room for a socket; macOS has long temporary paths."""
        place = Path(tempfile.gettempdir())
        if len(str(place / f"{PREFIX}12345678" / "s")) > _SOCKET_LIMIT:
            place = Path("/tmp")  # noqa: S108 - the folder in it is made by `mkdtemp`
        remove_left(place)
        # It gets the name under which it may be removed once it is locked.
        made = Path(tempfile.mkdtemp(prefix=f".{PREFIX}", dir=place))
        lock = os.open(made, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        with contextlib.suppress(OSError):  # a file system without locks: nobody removes it either
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        path = made.rename(made.with_name(made.name[1:]))
        return cls(path, lock)

    def close(self) -> None:
        """Remove the folder; safe to call twice."""
        if self._lock >= 0:
            shutil.rmtree(self.path, ignore_errors=True)
            os.close(self._lock)
            self._lock = -1


def remove_left(place: Path) -> None:
    """Remove the folders in `place` that this user's hosts have left when they were killed."""
    for path in place.glob(f"{PREFIX}*"):
        # Gone meanwhile, in use, another user's, or on a file system without locks.
        with contextlib.suppress(OSError), _open(path) as folder:
            found = os.fstat(folder)
            if found.st_uid == os.geteuid() and stat.S_IMODE(found.st_mode) == 0o700:
                fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(path, ignore_errors=True)


@contextlib.contextmanager
def _open(path: Path) -> Iterator[int]:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        yield descriptor
    finally:
        os.close(descriptor)
