"""Paths whose parts a stranger chose: they lie below a folder of ours, and no link leads out of it."""

from __future__ import annotations

import contextlib
import os
import re
import stat
from pathlib import Path

from wander_client.errors import ClientError

_PART = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+!-]{0,254}")


def path_below(root: Path, *parts: str) -> Path:
    """Return the path of a file or folder below `root`, whose folders are made where they are missing.

    Every part has to be a plain name. The folders are opened one from the other, without following links: who
    reads or writes the path afterwards stays below `root`. Raises `ClientError` for everything else.
    """
    for part in parts:
        if not _PART.fullmatch(part):
            raise ClientError(
                f"`{part[:100]}` is not a name that a file may get here",
                hint="the hub's operator can say where it comes from",
                code="unsafe_path",
            )
    root.mkdir(parents=True, exist_ok=True)
    where = root
    folder = os.open(root, os.O_RDONLY | os.O_DIRECTORY)
    try:
        for part in parts[:-1]:
            where /= part
            try:
                os.mkdir(part, dir_fd=folder)
            except FileExistsError:
                pass
            except OSError as error:
                raise OSError(error.errno, error.strerror, str(where)) from error
            try:
                inner = os.open(part, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=folder)
            except OSError as error:
                raise _not_plain(where, "folder") from error
            os.close(folder)
            folder = inner
        where /= parts[-1]
        with contextlib.suppress(FileNotFoundError):
            kind = os.stat(parts[-1], dir_fd=folder, follow_symlinks=False).st_mode
            if not (stat.S_ISREG(kind) or stat.S_ISDIR(kind)):
                raise _not_plain(where, "file or folder")
    finally:
        os.close(folder)
    return where


def _not_plain(path: Path, what: str) -> ClientError:
    return ClientError(f"`{path}` is not a plain {what}", hint="remove it", code="unsafe_path")
