"""Which files of the host a sandboxed environment can read, and where it finds them.

Everything follows from what the host knows: the Python that made a virtual environment, as it was recorded
before a package was unpacked, and what the user named. No file that a package can write is read to decide it.
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
"""The path inside of an installed environment's virtual environment. It is the same on every machine, so that
an environment's file names do not say where it runs."""
INSIDE = "/inside.py"
"""The path inside of the first program (`wander.sandbox.inside`)."""
HOSTS = "/etc/hosts"
"""The path inside of a file that gives `localhost` its addresses; no name of the host's own is in it."""
_SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64")
_LOADER_CACHE = "/etc/ld.so.cache"
"""Tells the loader where libraries outside of the usual folders are."""
_LIVE = ("/proc", "/sys", "/dev", "/run")
"""The kernel's and the running system's own folders: nothing in them is ever shown."""
_KEPT_BACK = ("/", "/etc", "/home", "/root", "/tmp", "/var/tmp", *_LIVE)  # noqa: S108 - compared, not written
_FIRST_PERSON, _NOBODY = 1000, 65_534
"""User ids: below the first are services, whose home may be `/usr/sbin`."""
_ADDED_BY_SITE = """
import json, site, sys
before = set(sys.path)
site.main()
print(json.dumps([path for path in sys.path if path not in before]))
"""

Kind = Literal["system", "python", "packages", "virtualenv", "source", "read", "wander"]


@dataclass(frozen=True)
class Runtime:
    """A Python, and the virtual environment made from it, as known before a package was unpacked there."""

    executable: str
    """The base interpreter, free of symbolic links."""
    prefix: str
    """The folder in which it is installed, free of symbolic links."""
    version: str
    """All of it, such as `3.12.1`."""
    virtualenv: str

    @property
    def site_packages(self) -> str:
        """The folder of packages, relative to the virtual environment."""
        major, minor = self.version.split(".")[:2]
        return f"lib/python{major}.{minor}/site-packages"


@dataclass(frozen=True)
class Bind:
    """A folder or file of the host that is shown, read-only."""

    kind: Kind
    source: str
    """Its path on the host, free of symbolic links."""
    path: str
    """Its path inside."""
    device: int
    inode: int
    """With the device, what the source was when it was looked at."""


@dataclass(frozen=True)
class Visible:
    """What an interpreter and an environment need to see."""

    python: str
    """The base interpreter, which runs the worker."""
    executable: str
    """The path inside of the virtual environment's Python, which programs of the environment start."""
    prefix: str
    """The path inside of the virtual environment."""
    binds: tuple[Bind, ...]
    """None of them is below another: nothing is mounted under what an environment brings."""
    links: tuple[tuple[str, str], ...]
    """Target and path of each symbolic link of the system."""
    import_path: tuple[str, ...]
    """Where the worker's packages are; `.pth` files are not read."""


def choose_binds(
    runtime: Runtime | None, source: Path | None, read: Iterable[str], hide: Iterable[str] = ()
) -> Visible:
    """Return what a worker sees; None as `runtime` is this process's own Python, `source` what it loads.

    `hide` names folders of which nothing is shown. Raises `SandboxError` if something is missing or must not
    be shown.
    """
    guard = _Guard(hide)
    links = []
    binds: list[Bind | None] = []
    for folder in _SYSTEM:
        if os.path.islink(folder):
            links.append((os.readlink(folder), folder))
        elif os.path.isdir(folder):
            binds.append(guard.bind("system", folder))
    if os.path.exists(_LOADER_CACHE):
        binds.append(guard.bind("system", _LOADER_CACHE))
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


def require_known(python: Path | None, runtime: Runtime | None) -> None:
    """Raise `SandboxError` for a Python of which nothing is known but files that packages can write."""
    if python is None or runtime is not None:
        return
    if Path(python).absolute() != Path(sys.executable).absolute():
        raise SandboxError(
            f"`{python}` cannot be confined: it is not recorded what its virtual environment was made from",
            hint="install the environment again, or pass the `runtime` that was recorded when it was made",
        )


def own_python() -> tuple[str, str]:
    """Return this process's base interpreter and its prefix, free of symbolic links."""
    base: str = sys._base_executable  # type: ignore[attr-defined]
    return os.path.realpath(base), os.path.realpath(sys.base_prefix)


def outermost(binds: Iterable[Bind]) -> tuple[Bind, ...]:
    """Return the binds without those whose path is below another's, in order."""
    ordered: list[Bind] = []
    for bind in sorted(binds, key=lambda bind: bind.path):
        if not any(_is_below(bind.path, kept.path) for kept in ordered):
            ordered.append(bind)
    return tuple(ordered)


class _Guard:
    """Decides what may be shown, by the identity of folders, so that no spelling of a path matters."""

    def __init__(self, hide: Iterable[str]) -> None:
        hidden = [os.path.realpath(path) for path in hide]
        kept_back = [*_KEPT_BACK, *hidden, *_homes()]
        kept_back += map(os.path.realpath, (os.path.expanduser("~"), tempfile.gettempdir()))
        self._hidden = _identities(hidden)
        self._live = _identities(_LIVE)
        self._holders = _identities(folder for place in kept_back for folder in _upwards(place))
        """Each place that is kept back, and every folder that holds one."""

    def bind(self, kind: Kind, source: str, path: str | None = None) -> Bind | None:
        """Return a bind of what is at a path, after every check; None for a file of the system's folders."""
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
        # The host itself chose where a Python and a virtual environment are. A person chose all else.
        if kind in ("source", "read"):
            refused |= around & self._hidden
        if refused or (kind == "virtualenv" and os.path.islink(source)):
            raise SandboxError(
                f"`{source}` cannot be shown to an environment in the sandbox",
                hint="move what it needs into a folder of its own, and name that",
            )
        (identity,) = found
        return Bind(kind, real, path or real, *identity)


def _identities(paths: Iterable[str]) -> set[tuple[int, int]]:
    """Return the device and inode of each of the files and folders that exist."""
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
    """Return the homes of this machine's people, as far as it lists them."""
    people = [
        entry
        for entry in pwd.getpwall()
        if _FIRST_PERSON <= entry.pw_uid != _NOBODY or entry.pw_uid in (0, os.getuid())
    ]
    return tuple(os.path.realpath(entry.pw_dir) for entry in people if entry.pw_dir)


@cache
def _own_packages() -> tuple[str, ...]:
    """Return where this interpreter imports packages from when nobody tells it otherwise.

    A process that starts only for this says so, since programs add folders of their own to `sys.path`. The
    user made this interpreter's environment: whatever is installed there runs as the user already.
    """
    asked = [sys.executable, "-E", "-P", "-S", "-c", _ADDED_BY_SITE]
    try:
        done = subprocess.run(asked, capture_output=True, check=True, timeout=60)  # noqa: S603 - this Python
        found: list[str] = json.loads(done.stdout)
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        raise SandboxError(f"`{sys.executable}` does not say where its packages are: {error}") from error
    return tuple(path for path in found if os.path.isdir(path))
