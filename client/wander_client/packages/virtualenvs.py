"""The virtual environments of this machine, one per lock, wheel and Python.

virtualenvs/<first 16 of a sha256>-py3.11.9/   a virtual environment
virtualenvs/.making-*/    a build in progress, which holds its `.lock`
virtualenvs/.locks/       locks of builds and uses
virtualenvs/.runtimes/    origin of each virtual environment, for the sandbox; its file time is the last use

An incomplete build never gets its final name. The next build and `wander cache prune` remove it.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from wander.sandbox.visible import Runtime

    from wander_client.packages.interpreters import Interpreter

_TEMPORARY = (".making-", ".gone-")
_LOCK, _RUNTIMES = ".lock", ".runtimes"
_YOUNG_SECONDS = 60.0
"""Maximum age of a temporary folder without its lock, in seconds."""


def key_of(contents_sha256: str, python: str) -> str:
    """Return the name of the virtual environment with these contents and version of Python."""
    return f"{contents_sha256[:16]}-py{python}"


@dataclass(frozen=True)
class Space:
    """The disk space of a folder, in bytes."""

    size: int
    """Total size of its files."""
    frees: int
    """Size of the files that nothing else links to: uv links most files to its cache."""


class VirtualEnvironments:
    """The folder of virtual environments."""

    def __init__(self, data_dir: Path) -> None:
        self.root = data_dir / "virtualenvs"

    def names(self) -> list[str]:
        """Return the names of all virtual environments, including those whose Python is missing."""
        if not self.root.is_dir():
            return []
        return sorted(path.name for path in self.root.iterdir() if not path.name.startswith("."))

    def works(self, key: str) -> bool:
        """Return whether a virtual environment exists, together with the Python that it was created from."""
        made_from = self._made_from(key)
        return bool(made_from) and Path(made_from[0]).exists() and (self.root / key).is_dir()

    def runtime(self, key: str) -> Runtime | None:
        """Return the origin of a virtual environment, or None if it is not recorded."""
        from wander.sandbox.visible import Runtime  # late, because listing environments does not need it

        if not (made_from := self._made_from(key)):
            return None
        executable, prefix, version = made_from
        return Runtime(executable, prefix, version, str(self.root / key))

    def _made_from(self, key: str) -> list[str]:
        """Return the recorded interpreter, prefix and version, or an empty list."""
        try:
            origin: list[str] = json.loads((self.root / _RUNTIMES / key).read_bytes())
        except (OSError, ValueError):
            return []
        return origin

    @contextlib.contextmanager
    def hold(
        self, key: str, python: Interpreter, build: Callable[[Path], None], *, force: bool = False
    ) -> Iterator[Path]:
        """Yield the virtual environment of a key. Builds it if it does not exist.

        `build` fills an empty folder with a virtual environment of `python`. The origin is recorded outside
        of the folder before any package is unpacked. If two processes need the same virtual environment, one
        builds it while the other waits.
        """
        import shutil

        target = self.root / key
        with hold_lock(self.root, key):
            if force or not self.works(key):
                for path in stale_in(self.root):
                    shutil.rmtree(path, ignore_errors=True)
                with stage_folder(target) as work:
                    self._record(key, python)
                    build(work)
            self.mark_used(key)
            yield target

    def _record(self, key: str, python: Interpreter) -> None:
        folder = self.root / _RUNTIMES
        folder.mkdir(exist_ok=True)
        temporary = folder / f"{key}.new"
        temporary.write_text(json.dumps([python.executable, python.prefix, python.version]))
        temporary.replace(folder / key)

    @contextlib.contextmanager
    def scratch(self) -> Iterator[Path]:
        """Yield an empty folder on the same disk, which is removed after the block."""
        with _temporary_in(self.root) as temporary:
            work = temporary / "work"
            work.mkdir()
            yield work

    def mark_used(self, key: str) -> None:
        """Mark a virtual environment as used now. Does nothing if it does not exist.

        Nothing in the virtual environment changes, because its copies share their files with it.
        """
        with contextlib.suppress(OSError):  # missing, or on a read-only disk
            os.utime(self.root / _RUNTIMES / key)

    def last_used(self, key: str) -> datetime:
        """Return the time of the last build or use of a virtual environment."""
        marker = self.root / _RUNTIMES / key
        if not marker.exists():
            marker = self.root / key
        return datetime.fromtimestamp(marker.stat().st_mtime, UTC)

    def remove(self, key: str) -> bool:
        """Remove a virtual environment unless another process uses it. Returns whether it was removed."""
        try:
            with hold_lock(self.root, key, wait=False):
                discard(self.root / key)
                (self.root / _RUNTIMES / key).unlink(missing_ok=True)
        except (BlockingIOError, FileNotFoundError):
            return False
        return True


def runtime_of(python: Path) -> Runtime | None:
    """Return the origin of an interpreter's virtual environment, or None if it is not recorded."""
    virtualenv = python.parent.parent
    return VirtualEnvironments(virtualenv.parent.parent).runtime(virtualenv.name)


@contextlib.contextmanager
def hold_lock(root: Path, name: str, *, wait: bool = True) -> Iterator[None]:
    """Hold the lock with this name in a folder. Without `wait`, raises `BlockingIOError` if it is held."""
    folder = root / ".locks"
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / name).open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield


@contextlib.contextmanager
def stage_folder(target: Path) -> Iterator[Path]:
    """Yield a temporary folder next to `target`, which replaces `target` if the block succeeds."""
    with _temporary_in(target.parent) as temporary:
        work = temporary / "work"
        work.mkdir()
        yield work
        with contextlib.suppress(FileNotFoundError):  # `target` did not exist
            os.rename(target, temporary / "old")
        os.rename(work, target)


@contextlib.contextmanager
def _temporary_in(folder: Path) -> Iterator[Path]:
    """Yield a locked temporary folder.

    It is removed after the block, or swept later if the process is killed.
    """
    import shutil
    import tempfile

    folder.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(prefix=".making-", dir=folder))
    try:
        with (temporary / "lock-to-be").open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            os.rename(file.name, temporary / _LOCK)  # renamed after locking, so that nobody finds it unlocked
            yield temporary
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def copy_by_links(source: Path, target: Path) -> None:
    """Copy a virtual environment, with hard links instead of copies where the disk supports them."""
    import shutil

    shutil.copytree(source, target, symlinks=True, copy_function=_link_or_copy)


def _link_or_copy(source: str, target: str) -> None:
    import shutil

    try:
        os.link(source, target, follow_symlinks=False)
    except OSError:  # the disk does not support links, or the file has too many
        shutil.copy2(source, target, follow_symlinks=False)


def give_bytecode(copy: Path, original: Path) -> None:
    """Move bytecode that was compiled in a copy to the original virtual environment.

    The next copy then does not compile it again, which takes most of the time for loading an environment.
    """
    for cache in copy.glob("lib/python3*/site-packages/**/__pycache__"):
        target = original / cache.relative_to(copy)
        if not target.parent.is_dir():  # exists only in the copy
            continue
        target.mkdir(exist_ok=True)
        for compiled in cache.iterdir():
            source = target.parent / f"{compiled.name.partition('.')[0]}.py"
            if source.exists() and not (target / compiled.name).exists():
                with contextlib.suppress(FileExistsError):  # added by another process in the meantime
                    _link_or_copy(str(compiled), str(target / compiled.name))


def discard(folder: Path) -> None:
    """Remove a folder. It is renamed first, so that nobody sees it partly removed."""
    import shutil
    import tempfile

    gone = Path(tempfile.mkdtemp(prefix=".gone-", dir=folder.parent))
    try:
        os.rename(folder, gone / folder.name)
    finally:
        shutil.rmtree(gone, ignore_errors=True)  # leftovers are swept later


def stale_in(folder: Path) -> list[Path]:
    """Return the temporary folders of killed builds and removals."""
    if not folder.is_dir():
        return []
    temporaries = sorted(path for path in folder.iterdir() if path.name.startswith(_TEMPORARY))
    return [path for path in temporaries if not _is_held(path)]


def _is_held(temporary: Path) -> bool:
    """Return whether the process that created a temporary folder still uses it."""
    try:
        with (temporary / _LOCK).open() as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return False
    except BlockingIOError:
        return True
    except FileNotFoundError:
        with contextlib.suppress(FileNotFoundError):
            return time.time() - temporary.stat().st_mtime < _YOUNG_SECONDS
        return True  # removed in the meantime


def space_of(folder: Path) -> Space:
    """Return the disk space of a folder. Files with several links count once."""
    seen: set[tuple[int, int]] = set()
    size = frees = 0
    for parent, _, files in os.walk(folder):
        for name in files:
            try:
                status = os.lstat(os.path.join(parent, name))
            except FileNotFoundError:
                continue
            if (status.st_dev, status.st_ino) in seen:
                continue
            seen.add((status.st_dev, status.st_ino))
            size += status.st_size
            frees += status.st_size if status.st_nlink == 1 else 0
    return Space(size, frees)
