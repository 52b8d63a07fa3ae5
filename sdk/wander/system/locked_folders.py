"""Folders that belong to one process, and that the next process removes if their own was killed.

Whoever made a folder holds a lock on it for as long as it lives. A lock ends with its process, however that
ends, also where the process cannot be seen from here (in another container that shares `/tmp`), so a folder
that can be locked is nobody's any more.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import shutil
import stat
from pathlib import Path
from secrets import token_hex


class LockedFolder:
    """A folder of mode 0700. Made by `make`; `close` removes it with everything in it."""

    def __init__(self, path: Path, lock: int) -> None:
        self.path = path
        self._lock = lock

    @classmethod
    def make(cls, parent: Path, prefix: str) -> LockedFolder:
        """Make a folder with 16 random digits after a prefix; those that killed processes left go first."""
        remove_left_folders(parent, prefix)
        # It gets the name under which it may be removed once it is locked.
        made = parent / f"{prefix}{token_hex(8)}.new"
        made.mkdir(mode=0o700)
        lock = os.open(made, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        with contextlib.suppress(OSError):  # a file system without locks: nobody removes it either
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return cls(made.rename(made.with_suffix("")), lock)

    def close(self) -> None:
        """Remove the folder; safe to call twice."""
        if self._lock >= 0:
            shutil.rmtree(self.path, ignore_errors=True)
            os.close(self._lock)
            self._lock = -1


def remove_left_folders(parent: Path, prefix: str) -> None:
    """Remove the folders with a prefix that this user's processes left when they were killed."""
    name = re.compile(rf"{re.escape(prefix)}[0-9a-f]{{16}}")
    for path in parent.iterdir():
        # Gone meanwhile, in use, another user's, or on a file system without locks.
        with contextlib.suppress(OSError), contextlib.ExitStack() as stack:
            if name.fullmatch(path.name):
                folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
                stack.callback(os.close, folder)
                found = os.fstat(folder)
                if found.st_uid == os.geteuid() and stat.S_IMODE(found.st_mode) == 0o700:
                    fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    shutil.rmtree(path, ignore_errors=True)
