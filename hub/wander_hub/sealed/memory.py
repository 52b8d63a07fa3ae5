"""Files in memory: the keys of submitters on their way to a worker, and the folders where sets are played.

They are in `/dev/shm`, which never reaches a disk, except as swap, which operators can encrypt.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

ROOT = Path("/dev/shm")  # noqa: S108 - only folders that this user creates with mode 700 are used
_KEPT_SECONDS = 24 * 3600.0
"""Age after which a key that no worker took is deleted."""


def is_available() -> bool:
    """Return whether this machine has files in memory."""
    return ROOT.is_dir() and os.access(ROOT, os.W_OK)


def leave_key(key: str) -> str:
    """Keep a submitter's key for the worker; return the name under which the worker takes it."""
    folder = _keys_folder()
    for path in folder.iterdir():
        with contextlib.suppress(FileNotFoundError):
            if path.stat().st_mtime < time.time() - _KEPT_SECONDS:
                path.unlink()
    name = secrets.token_hex(16)
    descriptor = os.open(folder / name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(key)
    return name


def take_key(name: str) -> str | None:
    """Return the key with this name and delete it; None if it is gone."""
    path = _keys_folder() / name
    try:
        key = path.read_text()
    except FileNotFoundError:
        return None
    path.unlink(missing_ok=True)
    return key


@contextlib.contextmanager
def memory_folder() -> Iterator[Path]:
    """Provide a folder in memory, which is deleted with everything in it.

    Folders of processes that were killed are deleted first.
    """
    mark = f"wander-sealed-{os.getuid()}-"
    for left in ROOT.glob(f"{mark}*"):
        process = left.name.removeprefix(mark).partition("-")[0]
        if left.stat().st_uid == os.getuid() and not Path("/proc", process).exists():
            shutil.rmtree(left, ignore_errors=True)
    with tempfile.TemporaryDirectory(prefix=f"{mark}{os.getpid()}-", dir=ROOT) as folder:
        yield Path(folder)


def _keys_folder() -> Path:
    folder = ROOT / f"wander-keys-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    facts = folder.lstat()
    if folder.is_symlink() or facts.st_uid != os.getuid() or facts.st_mode & 0o077:
        raise PermissionError(f"`{folder}` belongs to another user, or others may read it")
    return folder
