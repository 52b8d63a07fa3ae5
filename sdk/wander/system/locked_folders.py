"""Folders that belong to one process. If that process is killed, the next process removes them.

The process that created a folder holds a lock on it. The lock ends with the process, however it ends, even if
it cannot be seen from here (in another container that shares `/tmp`). A folder that can be locked therefore
belongs to nobody.
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
    """A folder with mode 0700. Created by `make`. `close` removes it with all of its content."""

    def __init__(self, path: Path, lock: int) -> None:
        self.path = path
        self._lock = lock

    @classmethod
    def make(cls, parent: Path, prefix: str) -> LockedFolder:
        """Create a folder with 16 random digits after a prefix.

        Folders of killed processes are removed first.
        """
        remove_left_folders(parent, prefix)
        # Other processes remove unlocked folders with this prefix, unless the name ends in `.new`. So lock
        # the folder first, and then rename it.
        new_folder = parent / f"{prefix}{token_hex(8)}.new"
        new_folder.mkdir(mode=0o700)
        lock = os.open(new_folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        with contextlib.suppress(OSError):  # on a file system without locks, nobody removes it either
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return cls(new_folder.rename(new_folder.with_suffix("")), lock)

    def close(self) -> None:
        """Remove the folder. May be called repeatedly."""
        if self._lock >= 0:
            shutil.rmtree(self.path, ignore_errors=True)
            os.close(self._lock)
            self._lock = -1


def remove_left_folders(parent: Path, prefix: str) -> None:
    """Remove the folders with a prefix that killed processes of this user left behind."""
    name = re.compile(rf"{re.escape(prefix)}[0-9a-f]{{16}}")
    for path in parent.iterdir():
        # Errors mean that it is gone, in use, another user's, or on a file system without locks.
        with contextlib.suppress(OSError), contextlib.ExitStack() as stack:
            if name.fullmatch(path.name):
                folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
                stack.callback(os.close, folder)
                status = os.fstat(folder)
                if status.st_uid == os.geteuid() and stat.S_IMODE(status.st_mode) == 0o700:
                    fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    shutil.rmtree(path, ignore_errors=True)
