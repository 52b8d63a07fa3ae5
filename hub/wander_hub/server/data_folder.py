"""The lock on the data folder. Only one running hub may use it, and the lock ends with its process."""

from __future__ import annotations

import errno
import fcntl
import os
import sys
from pathlib import Path

from wander_hub.settings import Settings
from wander_hub.storage import close_hint, find_open_path

LOCK = "hub.lock"
_NO_LOCKS = {errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOLCK, errno.ENOSYS, errno.EINVAL}
"""Errors of file systems without locks. A hub on such a file system runs without the lock."""


class DataFolderInUse(Exception):
    """Another hub uses the data folder; `hint` suggests what to do."""

    def __init__(self, folder: Path, holder: str) -> None:
        process, _, address = holder.partition(" ")
        where = f" at {address}" if address else ""
        who = f"process {process}{where}" if process else "another process"
        super().__init__(f"a hub already uses the data folder `{folder}`: {who} holds `{LOCK}`")
        stop = f"stop it with `kill {process}`" if process else "stop it"
        self.hint = f"use that hub, {stop}, or choose another folder with `--data`"


def address_of(settings: Settings) -> str | None:
    """Return the last known address of the hub of the data folder, or None."""
    try:
        _process, _, address = (settings.data / LOCK).read_text(errors="replace").strip().partition(" ")
    except OSError:
        return None
    return address or None


def warn_if_open(settings: Settings) -> None:
    """Warn on standard error if other users of this machine can read the data folder or its database."""
    if (path := find_open_path(settings)) is not None:
        sys.stderr.write(
            f"warning: other users of this machine can read `{path}`\n\nhint: {close_hint(path)}\n"
        )


def hold_data_folder(settings: Settings, address: str) -> int | None:
    """Lock the data folder until this process exits or the returned descriptor is closed.

    Only the embedded database needs the lock. With PostgreSQL, several hubs may share a folder of files, and
    the result is None. Raises `DataFolderInUse` if another process holds the lock.
    """
    if settings.database_url is not None:
        return None
    lock = os.open(settings.data / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        holder = os.pread(lock, 200, 0).decode(errors="replace").strip()
        os.close(lock)
        raise DataFolderInUse(settings.data, holder) from None
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            os.close(lock)
            raise
    os.ftruncate(lock, 0)
    os.pwrite(lock, f"{os.getpid()} {address}\n".encode(), 0)
    return lock
