"""Functions of a box's supervisor that work with the box's files for its host (`wander.boxes.supervisor`).

Each function runs in a process of its own, which has the rights of the box's commands and is outside of their
process namespace. The files are hostile: they may change or disappear at any time, and lead anywhere.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import socket
import stat
import tarfile
from collections.abc import Callable, Iterator
from typing import Any, BinaryIO

CHUNK = 1 << 16


def _make_folders(request: dict[str, Any], channel: socket.socket, content: int) -> None:
    for path, mode in request["folders"]:
        if not os.path.isdir(path):
            os.makedirs(path)
            os.chmod(path, mode)
    answer(channel, {})


def _write_files(request: dict[str, Any], channel: socket.socket, content: int) -> None:
    """Write files under another name first, so that neither a link nor a running program is in the way."""
    for path, size, mode in request["files"]:
        folder, name = os.path.split(path)
        os.makedirs(folder, exist_ok=True)
        parent = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            _write_file(parent, f".{name[:200]}.wander", content, size, mode)
            os.rename(f".{name[:200]}.wander", name, src_dir_fd=parent, dst_dir_fd=parent)
        finally:
            os.close(parent)
    answer(channel, {})


def _write_file(parent: int, name: str, content: int, size: int, mode: int) -> None:
    """Create a file in a folder from the next bytes of the content."""
    with contextlib.suppress(FileNotFoundError):
        os.unlink(name, dir_fd=parent)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
    file = os.open(name, flags, mode, dir_fd=parent)
    try:
        while size > 0:
            data = os.read(content, min(size, CHUNK))
            if not data:
                raise ValueError("the content is too short")
            size -= len(data)
            while data:
                data = data[os.write(file, data) :]
    finally:
        os.close(file)


def _read_file(request: dict[str, Any], channel: socket.socket, content: int) -> None:
    most = request["most_bytes"]
    file = _open_file(request["path"])
    data = b""
    while len(data) <= most and (part := os.read(file, min(1 << 20, most + 1 - len(data)))):
        data += part
    if len(data) > most:
        raise ValueError(f"`{request['path']}` is larger than {most} bytes")
    answer(channel, {}, data)


def _open_file(path: str, flags: int = 0) -> int:
    file = os.open(path, os.O_RDONLY | os.O_NONBLOCK | flags)  # a pipe must not block
    if not stat.S_ISREG(os.fstat(file).st_mode):
        raise ValueError(f"`{path}` is not a file")
    return file


def _archive(request: dict[str, Any], channel: socket.socket, content: int) -> None:
    """Send a tar archive of folders without times and owners. A pipe in it says that it is complete."""
    with (
        channel.makefile("wb", 1 << 20) as stream,
        tarfile.open(fileobj=stream, mode="w|", format=tarfile.PAX_FORMAT) as archive,
    ):
        for folder in request["paths"]:
            if not os.path.islink(folder):
                for path, status in _below(folder):
                    _add(archive, path, status)
        end = tarfile.TarInfo("end")
        end.type = tarfile.FIFOTYPE
        archive.addfile(end)


def _below(folder: str) -> Iterator[tuple[str, os.stat_result]]:
    """Yield what is below a folder without following links; recursion could run out of stack."""
    waiting = [folder]
    while waiting:
        current = waiting.pop()
        names: list[str] = []
        with contextlib.suppress(OSError):  # it is gone, or its path is longer than the kernel accepts
            names = sorted(os.listdir(current))
        for name in names:
            path = f"{current.rstrip('/')}/{name}"
            with contextlib.suppress(OSError):
                status = os.lstat(path)
                if stat.S_ISDIR(status.st_mode):
                    waiting.append(path)
                yield path, status


def _add(archive: tarfile.TarFile, path: str, status: os.stat_result) -> None:
    """Add a file, folder or link, unless it is gone or is something else by now.

    `TarFile.gettarinfo` would look up the owner, with the box's libraries.
    """
    entry = tarfile.TarInfo(path.lstrip("/"))
    entry.mode = stat.S_IMODE(status.st_mode) & 0o777
    if stat.S_ISDIR(status.st_mode):
        entry.type = tarfile.DIRTYPE
        archive.addfile(entry)
    elif stat.S_ISLNK(status.st_mode):
        entry.type = tarfile.SYMTYPE
        try:
            entry.linkname = os.readlink(path)
        except OSError:
            return
        archive.addfile(entry)
    elif stat.S_ISREG(status.st_mode):
        entry.size = status.st_size
        try:
            opened = _open_file(path, os.O_NOFOLLOW)
        except (OSError, ValueError):
            return
        with open(opened, "rb") as file:
            archive.addfile(entry, _Padded(file, status.st_size))


class _Padded:
    """A file that has exactly the announced size, even if a process of the box cuts it meanwhile."""

    def __init__(self, file: BinaryIO, size: int) -> None:
        self._file = file
        self._left = size

    def read(self, size: int = CHUNK, /) -> bytes:
        """Return the next bytes."""
        size = min(size, self._left)
        self._left -= size
        return self._file.read(size).ljust(size, b"\0")


def _apply(request: dict[str, Any], channel: socket.socket, content: int) -> None:
    """Apply changes without following a link below the roots, then remove links that lead elsewhere."""
    links = []
    for path, kind, executable, target, size in request["changes"]:
        root = next(root for root in request["roots"] if path.startswith(f"{root.rstrip('/')}/"))
        parent = _open_parent(root, path)
        name = os.path.basename(path)
        try:
            if kind != "folder" or not _is_folder(parent, name):
                _remove(parent, name)
            if kind == "folder":
                with contextlib.suppress(FileExistsError):
                    os.mkdir(name, 0o755, dir_fd=parent)
            elif kind == "file":
                _write_file(parent, name, content, size, 0o755 if executable else 0o644)
            elif kind == "link":
                os.symlink(target, name, dir_fd=parent)
                links.append(path)
        finally:
            os.close(parent)
    removed = [path for path in links if not _is_harmless(path, request["roots"])]
    for path in removed:
        os.unlink(path)
    answer(channel, {"removed": removed})


def _is_harmless(link: str, roots: list[str]) -> bool:
    """Return whether a link leads to something below the folders, or to a file of the system that exists.

    Any other link could lead to files that a verifier adds later, such as its expected answers.
    """
    try:
        real = os.path.realpath(link, strict=True)
    except OSError:
        return False  # it leads nowhere, or to a process
    if any(real == root or real.startswith(f"{root.rstrip('/')}/") for root in roots):
        return True
    return os.path.isfile(real) and not real.startswith(("/proc/", "/dev/", "/sys/"))


def _open_parent(root: str, path: str) -> int:
    """Open the folder of a path; raises `OSError` if a part below the root is a link."""
    os.makedirs(root, exist_ok=True)
    folder = os.open(root, os.O_RDONLY | os.O_DIRECTORY)
    for part in os.path.relpath(path, root).split("/")[:-1]:
        inner = os.open(part, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=folder)
        os.close(folder)
        folder = inner
    return folder


def _is_folder(parent: int, name: str) -> bool:
    try:
        return stat.S_ISDIR(os.stat(name, dir_fd=parent, follow_symlinks=False).st_mode)
    except FileNotFoundError:
        return False


def _remove(parent: int, name: str) -> None:
    with contextlib.suppress(FileNotFoundError):
        if _is_folder(parent, name):
            shutil.rmtree(name, dir_fd=parent)
        else:
            os.unlink(name, dir_fd=parent)


FILE_WORK: dict[str, Callable[[dict[str, Any], socket.socket, int], None]] = {
    "make folders": _make_folders,
    "write": _write_files,
    "read": _read_file,
    "archive": _archive,
    "apply": _apply,
}


def answer(channel: socket.socket, header: dict[str, Any], data: bytes = b"") -> None:
    """Send the host the answer to a request."""
    with channel, contextlib.suppress(OSError):  # the host has stopped waiting for the answer
        channel.sendall(json.dumps(header).encode() + b"\n" + data)
