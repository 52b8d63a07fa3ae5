"""Files in memory: the keys of submitters on their way to a worker, and the folders where sets are played.

They are in `/dev/shm`, which never reaches a disk, except as swap, which operators can encrypt.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import resource
import secrets
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from wander_hub.settings import Settings

ROOT = Path("/dev/shm")  # noqa: S108 - only folders that this user creates with mode 700 are used
_KEPT_SECONDS = 24 * 3600.0
"""Age after which a key that no worker took is deleted."""
_NEW_SECONDS = 5.0
"""Age below which a folder may not be locked yet by the process that made it."""


def is_available() -> bool:
    """Return whether this machine has files in memory."""
    return ROOT.is_dir() and os.access(ROOT, os.W_OK)


def forbid_core_dumps(settings: Settings) -> None:
    """Keep the memory of a hub with sealed sets off the disk if this process or a command crashes."""
    if settings.seal_key_file is not None:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def leave_key(key: str) -> str:
    """Keep a submitter's key for the worker; return the name under which the worker takes it."""
    name = secrets.token_hex(16)
    descriptor = os.open(_keys_folder() / name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(key)
    return name


def take_key(name: str) -> str | None:
    """Return the key with this name and delete it; None if it is gone."""
    try:
        path = _keys_folder() / name
        key = path.read_text()
    except FileNotFoundError:
        return None
    path.unlink(missing_ok=True)
    return key


@contextlib.contextmanager
def memory_folder() -> Iterator[Path]:
    """Provide a folder in memory, which is deleted with everything in it.

    The folder is locked, so that `sweep` recognizes the folders of processes that were killed. The ids of
    processes would not tell, because a container that restarts gives the same ids again.
    """
    with tempfile.TemporaryDirectory(prefix=_mark(), dir=ROOT) as folder:
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield Path(folder)
        finally:
            os.close(descriptor)


def sweep() -> None:
    """Delete the folders of processes that were killed, and keys that no worker took."""
    for folder in ROOT.glob(f"{_mark()}*"):
        with contextlib.suppress(OSError):  # in use, or already deleted
            if folder.lstat().st_uid != os.getuid() or time.time() - folder.stat().st_mtime < _NEW_SECONDS:
                continue
            descriptor = os.open(folder, os.O_RDONLY | os.O_NOFOLLOW)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder)
            finally:
                os.close(descriptor)
    with contextlib.suppress(OSError):
        for path in _keys_folder().iterdir():
            if path.stat().st_mtime < time.time() - _KEPT_SECONDS:
                path.unlink()


def _mark() -> str:
    return f"wander-play-{os.getuid()}-"


def _keys_folder() -> Path:
    folder = ROOT / f"wander-keys-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    facts = folder.lstat()
    if folder.is_symlink() or facts.st_uid != os.getuid() or facts.st_mode & 0o077:
        raise PermissionError(f"`{folder}` belongs to another user, or other users may read it")
    return folder
