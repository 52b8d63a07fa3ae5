"""Runs uv, which builds, resolves and installs for us, with the indexes configured for pip or uv."""

from __future__ import annotations

import contextlib
import os
import resource
import shutil
import signal
import stat
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import distributions
from pathlib import Path

from wander.system.child_environ import LOCALE, NETWORK, child_environ
from wander.wire.reproduction import toml_lines
from wander.wire.transfers import DATA_FOLDERS, RESERVED_COMMAND

from wander_client.context import may_build
from wander_client.errors import ClientError, Unavailable
from wander_client.packages.indexes import certificates, uv_settings

_NETWORK_SIGNS = ("error sending request", "dns error", "connection refused", "timed out", "failed to fetch")
_BUILD_SIGNS = ("building source distributions", "building from source is disabled")
_INSTALLING = {("pip", "install"), ("pip", "sync"), ("pip", "compile")}
_PASSED = (
    *("UV_CACHE_DIR", "UV_NO_CACHE", "UV_CONCURRENT_BUILDS", "UV_CONCURRENT_DOWNLOADS"),
    *("UV_CONCURRENT_INSTALLS", "UV_EXCLUDE_NEWER", "UV_HTTP_TIMEOUT", "UV_HTTP_RETRIES", "UV_INSECURE_HOST"),
    *("UV_KEYRING_PROVIDER", "UV_LINK_MODE", "UV_NATIVE_TLS", "UV_SYSTEM_CERTS", "UV_OFFLINE", "UV_PREVIEW"),
    *("UV_PYTHON_DOWNLOADS", "UV_PYTHON_INSTALL_DIR", "UV_PYTHON_INSTALL_MIRROR", "UV_PYTHON_PREFERENCE"),
    *("UV_TORCH_BACKEND", "XDG_CACHE_HOME", "XDG_DATA_HOME", "NETRC", "SSL_CLIENT_CERT"),
)
"""Settings of uv that hold no password. Indexes are in a file (`wander_client.packages.indexes`)."""
KEPT_FREE = "WANDER_KEPT_FREE_BYTES"
"""The variable with the bytes that an installation leaves free on a disk. A hub sets it for its jobs."""
_KEPT_FREE = 256 << 20
_LARGEST_FILE, _LARGEST_INSTALL, _LARGEST_MEMORY = 8 << 30, 32 << 30, 8 << 30
"""Bytes of one file that uv writes, of the disk that one of its commands takes, and of its memory."""
_SECONDS = 3600.0
"""Time that one command of uv has."""
_LOOK_SECONDS, _PRUNE_SECONDS = 0.25, 60.0


def uv_binary() -> str:
    """Return the path of uv: the one installed with us, else the one on PATH."""
    try:
        from uv import find_uv_bin

        return str(find_uv_bin())
    except (ImportError, FileNotFoundError):
        found = shutil.which("uv")
    if found is None:
        raise ClientError("uv is not installed", hint="run `pip install uv`", code="uv_missing")
    return found


def run_uv(
    arguments: Sequence[str],
    *,
    doing: str,
    index: str | None = None,
    variables: Mapping[str, str] | None = None,
    target: Path | None = None,
) -> str:
    """Run uv and return its stdout; a failure becomes an error that shows what uv said.

    It works in a folder of its own, with a short environment. `index` is asked before all that are
    configured. What it writes to its cache and to `target` is bounded, and so are its memory and its time:
    neither an index nor a package decides how much that is.
    """
    command = [uv_binary(), *arguments]
    # For `uv pip` there is no variable of this meaning; ours is the one that other commands of uv have.
    installs = tuple(arguments[:2]) in _INSTALLING
    refuses_builds = installs and not builds_packages()
    if refuses_builds:
        command.append("--no-build")
    passed = child_environ(
        *(*LOCALE, *NETWORK, *_PASSED),
        **{"UV_NO_PROGRESS": "1", "NO_COLOR": "1", **certificates(os.environ), **(variables or {})},
    )
    with tempfile.TemporaryDirectory(prefix="wander-uv-") as folder:
        settings = Path(folder, "uv.toml")
        settings.touch(0o600)
        settings.write_text("\n".join(toml_lines(uv_settings(os.environ, index))), encoding="utf-8")
        room = _Room([_cache_folder(), Path(folder), *([] if target is None else [target])])
        done = _run_bounded([*command, "--config-file", str(settings)], passed, folder, room, doing)
    if done.returncode == 0:
        return done.stdout
    said = "\n".join((done.stderr.strip() or done.stdout.strip()).splitlines()[-25:])
    if refuses_builds and any(sign in said.lower() for sign in _BUILD_SIGNS):
        raise ClientError(
            f"{doing} failed: a package has no wheel for this machine, and building it would run its code",
            hint="`--build` builds it, outside of any sandbox: only if you trust the package",
            code="build_needed",
            detail=said,
        )
    if any(sign in said.lower() for sign in _NETWORK_SIGNS):
        raise Unavailable(
            f"{doing} failed: a package index did not answer",
            hint="check the network and your pip or uv index settings, then try again",
            code="index_unreachable",
            detail=said,
        )
    raise ClientError(f"{doing} failed", detail=said, code="uv_failed", hint="see the output of uv above")


@dataclass
class _Room:
    """The disks that uv writes to, and how much of them it may take."""

    places: Sequence[Path]
    free: dict[int, tuple[Path, int]] = field(default_factory=dict)
    """By device: an existing folder on it, and what was free at the start."""

    def __post_init__(self) -> None:
        for place in self.places:
            while not place.exists():
                place = place.parent
            self.free.setdefault(place.stat().st_dev, (place, _free_bytes(place)))

    def is_left(self) -> bool:
        """Return whether uv has taken no more than it may, and leaves enough free."""
        kept = int(os.environ.get(KEPT_FREE) or _KEPT_FREE)
        return all(
            (left := _free_bytes(place)) >= min(kept, free // 2) and free - left <= _LARGEST_INSTALL
            for place, free in self.free.values()
        )


def _free_bytes(place: Path) -> int:
    found = os.statvfs(place)
    return found.f_bavail * found.f_frsize


def _cache_folder() -> Path:
    """Return where uv keeps what it fetched and unpacked."""
    if (stated := os.environ.get("UV_CACHE_DIR")) is not None:
        return Path(stated).absolute()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache").absolute() / "uv"


def _run_bounded(
    command: Sequence[str], environ: Mapping[str, str], folder: str, room: _Room, doing: str
) -> subprocess.CompletedProcess[str]:
    """Run uv until it ends; raises `ClientError` if it goes beyond a bound, and then frees what it took."""
    until = time.monotonic() + _SECONDS
    fault = ""
    with subprocess.Popen(  # noqa: S603 - uv's own path and our arguments, no shell
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environ,
        cwd=folder,
    ) as process:
        try:
            _set_limits(process.pid)
            while not fault:
                try:
                    out, said = process.communicate(timeout=_LOOK_SECONDS)
                    break
                except subprocess.TimeoutExpired:
                    if time.monotonic() > until:
                        fault = f"it takes longer than {_SECONDS:,.0f} s"
                    elif not room.is_left():
                        fault = f"it takes more than {_LARGEST_INSTALL >> 30} GiB of the disk, or all of it"
        finally:
            process.kill()
    if not fault and (process.returncode == -signal.SIGXFSZ or "file too large" in said.lower()):
        fault = f"a package or an index sends a file of more than {_LARGEST_FILE >> 30} GiB"
    elif not fault and process.returncode == -signal.SIGABRT and "memory allocation" in said:
        fault = f"what a package or an index sends takes more than {_LARGEST_MEMORY >> 30} GiB of memory"
    if not fault:
        return subprocess.CompletedProcess(command, process.returncode, out, said)
    # What uv was unpacking stays in its cache until then.
    with contextlib.suppress(subprocess.TimeoutExpired):
        subprocess.run(  # noqa: S603 - uv's own path
            [command[0], "cache", "prune", "--quiet"],
            env=environ,
            cwd=folder,
            timeout=_PRUNE_SECONDS,
            capture_output=True,
            check=False,
        )
    raise ClientError(
        f"{doing} failed: {fault}",
        hint="look at what the package requires, and at the disk; another version may need less",
        code="unsafe_package",
    )


def _set_limits(pid: int) -> None:
    """Bound the files and the memory of uv, where the system can (Linux)."""
    if not hasattr(resource, "prlimit"):
        return
    limits = {resource.RLIMIT_FSIZE: _LARGEST_FILE}
    if not builds_packages():  # compilers take what they need
        limits[resource.RLIMIT_DATA] = _LARGEST_MEMORY
    for limit, most in limits.items():
        with contextlib.suppress(ProcessLookupError):  # it has ended already
            _, hard = resource.prlimit(pid, limit)
            bound = most if hard == resource.RLIM_INFINITY else min(most, hard)
            resource.prlimit(pid, limit, (bound, bound))


def builds_packages() -> bool:
    """Return whether uv may build packages that have no wheel: only after the user said so."""
    return may_build() or os.environ.get("UV_NO_BUILD") == "0"


def make_virtualenv(folder: Path, python: Path) -> None:
    """Make a virtual environment of a Python in a folder, from where it may be moved."""
    options = ["--quiet", "--relocatable", "--no-project", "--allow-existing", "--python", str(python)]
    run_uv(["venv", *options, str(folder)], doing="making the virtual environment")


def install_into(virtualenv: Path, arguments: Sequence[str], *, doing: str) -> None:
    """Have `uv pip` install into a virtual environment; `arguments` are a subcommand and its options.

    Raises `ClientError` if a package has put something where packages have no business, such as `pyvenv.cfg`
    or `bin/python`. What came is looked at, rather than what wheels announce: no spelling of a path helps
    then.
    """
    before = _outline(virtualenv)
    command, *options = arguments
    words = ["pip", command, "--python", str(virtualenv / "bin" / "python"), *options]
    run_uv(words, doing=doing, target=virtualenv)
    for path, found in sorted(_outline(virtualenv).items()):
        if found != before.get(path) and path != ".lock" and not _is_free(path, path in before):
            package = _find_package(virtualenv, path) or "a package"
            raise ClientError(
                f"{doing} failed: {package} puts `{path}` into the virtual environment",
                hint=f"ask its owner: data may go into {', '.join(DATA_FOLDERS)} alone",
                code="unsafe_package",
            )


def _is_free(path: str, existed: bool) -> bool:
    """Tell whether a package may put something at a path that is not below one of its folders."""
    folder, _, name = path.rpartition("/")
    if folder == "bin":
        return not existed and not RESERVED_COMMAND.fullmatch(name)
    return path in DATA_FOLDERS


def _outline(virtualenv: Path) -> dict[str, tuple[object, ...]]:
    """Return what is outside of the packages' own folders: of each path, what would change with it."""
    found: dict[str, tuple[object, ...]] = {}
    for folder, folders, files in os.walk(virtualenv):
        below = os.path.relpath(folder, virtualenv)
        for name in (*folders, *files):
            status = os.lstat(os.path.join(folder, name))
            kind = stat.S_IFMT(status.st_mode)
            changing = (status.st_ino, status.st_size, status.st_mtime_ns)
            found[os.path.normpath(os.path.join(below, name))] = (
                kind,
                *(() if kind == stat.S_IFDIR else changing),
            )
        folders[:] = [name for name in folders if not (name in DATA_FOLDERS and below == ".")]
        if below.startswith("lib"):
            folders[:] = [name for name in folders if name != "site-packages"]
    return found


def _find_package(virtualenv: Path, path: str) -> str | None:
    """Return the package whose record names a path of the virtual environment, or something below it."""
    wanted = f"{virtualenv / path}/"
    for site in virtualenv.glob("lib/python*/site-packages"):
        for package in distributions(path=[str(site)]):
            for file in package.files or ():
                if f"{os.path.normpath(site.joinpath(*file.parts))}/".startswith(wanted):
                    return f"`{package.name} {package.version}`"
    return None
