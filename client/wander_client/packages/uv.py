"""Run uv, which builds, resolves and installs packages, with the indexes configured for pip or uv."""

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
"""Settings of uv that contain no password. Indexes are in a file (`wander_client.packages.indexes`)."""
KEPT_FREE = "WANDER_KEPT_FREE_BYTES"
"""Variable with the bytes that installations leave free on a disk. A hub sets it for its jobs."""
_KEPT_FREE = 256 << 20
_LARGEST_FILE, _LARGEST_INSTALL, _LARGEST_MEMORY = 8 << 30, 32 << 30, 8 << 30
"""Limits in bytes for a file that uv writes, the disk space of a command, and its memory."""
_SECONDS = 3600.0
"""Time limit of a uv command in seconds."""
_LOOK_SECONDS, _PRUNE_SECONDS = 0.25, 60.0


def uv_binary() -> str:
    """Return the path of uv: the uv that was installed with Wander, else the uv on PATH."""
    try:
        from uv import find_uv_bin

        return str(find_uv_bin())
    except (ImportError, FileNotFoundError):
        path = shutil.which("uv")
    if path is None:
        raise ClientError("uv is not installed", hint="run `pip install uv`", code="uv_missing")
    return path


def run_uv(
    arguments: Sequence[str],
    *,
    doing: str,
    index: str | None = None,
    variables: Mapping[str, str] | None = None,
    target: Path | None = None,
) -> str:
    """Run uv and return its stdout. Raises `ClientError` with uv's output if it fails.

    uv runs in a temporary folder with a minimal environment. `index` is used before all configured indexes.
    The size of its cache and of `target`, its memory and its time are limited, so that an index or a package
    cannot exhaust them.
    """
    command = [uv_binary(), *arguments]
    # `uv pip` has no variable for this. Wander's setting is the variable of uv's other commands.
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
        limits = _DiskLimits([_cache_folder(), Path(folder), *([] if target is None else [target])])
        done = _run_bounded([*command, "--config-file", str(settings)], passed, folder, limits, doing)
    if done.returncode == 0:
        return done.stdout
    message = "\n".join((done.stderr.strip() or done.stdout.strip()).splitlines()[-25:])
    if refuses_builds and any(sign in message.lower() for sign in _BUILD_SIGNS):
        raise ClientError(
            f"{doing} failed: a package has no wheel for this machine, and building it would run its code",
            hint="if you trust the package, pass `--build`, which builds it outside of the sandbox",
            code="build_needed",
            detail=message,
        )
    if any(sign in message.lower() for sign in _NETWORK_SIGNS):
        raise Unavailable(
            f"{doing} failed: a package index did not respond",
            hint="check the network and your pip or uv index settings, then try again",
            code="index_unreachable",
            detail=message,
        )
    raise ClientError(f"{doing} failed", detail=message, code="uv_failed", hint="see the output of uv above")


@dataclass
class _DiskLimits:
    """The disks that uv writes to, with their limits."""

    folders: Sequence[Path]
    free: dict[int, tuple[Path, int]] = field(default_factory=dict)
    """Folder on each device and its free space at the start, by device."""

    def __post_init__(self) -> None:
        for folder in self.folders:
            while not folder.exists():
                folder = folder.parent
            self.free.setdefault(folder.stat().st_dev, (folder, _free_bytes(folder)))

    def is_within(self) -> bool:
        """Return whether uv is within its limit, and leaves enough free space."""
        reserve = int(os.environ.get(KEPT_FREE) or _KEPT_FREE)
        return all(
            (now_free := _free_bytes(folder)) >= min(reserve, free // 2)
            and free - now_free <= _LARGEST_INSTALL
            for folder, free in self.free.values()
        )


def _free_bytes(folder: Path) -> int:
    status = os.statvfs(folder)
    return status.f_bavail * status.f_frsize


def _cache_folder() -> Path:
    """Return uv's cache folder."""
    if (stated := os.environ.get("UV_CACHE_DIR")) is not None:
        return Path(stated).absolute()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache").absolute() / "uv"


def _run_bounded(
    command: Sequence[str], environ: Mapping[str, str], folder: str, limits: _DiskLimits, doing: str
) -> subprocess.CompletedProcess[str]:
    """Run uv until it exits. If it exceeds a limit, frees the space that it used and raises `ClientError`."""
    deadline = time.monotonic() + _SECONDS
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
                    out, err = process.communicate(timeout=_LOOK_SECONDS)
                    break
                except subprocess.TimeoutExpired:
                    if time.monotonic() > deadline:
                        fault = f"it took longer than {_SECONDS:,.0f} s"
                    elif not limits.is_within():
                        fault = f"it needs more disk space than {_LARGEST_INSTALL >> 30} GiB, or than is free"
        finally:
            process.kill()
    if not fault and (process.returncode == -signal.SIGXFSZ or "file too large" in err.lower()):
        fault = f"a file of a package or an index is larger than {_LARGEST_FILE >> 30} GiB"
    elif not fault and process.returncode == -signal.SIGABRT and "memory allocation" in err:
        fault = f"a package or an index needs more than {_LARGEST_MEMORY >> 30} GiB of memory"
    if not fault:
        return subprocess.CompletedProcess(command, process.returncode, out, err)
    # Without this, the partly unpacked files would stay in uv's cache.
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
        hint="check the requirements of the package and the free disk space, or try another version",
        code="unsafe_package",
    )


def _set_limits(pid: int) -> None:
    """Limit uv's file sizes and memory, on systems that support it (Linux)."""
    if not hasattr(resource, "prlimit"):
        return
    limits = {resource.RLIMIT_FSIZE: _LARGEST_FILE}
    if not builds_packages():  # compilers may need more memory
        limits[resource.RLIMIT_DATA] = _LARGEST_MEMORY
    for limit, most in limits.items():
        with contextlib.suppress(ProcessLookupError):  # uv has already exited
            _, hard = resource.prlimit(pid, limit)
            bound = most if hard == resource.RLIM_INFINITY else min(most, hard)
            resource.prlimit(pid, limit, (bound, bound))


def builds_packages() -> bool:
    """Return whether uv may build packages without a wheel, which the user must allow."""
    return may_build() or os.environ.get("UV_NO_BUILD") == "0"


def make_virtualenv(folder: Path, python: Path) -> None:
    """Create a relocatable virtual environment for a Python interpreter."""
    options = ["--quiet", "--relocatable", "--no-project", "--allow-existing", "--python", str(python)]
    run_uv(["venv", *options, str(folder)], doing="creating the virtual environment")


def install_into(virtualenv: Path, arguments: Sequence[str], *, doing: str) -> None:
    """Install into a virtual environment with `uv pip`. `arguments` are a subcommand and its options.

    Raises `ClientError` if a package installs files where packages must not, such as `pyvenv.cfg` or
    `bin/python`. This compares the installed files instead of the paths in wheels, so no spelling of a path
    can bypass it.
    """
    before = _outline(virtualenv)
    command, *options = arguments
    words = ["pip", command, "--python", str(virtualenv / "bin" / "python"), *options]
    run_uv(words, doing=doing, target=virtualenv)
    for path, state in sorted(_outline(virtualenv).items()):
        if state != before.get(path) and path != ".lock" and not _is_allowed(path, path in before):
            package = _find_package(virtualenv, path) or "a package"
            raise ClientError(
                f"{doing} failed: {package} installs `{path}` into the virtual environment",
                hint="ask its owner to change this: packages can install data only into "
                f"{', '.join(DATA_FOLDERS)}",
                code="unsafe_package",
            )


def _is_allowed(path: str, existed: bool) -> bool:
    """Return whether a package may install a file outside of the packages' folders."""
    folder, _, name = path.rpartition("/")
    if folder == "bin":
        return not existed and not RESERVED_COMMAND.fullmatch(name)
    return path in DATA_FOLDERS


def _outline(virtualenv: Path) -> dict[str, tuple[object, ...]]:
    """Return the state of everything outside of the packages' folders, by path."""
    states: dict[str, tuple[object, ...]] = {}
    for folder, folders, files in os.walk(virtualenv):
        below = os.path.relpath(folder, virtualenv)
        for name in (*folders, *files):
            status = os.lstat(os.path.join(folder, name))
            kind = stat.S_IFMT(status.st_mode)
            changing = (status.st_ino, status.st_size, status.st_mtime_ns)
            states[os.path.normpath(os.path.join(below, name))] = (
                kind,
                *(() if kind == stat.S_IFDIR else changing),
            )
        folders[:] = [name for name in folders if not (name in DATA_FOLDERS and below == ".")]
        if below.startswith("lib"):
            folders[:] = [name for name in folders if name != "site-packages"]
    return states


def _find_package(virtualenv: Path, path: str) -> str | None:
    """Return the package whose record contains a path of the virtual environment, or a path below it."""
    wanted = f"{virtualenv / path}/"
    for site in virtualenv.glob("lib/python*/site-packages"):
        for package in distributions(path=[str(site)]):
            for file in package.files or ():
                if f"{os.path.normpath(site.joinpath(*file.parts))}/".startswith(wanted):
                    return f"`{package.name} {package.version}`"
    return None
