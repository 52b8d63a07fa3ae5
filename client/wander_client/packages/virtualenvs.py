"""The virtual environments of this machine: one for a lock, wheel and Python, complete or not there.

virtualenvs/<first 16 of a sha256>-py3.11.9/            one of these; its `.used` is as old as its last use
virtualenvs/.making-*/                                  one that is built; its `.lock` is held meanwhile
virtualenvs/.locks/                                     who builds or uses which
virtualenvs/.runtimes/                                  the Python that each was made from, for the sandbox

Whatever ends a build, nothing half-made gets the name; the next build and `wander cache prune` sweep it away.
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
_USED, _LOCK, _RUNTIMES = ".used", ".lock", ".runtimes"
_YOUNG_SECONDS = 60.0
"""A temporary folder of this age may not have got its lock yet."""


def key_of(contents_sha256: str, python: str) -> str:
    """Return the name of the virtual environment with these contents under a version of Python."""
    return f"{contents_sha256[:16]}-py{python}"


@dataclass(frozen=True)
class Space:
    """What a folder takes of the disk, in bytes."""

    size: int
    """All of its files."""
    frees: int
    """Those that nothing else has: uv links most files to its own cache."""


class VirtualEnvironments:
    """The folder of virtual environments."""

    def __init__(self, data_dir: Path) -> None:
        self.root = data_dir / "virtualenvs"

    def names(self) -> list[str]:
        """Return the names of all that are there, also of those whose Python is gone."""
        if not self.root.is_dir():
            return []
        return sorted(each.name for each in self.root.iterdir() if not each.name.startswith("."))

    def works(self, key: str) -> bool:
        """Tell whether one is there and the Python that it was made from is still installed."""
        made_from = self._made_from(key)
        return bool(made_from) and Path(made_from[0]).exists() and (self.root / key).is_dir()

    def runtime(self, key: str) -> Runtime | None:
        """Return what a virtual environment was made from; None if that is not recorded."""
        from wander.sandbox.visible import Runtime  # costs what a listing of environments does not need

        if not (made_from := self._made_from(key)):
            return None
        executable, prefix, version = made_from
        return Runtime(executable, prefix, version, str(self.root / key))

    def _made_from(self, key: str) -> list[str]:
        """Return interpreter, prefix and version as they were recorded; empty if they were not."""
        try:
            found: list[str] = json.loads((self.root / _RUNTIMES / key).read_bytes())
        except (OSError, ValueError):
            return []
        return found

    @contextlib.contextmanager
    def hold(
        self, key: str, python: Interpreter, build: Callable[[Path], None], *, force: bool = False
    ) -> Iterator[Path]:
        """Yield the virtual environment of a key, built first if it is not there.

        `build` fills an empty folder with a virtual environment of `python`. That is recorded outside, before
        anything of a package is unpacked. Of two that want the same, one builds and the other waits;
        different ones are built side by side.
        """
        import shutil

        place = self.root / key
        with hold_lock(self.root, key):
            if force or not self.works(key):
                for left in stale_in(self.root):
                    shutil.rmtree(left, ignore_errors=True)
                with stage_folder(place) as work:
                    self._record(key, python)
                    build(work)
            self.mark_used(key)
            yield place

    def _record(self, key: str, python: Interpreter) -> None:
        folder = self.root / _RUNTIMES
        folder.mkdir(exist_ok=True)
        written = folder / f"{key}.new"
        written.write_text(json.dumps([python.executable, python.prefix, python.version]))
        written.replace(folder / key)

    @contextlib.contextmanager
    def scratch(self) -> Iterator[Path]:
        """Yield an empty folder on the same disk, for as long as the block lasts."""
        with _temporary_in(self.root) as temporary:
            work = temporary / "work"
            work.mkdir()
            yield work

    def mark_used(self, key: str) -> None:
        """Note that a virtual environment is used now; nothing happens for one that is not there."""
        with contextlib.suppress(OSError):  # gone, or on a disk that is only read
            (self.root / key / _USED).touch()

    def last_used(self, key: str) -> datetime:
        """Return when a virtual environment was last built or used."""
        place = self.root / key
        found = place / _USED if (place / _USED).exists() else place
        return datetime.fromtimestamp(found.stat().st_mtime, UTC)

    def remove(self, key: str) -> bool:
        """Remove one unless somebody builds or installs it now; returns whether it went."""
        try:
            with hold_lock(self.root, key, wait=False):
                discard(self.root / key)
                (self.root / _RUNTIMES / key).unlink(missing_ok=True)
        except (BlockingIOError, FileNotFoundError):
            return False
        return True


def runtime_of(python: Path) -> Runtime | None:
    """Return what the virtual environment of an interpreter was made from; None if that is not recorded."""
    virtualenv = python.parent.parent
    return VirtualEnvironments(virtualenv.parent.parent).runtime(virtualenv.name)


@contextlib.contextmanager
def hold_lock(root: Path, name: str, *, wait: bool = True) -> Iterator[None]:
    """Hold the lock of one thing in a folder of many; raises `BlockingIOError` instead of waiting."""
    folder = root / ".locks"
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / name).open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield


@contextlib.contextmanager
def stage_folder(place: Path) -> Iterator[Path]:
    """Yield a temporary folder beside `place` that becomes `place` when the block succeeds."""
    with _temporary_in(place.parent) as temporary:
        work = temporary / "work"
        work.mkdir()
        yield work
        with contextlib.suppress(FileNotFoundError):  # there was none
            os.rename(place, temporary / "old")
        os.rename(work, place)


@contextlib.contextmanager
def _temporary_in(folder: Path) -> Iterator[Path]:
    """Yield a folder whose lock is held; it is gone after the block, or swept away when this is killed."""
    import shutil
    import tempfile

    folder.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(prefix=".making-", dir=folder))
    try:
        with (temporary / "lock-to-be").open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            os.rename(file.name, temporary / _LOCK)  # so that nobody ever finds it there and free
            yield temporary
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def copy_by_links(source: Path, target: Path) -> None:
    """Copy a virtual environment; its files are those of the source wherever the disk can link."""
    import shutil

    shutil.copytree(source, target, symlinks=True, copy_function=_link_or_copy)


def _link_or_copy(source: str, target: str) -> None:
    import shutil

    try:
        os.link(source, target, follow_symlinks=False)
    except OSError:  # no links on this disk, or too many of one file
        shutil.copy2(source, target, follow_symlinks=False)


def give_bytecode(copy: Path, original: Path) -> None:
    """Give what was compiled in a copy to the virtual environment that it was copied from.

    The next copy need not compile it again, which takes most of the time in which an environment loads.
    """
    for cache in copy.glob("lib/python3*/site-packages/**/__pycache__"):
        place = original / cache.relative_to(copy)
        if not place.parent.is_dir():  # of the copy alone
            continue
        place.mkdir(exist_ok=True)
        for compiled in cache.iterdir():
            source = place.parent / f"{compiled.name.partition('.')[0]}.py"
            if source.exists() and not (place / compiled.name).exists():
                with contextlib.suppress(FileExistsError):  # somebody else gave it meanwhile
                    _link_or_copy(str(compiled), str(place / compiled.name))


def discard(folder: Path) -> None:
    """Remove a folder; it is out of sight before its files go."""
    import shutil
    import tempfile

    gone = Path(tempfile.mkdtemp(prefix=".gone-", dir=folder.parent))
    try:
        os.rename(folder, gone / folder.name)
    finally:
        shutil.rmtree(gone, ignore_errors=True)  # what is left is swept later


def stale_in(folder: Path) -> list[Path]:
    """Return the temporary folders of builds and removals in a folder whose process was killed."""
    if not folder.is_dir():
        return []
    found = sorted(each for each in folder.iterdir() if each.name.startswith(_TEMPORARY))
    return [each for each in found if not _is_held(each)]


def _is_held(temporary: Path) -> bool:
    """Tell whether the process that made a temporary folder still works in it."""
    try:
        with (temporary / _LOCK).open() as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return False
    except BlockingIOError:
        return True
    except FileNotFoundError:
        with contextlib.suppress(FileNotFoundError):
            return time.time() - temporary.stat().st_mtime < _YOUNG_SECONDS
        return True  # gone meanwhile


def space_of(folder: Path) -> Space:
    """Return what a folder takes of the disk, each file counted once however often it is linked."""
    seen: set[tuple[int, int]] = set()
    size = frees = 0
    for parent, _, files in os.walk(folder):
        for name in files:
            try:
                found = os.lstat(os.path.join(parent, name))
            except FileNotFoundError:
                continue
            if (found.st_dev, found.st_ino) in seen:
                continue
            seen.add((found.st_dev, found.st_ino))
            size += found.st_size
            frees += found.st_size if found.st_nlink == 1 else 0
    return Space(size, frees)
