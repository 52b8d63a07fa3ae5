"""The host's files that a sandboxed environment can read, and their paths in the sandbox.

The decision depends only on facts that the host knows: the Python that created a virtual environment, as
recorded before a package was unpacked, and the paths that the user named. Files that a package can write are
never read for the decision.
"""

from __future__ import annotations

import json
import os
import pwd
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Literal

from wander.errors import SandboxError

VIRTUALENV = "/virtualenv"
"""Path in the sandbox of an installed environment's virtual environment. It is the same on every machine, so
that file names do not reveal where the environment runs."""
INSIDE = "/inside.py"
"""Path in the sandbox of its first program (`wander.sandbox.inside`)."""
HOSTS = "/etc/hosts"
"""Path in the sandbox of a file with the addresses of `localhost`. It does not contain the host's names."""
_SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64")
_LOADER_CACHE = "/etc/ld.so.cache"
"""File that lists the libraries outside of the usual folders for the loader."""
_LIVE = ("/proc", "/sys", "/dev", "/run")
"""Folders of the kernel and the running system, whose contents are never shown."""
_KEPT_BACK = ("/", "/etc", "/home", "/root", "/tmp", "/var/tmp", *_LIVE)  # noqa: S108 - compared, not written
_FIRST_PERSON, _NOBODY = 1000, 65_534
"""User ids. Smaller ids than the first belong to services, whose home may be `/usr/sbin`."""
_ADDED_BY_SITE = """
import json, site, sys
before = set(sys.path)
site.main()
print(json.dumps([path for path in sys.path if path not in before]))
"""

Kind = Literal["system", "python", "packages", "virtualenv", "source", "read", "wander"]


@dataclass(frozen=True)
class Runtime:
    """A Python and the virtual environment created from it, as known before a package was unpacked there."""

    executable: str
    """Path of the base interpreter, without symbolic links."""
    prefix: str
    """Folder in which the base interpreter is installed, without symbolic links."""
    version: str
    """Full version, such as `3.12.1`."""
    virtualenv: str

    @property
    def site_packages(self) -> str:
        """Folder of packages, relative to the virtual environment."""
        major, minor = self.version.split(".")[:2]
        return f"lib/python{major}.{minor}/site-packages"


@dataclass(frozen=True)
class Bind:
    """A folder or file of the host that is shown read-only."""

    kind: Kind
    source: str
    """Path on the host, without symbolic links."""
    path: str
    """Path in the sandbox."""
    device: int
    inode: int
    """Inode of the source, which identifies it together with the device."""


@dataclass(frozen=True)
class Visible:
    """The files that an interpreter and an environment need."""

    python: str
    """Base interpreter, which runs the worker."""
    executable: str
    """Path in the sandbox of the virtual environment's Python, which the environment's programs start."""
    prefix: str
    """Path in the sandbox of the virtual environment."""
    binds: tuple[Bind, ...]
    """Binds, none of them inside another, so that nothing is mounted below a folder that an environment
    provides."""
    links: tuple[tuple[str, str], ...]
    """Target and path of the system's symbolic links."""
    import_path: tuple[str, ...]
    """Folders of the worker's packages; `.pth` files are not read."""

    def find_on_host(self, path: str) -> str | None:
        """Return the host's path, without symbolic links, of a path in the sandbox. None if the sandbox does
        not show it."""
        path = os.path.normpath(path)
        for bind in self.binds:
            if _is_below(path, bind.path):
                real = os.path.realpath(bind.source + path[len(bind.path) :])
                if any(_is_below(real, shown.source) for shown in self.binds):
                    return real
        return None


def choose_binds(
    runtime: Runtime | None, source: Path | None, read: Iterable[str], hide: Iterable[str] = ()
) -> Visible:
    """Return the files that a worker sees.

    `runtime` is the environment's Python; None means this process's own Python. `source` is the local
    environment, if any, and `hide` names folders to hide. Raises `SandboxError` if a file is missing or must
    not be shown.
    """
    guard = _Guard(hide)
    folders, links = system_folders()
    binds: list[Bind | None] = [guard.bind("system", folder) for folder in folders]
    if runtime is not None:
        python, base, prefix = runtime.executable, runtime.prefix, VIRTUALENV
        executable = f"{VIRTUALENV}/bin/python"
        import_path = [f"{VIRTUALENV}/{runtime.site_packages}"]
        binds.append(guard.bind("virtualenv", runtime.virtualenv, VIRTUALENV))
    else:
        python, base = own_python()
        prefix, executable = os.path.realpath(sys.prefix), python
        import_path = [os.path.realpath(path) for path in _own_packages()]
        if prefix != base:
            executable = f"{prefix}/bin/{os.path.basename(sys.executable)}"
            binds.append(guard.bind("virtualenv", prefix))
        binds += [guard.bind("packages", path) for path in import_path]
    binds += [guard.bind("python", path) for path in (base, python)]
    binds.append(guard.bind("wander", str(Path(__file__).with_name("inside.py")), INSIDE))
    binds.append(guard.bind("wander", str(Path(__file__).with_name("hosts")), HOSTS))
    binds += [guard.bind("read", path) for path in read]
    if source is not None:
        binds.append(guard.bind("source", str(source)))
    shown = outermost(filter(None, binds))
    return Visible(python, executable, prefix, shown, tuple(links), tuple(import_path))


def identify(path: str) -> tuple[str, int, int]:
    """Return a path without symbolic links, its device and its inode, for the launcher."""
    real = os.path.realpath(path)
    status = os.stat(real)
    return real, status.st_dev, status.st_ino


def system_folders() -> tuple[list[str], list[tuple[str, str]]]:
    """Return the paths of the system's folders and of the loader's cache, and the system's links with their
    targets first."""
    links = [(os.readlink(folder), folder) for folder in _SYSTEM if os.path.islink(folder)]
    shown = [folder for folder in _SYSTEM if os.path.isdir(folder) and not os.path.islink(folder)]
    return [*shown, *([_LOADER_CACHE] if os.path.exists(_LOADER_CACHE) else [])], links


def require_known(python: Path | None, runtime: Runtime | None) -> None:
    """Raise `SandboxError` if the only facts about a Python are in files that packages can write."""
    if python is None or runtime is not None:
        return
    if Path(python).absolute() != Path(sys.executable).absolute():
        raise SandboxError(
            f"`{python}` cannot be confined: the Python behind its virtual environment was not recorded",
            hint="install the environment again, or pass the `runtime` that was recorded at its creation",
        )


def own_python() -> tuple[str, str]:
    """Return this process's base interpreter and its prefix, without symbolic links."""
    base: str = sys._base_executable  # type: ignore[attr-defined]
    return os.path.realpath(base), os.path.realpath(sys.base_prefix)


def outermost(binds: Iterable[Bind]) -> tuple[Bind, ...]:
    """Return the binds whose path is not inside another bind's path, in order."""
    ordered: list[Bind] = []
    for bind in sorted(binds, key=lambda bind: bind.path):
        if not any(_is_below(bind.path, kept.path) for kept in ordered):
            ordered.append(bind)
    return tuple(ordered)


class _Guard:
    """Decides which files may be shown. It compares folders by identity, so that the spelling of a path is
    irrelevant."""

    def __init__(self, hide: Iterable[str]) -> None:
        hidden = [os.path.realpath(path) for path in hide]
        kept_back = [*_KEPT_BACK, *hidden, *_homes()]
        kept_back += map(os.path.realpath, (os.path.expanduser("~"), tempfile.gettempdir()))
        self._hidden = _identities(hidden)
        self._live = _identities(_LIVE)
        self._holders = _identities(folder for place in kept_back for folder in _upwards(place))
        """Identities of all protected folders and of every folder that contains one."""

    def bind(self, kind: Kind, source: str, path: str | None = None) -> Bind | None:
        """Return a bind for a path after all checks; None for a file in the system's folders."""
        real = os.path.realpath(source)
        if kind == "python" and any(_is_below(real, folder) for folder in _SYSTEM):
            return None
        around = _identities(_upwards(real))
        if not (found := _identities([real])):
            raise SandboxError(
                f"`{source}` does not exist, and the sandbox needs it",
                hint="install the environment again" if kind in ("python", "virtualenv") else None,
            )
        refused = found & self._holders or around & self._live
        # The host itself chose the paths of Python and virtual environment. The user chose all other paths.
        if kind in ("source", "read"):
            refused |= around & self._hidden
        if refused or (kind == "virtualenv" and os.path.islink(source)):
            raise SandboxError(
                f"`{source}` cannot be shown to an environment in the sandbox",
                hint="move the files that it needs into a separate folder, and name that folder",
            )
        (identity,) = found
        return Bind(kind, real, path or real, *identity)


def _identities(paths: Iterable[str]) -> set[tuple[int, int]]:
    """Return device and inode of those paths that exist."""
    found = set()
    for path in paths:
        with suppress(OSError):
            status = os.stat(path)
            found.add((status.st_dev, status.st_ino))
    return found


def _upwards(path: str) -> Iterator[str]:
    """Yield a path and every folder above it."""
    yield path
    while (parent := os.path.dirname(path)) != path:
        path = parent
        yield path


def _is_below(path: str, folder: str) -> bool:
    return path == folder or path.startswith(folder.rstrip("/") + "/")


@cache
def _homes() -> tuple[str, ...]:
    """Return the home folders of this machine's users, as far as the system lists them."""
    people = [
        entry
        for entry in pwd.getpwall()
        if _FIRST_PERSON <= entry.pw_uid != _NOBODY or entry.pw_uid in (0, os.getuid())
    ]
    return tuple(os.path.realpath(entry.pw_dir) for entry in people if entry.pw_dir)


@cache
def _own_packages() -> tuple[str, ...]:
    """Return the folders that this interpreter imports packages from by default.

    A new process determines them, because running programs add folders to `sys.path`. The user created this
    interpreter's environment, so everything that is installed there already runs with the user's rights.
    """
    asked = [sys.executable, "-E", "-P", "-S", "-c", _ADDED_BY_SITE]
    try:
        done = subprocess.run(asked, capture_output=True, check=True, timeout=60)  # noqa: S603 - this Python
        found: list[str] = json.loads(done.stdout)
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        raise SandboxError(f"cannot determine the package folders of `{sys.executable}`: {error}") from error
    return tuple(path for path in found if os.path.isdir(path))
