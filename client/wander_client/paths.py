"""Safe paths: names from strangers below a folder of ours, without following links out of it."""

from __future__ import annotations

import contextlib
import os
import re
import stat
from pathlib import Path

from wander_client.errors import ClientError

_PART = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+!-]{0,254}")


def path_below(root: Path, *parts: str) -> Path:
    """Return the path of a file or folder below `root`, and create missing parent folders.

    Every part must be a plain name. The folders are opened one after the other without following links, so
    the path stays below `root`. Raises `ClientError` for anything else.
    """
    for part in parts:
        if not _PART.fullmatch(part):
            raise ClientError(
                f"unsafe file name: `{part[:100]}`",
                hint="ask the hub's operator where this name comes from",
                code="unsafe_path",
            )
    root.mkdir(parents=True, exist_ok=True)
    path = root
    folder = os.open(root, os.O_RDONLY | os.O_DIRECTORY)
    try:
        for part in parts[:-1]:
            path /= part
            try:
                os.mkdir(part, dir_fd=folder)
            except FileExistsError:
                pass
            except OSError as error:
                raise OSError(error.errno, error.strerror, str(path)) from error
            try:
                inner = os.open(part, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=folder)
            except OSError as error:
                raise _not_plain(path, "folder") from error
            os.close(folder)
            folder = inner
        path /= parts[-1]
        with contextlib.suppress(FileNotFoundError):
            kind = os.stat(parts[-1], dir_fd=folder, follow_symlinks=False).st_mode
            if not (stat.S_ISREG(kind) or stat.S_ISDIR(kind)):
                raise _not_plain(path, "file or folder")
    finally:
        os.close(folder)
    return path


def _not_plain(path: Path, kind: str) -> ClientError:
    return ClientError(f"`{path}` is not a regular {kind}", hint="remove it", code="unsafe_path")
