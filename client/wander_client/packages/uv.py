"""Runs uv, which builds, resolves and installs for us, with the indexes configured for pip or uv."""

from __future__ import annotations

import configparser
import os
import re
import shutil
import stat
import subprocess
import sys
from collections.abc import Mapping, Sequence
from importlib.metadata import distributions
from itertools import pairwise
from pathlib import Path
from urllib.parse import urlsplit

from wander.wire.uploads import DATA_FOLDERS, RESERVED_COMMAND

from wander_client.context import may_build
from wander_client.errors import ClientError, Unavailable

# When one of these is set the user has configured uv itself, and pip's settings say nothing.
_UV_INDEX_VARIABLES = ("UV_INDEX", "UV_DEFAULT_INDEX", "UV_INDEX_URL", "UV_EXTRA_INDEX_URL", "UV_FIND_LINKS")
_NETWORK_SIGNS = ("error sending request", "dns error", "connection refused", "timed out", "failed to fetch")


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


def run_uv(arguments: Sequence[str], *, doing: str, variables: Mapping[str, str] | None = None) -> str:
    """Run uv and return its stdout; a failure becomes an error that shows what uv said."""
    base = {**os.environ, "UV_NO_PROGRESS": "1", "NO_COLOR": "1", **(variables or {})}
    certificates = pip_options(base).get("cert")
    if certificates and "SSL_CERT_FILE" not in base:
        base["SSL_CERT_FILE"] = certificates[-1]
    base.pop("VIRTUAL_ENV", None)
    # For `uv pip` there is no variable of this meaning; ours is the one that other commands of uv have.
    if list(arguments[:1]) == ["pip"] and not may_build() and base.get("UV_NO_BUILD") != "0":
        arguments = [*arguments, "--no-build"]
    done = subprocess.run(  # noqa: S603 - uv's own path and our arguments, no shell
        [uv_binary(), *arguments],
        capture_output=True,
        text=True,
        env=base,
        check=False,
        stdin=subprocess.DEVNULL,
    )
    if done.returncode == 0:
        return done.stdout
    said = "\n".join((done.stderr.strip() or done.stdout.strip()).splitlines()[-25:])
    if any(sign in said.lower() for sign in _NETWORK_SIGNS):
        raise Unavailable(
            f"{doing} failed: a package index did not answer",
            hint="check the network and your pip or uv index settings, then try again",
            code="index_unreachable",
            detail=said,
        )
    raise ClientError(f"{doing} failed", detail=said, code="uv_failed", hint="see the output of uv above")


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


def index_arguments(environ: Mapping[str, str] | None = None) -> list[str]:
    """Return uv arguments for the indexes of pip's configuration, which uv does not read by itself."""
    environ = os.environ if environ is None else environ
    if any(environ.get(name) for name in _UV_INDEX_VARIABLES):
        return []
    options = pip_options(environ)
    arguments: list[str] = []
    if options.get("no-index", [""])[-1].lower() in ("1", "true", "yes", "on"):
        arguments.append("--no-index")
    elif options.get("index-url"):
        arguments += ["--default-index", options["index-url"][-1]]
    for url in options.get("extra-index-url", []):
        arguments += ["--index", url]
    if options.get("extra-index-url"):
        # pip looks in every index; uv would stop at the first that has the name, whatever versions it has.
        arguments += ["--index-strategy", "unsafe-first-match"]
    for place in options.get("find-links", []):
        arguments += ["--find-links", place]
    return arguments


def configured_origins() -> set[str]:
    """Return `scheme://host:port` of every index and link folder that is configured for pip or uv."""
    arguments = index_arguments()
    named = [value for name, value in pairwise(arguments) if name.startswith("--") and "://" in value]
    for variable in _UV_INDEX_VARIABLES:  # an index may have a name: `internal=https://...`
        words = re.split(r"[\s,]+", os.environ.get(variable, ""))
        named += [word if "=" not in word.partition("://")[0] else word.partition("=")[2] for word in words]
    parts = [urlsplit(url) for url in named]
    return {f"{each.scheme}://{each.netloc.rpartition('@')[2]}" for each in parts if each.netloc}


def put_first(index: str) -> tuple[list[str], dict[str, str]]:
    """Return uv's arguments and variables for an index on this machine, ahead of all that are configured.

    It is named by a variable, since arguments are for everybody to see who is on this machine.
    """
    arguments = index_arguments()
    others = os.environ.get("UV_INDEX", "").split()
    while "--index" in arguments:
        place = arguments.index("--index")
        others.append(arguments[place + 1])
        del arguments[place : place + 2]
    direct = ",".join(filter(None, [os.environ.get("NO_PROXY") or os.environ.get("no_proxy"), "127.0.0.1"]))
    return arguments, {"UV_INDEX": " ".join([index, *others]), "NO_PROXY": direct, "no_proxy": direct}


def may_fall_through(arguments: Sequence[str]) -> bool:
    """Tell whether uv looks at further indexes for versions that the first with a name does not have."""
    return "--index-strategy" in arguments or "unsafe" in os.environ.get("UV_INDEX_STRATEGY", "")


def pip_options(environ: Mapping[str, str]) -> dict[str, list[str]]:
    """Return pip's index options from its files and variables, each as a list of values."""
    options: dict[str, list[str]] = {}
    parser = configparser.RawConfigParser()
    for path in _pip_files(environ):
        try:
            parser.read(path, encoding="utf-8")
        except (configparser.Error, UnicodeDecodeError) as error:
            raise ClientError(
                f"`{path}` is not a pip configuration", hint="correct it", detail=str(error)
            ) from error
    for section in ("global", "install"):
        if parser.has_section(section):
            options.update({name: value.split() for name, value in parser.items(section) if value})
    for name in ("index-url", "extra-index-url", "find-links", "no-index", "cert"):
        value = environ.get(f"PIP_{name.upper().replace('-', '_')}")
        if value:
            options[name] = value.split()
    return options


def _pip_files(environ: Mapping[str, str]) -> list[Path]:
    """Return pip's files, the weakest first, in pip's order: global, user, site, PIP_CONFIG_FILE."""
    chosen = environ.get("PIP_CONFIG_FILE")
    if chosen == os.devnull:
        return []
    home = Path(environ.get("HOME", "~")).expanduser()
    xdg = Path(environ.get("XDG_CONFIG_HOME") or home / ".config")
    mac = sys.platform == "darwin"
    files = [Path("/Library/Application Support/pip/pip.conf") if mac else Path("/etc/xdg/pip/pip.conf")]
    files += [Path("/etc/pip.conf"), home / ".pip" / "pip.conf", xdg / "pip" / "pip.conf"]
    if mac:
        files.append(home / "Library" / "Application Support" / "pip" / "pip.conf")
    files.append(Path(sys.prefix) / "pip.conf")
    return [*files, *([Path(chosen)] if chosen else [])]
