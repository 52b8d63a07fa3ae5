"""Opens files safely in folders from untrusted sources.

Such a folder may contain links to the reader's own files, FIFOs that block forever, devices, and endless
files. These functions open only plain files, follow no link on the path, and read no more than the caller
allows. They raise `OSError` with a `strerror` that describes the problem.
"""

from __future__ import annotations

import errno
import os
import shutil
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from io import BufferedReader
from pathlib import Path

MOST_ENTRIES = 1_000_000
"""Maximum number of files and folders that `walk_plain` visits."""
_NO_LINK = os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY


def open_plain_file(path: Path, *, below: Path | None = None) -> BufferedReader:
    """Open a plain file for reading. Raises `OSError` for a link, a FIFO, a device, a socket or a folder.

    The folders between `below` and the file must not be links either, but `below` itself may be one.
    """
    return os.fdopen(_open(path, below or path.parent, os.O_RDONLY), "rb")


def open_to_append(path: Path) -> int:
    """Return a descriptor of an existing or new plain file to which every write appends.

    Raises `OSError` for anything else, so that nothing is written through a link.
    """
    return _open(path, path.parent, os.O_RDWR | os.O_APPEND | os.O_CREAT)


def read_plain_file(path: Path, most: int, *, below: Path | None = None) -> bytes:
    """Return the content of a plain file of at most `most` bytes. Raises `OSError` for a larger file."""
    with open_plain_file(path, below=below) as file:
        content = file.read(most + 1)
    if len(content) > most:
        raise _fault(errno.EFBIG, f"it has more than {most:,} bytes", path)
    return content


def open_file(path: Path) -> BufferedReader:
    """Open the file at a path. Raises `OSError` for a FIFO, a device, a socket or a folder.

    Links are followed. This is for files named by the user, and for caches that consist of links.
    """
    if not stat.S_ISREG(mode := path.stat().st_mode):  # opening a device may change it
        raise _not_plain(mode, path)
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
    try:
        _require_plain(os.fstat(descriptor).st_mode, path)
    except BaseException:
        os.close(descriptor)
        raise
    return os.fdopen(descriptor, "rb")


def is_plain_file(path: Path) -> bool:
    """Return whether there is a plain file at a path. A link does not count."""
    try:
        return stat.S_ISREG(path.lstat().st_mode)
    except OSError:
        return False


def require_replaceable(path: Path) -> None:
    """Raise `OSError` if renaming a file to this path would replace a device, a FIFO or a socket.

    Links may be replaced, but not `/dev/stdout` and the like, which lead to the open files of a process.
    """
    if path.is_symlink() and os.readlink(path).startswith("/proc/"):
        raise _not_plain(stat.S_IFLNK, path)
    mode = path.stat().st_mode if path.exists() else stat.S_IFREG
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):  # the rename itself refuses a folder
        raise _not_plain(mode, path)


@dataclass(frozen=True)
class FoundFile:
    """A plain file inside a folder."""

    name: str
    """Path relative to the folder, with slashes."""
    path: Path
    size: int


def walk_plain(folder: Path) -> Iterator[FoundFile]:
    """Yield the plain files inside a folder, in no particular order.

    Raises `OSError` for a link or anything else that is neither a file nor a folder, and after `MOST_ENTRIES`
    entries.
    """
    seen = 0
    waiting = [(folder, "")]
    while waiting:
        place, prefix = waiting.pop()
        with os.scandir(place) as entries:
            for entry in entries:
                seen += 1
                if seen > MOST_ENTRIES:
                    raise _fault(errno.EFBIG, f"it contains more than {MOST_ENTRIES:,} files", folder)
                status = entry.stat(follow_symlinks=False)
                if stat.S_ISDIR(status.st_mode):
                    waiting.append((Path(entry.path), f"{prefix}{entry.name}/"))
                elif stat.S_ISREG(status.st_mode):
                    yield FoundFile(f"{prefix}{entry.name}", Path(entry.path), status.st_size)
                else:
                    raise _not_plain(status.st_mode, Path(entry.path))


def copy_plain_folder(folder: Path, target: Path) -> None:
    """Copy a folder of plain files to a new folder. Raises `OSError` for anything else in it."""
    target.mkdir(parents=True)
    for file in walk_plain(folder):
        copied = target / file.name
        copied.parent.mkdir(parents=True, exist_ok=True)
        with open_plain_file(file.path, below=folder) as source, copied.open("xb") as out:
            shutil.copyfileobj(source, out)


def _open(path: Path, below: Path, flags: int) -> int:
    """Return a descriptor of the file, opened folder by folder so that no link is followed."""
    *folders, name = path.relative_to(below).parts if path.is_relative_to(below) else ("..", "")
    if ".." in (*folders, name):
        raise _fault(errno.ENXIO, "its path leads out of the folder", path)
    opened: list[int] = []
    try:
        opened.append(os.open(below, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC))
        for part in folders:
            mode = os.stat(part, dir_fd=opened[-1], follow_symlinks=False).st_mode
            if stat.S_ISLNK(mode):
                raise _fault(errno.ELOOP, f"`{part}` on its path is a link", path)
            opened.append(os.open(part, os.O_RDONLY | os.O_DIRECTORY | _NO_LINK, dir_fd=opened[-1]))
        return _open_checked(name, opened[-1], flags, path)
    except NotADirectoryError:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path)) from None
    except OSError as error:
        error.filename = str(path)
        raise
    finally:
        for descriptor in opened:
            os.close(descriptor)


def _open_checked(name: str, folder: int, flags: int, path: Path) -> int:
    try:  # opening a device may change it, so its kind is checked first
        _require_plain(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode, path)
    except FileNotFoundError:
        if not flags & os.O_CREAT:
            raise
    descriptor = os.open(name, flags | _NO_LINK, 0o644, dir_fd=folder)
    try:
        _require_plain(os.fstat(descriptor).st_mode, path)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _require_plain(mode: int, path: Path) -> None:
    if not stat.S_ISREG(mode):
        raise _not_plain(mode, path)


def describe_kind(mode: int) -> str:
    """Return the kind of file for a mode, such as `a FIFO`."""
    kinds = {
        stat.S_IFLNK: "a link",
        stat.S_IFDIR: "a folder",
        stat.S_IFIFO: "a FIFO",
        stat.S_IFSOCK: "a socket",
    }
    return kinds.get(stat.S_IFMT(mode), "a device")


def _not_plain(mode: int, path: Path) -> OSError:
    number = errno.ELOOP if stat.S_ISLNK(mode) else errno.ENXIO
    return _fault(number, f"it is {describe_kind(mode)}, not a plain file", path)


def _fault(number: int, what: str, path: Path) -> OSError:
    return OSError(number, what, str(path))
