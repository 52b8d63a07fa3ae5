"""Runs uv, which builds, resolves and installs for us, with the indexes configured for pip or uv."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from importlib.metadata import distributions
from pathlib import Path

from wander.system.child_environ import LOCALE, NETWORK, child_environ
from wander.wire.reproduction import toml_lines
from wander.wire.uploads import DATA_FOLDERS, RESERVED_COMMAND

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
) -> str:
    """Run uv and return its stdout; a failure becomes an error that shows what uv said.

    It works in a folder of its own, with a short environment. `index` is asked before all that are
    configured.
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
        done = subprocess.run(  # noqa: S603 - uv's own path and our arguments, no shell
            [*command, "--config-file", str(settings)],
            capture_output=True,
            text=True,
            env=passed,
            cwd=folder,
            check=False,
            stdin=subprocess.DEVNULL,
        )
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
    run_uv(["pip", command, "--python", str(virtualenv / "bin" / "python"), *options], doing=doing)
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
