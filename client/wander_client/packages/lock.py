"""Locks (PEP 751): every package of an environment version, pinned by the digests of its files.

A lock is resolved once, when a version is published, for every platform and Python that the version allows;
where the package index is a partial mirror, for this machine's alone, and then the lock says so. It holds the
version's own wheel, the hub's packages, and what they require.

It has to mean the same on every machine. So the files of PyPI's packages stand at PyPI's addresses, whatever
mirror served them, no address holds credentials, and `install_lines` asks for names, versions and digests:
the package index of the machine that installs, mirror or not, supplies the bytes.
"""

from __future__ import annotations

import hashlib
import os
import platform
import re
import sys
import tempfile
import tomllib
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit, urlunsplit

from packaging.pylock import (
    PackageArchive,
    PackageDirectory,
    PackageVcs,
    Pylock,
    PylockSelectError,
    PylockValidationError,
)
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name, parse_wheel_filename
from packaging.version import Version

from wander_client.errors import ClientError, Unavailable
from wander_client.hub.api import HubApi
from wander_client.packages.classic import lower_bounds
from wander_client.packages.front import serve_hub_names
from wander_client.packages.interpreters import HERE, OLDEST_PYTHON, Interpreter, choose_python
from wander_client.packages.needs import (
    HUB_OWNER,
    HUB_PACKAGES,
    Needs,
    Wheel,
    find_served,
    metadata_of,
    needs_of,
    requirements_in,
)
from wander_client.packages.uv import configured_origins, may_fall_through, put_first, run_uv

LOCK = "pylock.toml"
_PYPI = "https://pypi.org/simple/"
_PYPI_HOST = "files.pythonhosted.org"
_PYPI_FILES = f"https://{_PYPI_HOST}"
INDEXES_ONLY = "WANDER_INDEXES_ONLY"
"""The variable that, set to 1, has what a lock names fetched from the configured indexes alone. A hub sets it
for its jobs: an address in a stranger's lock must not make it ask machines that only it can reach."""
_PUBLIC_HOSTS = frozenset(
    {"files.pythonhosted.org", "download.pytorch.org", "download-r2.pytorch.org", "pypi.nvidia.com"}
)
"""Where files stay: everybody reaches these, and their addresses name the same bytes for ever."""
_NO_LOCK = "`--no-lock` publishes without a lock, and the version's page says so"


@dataclass(frozen=True)
class ResolvedLock:
    """The lock of a version, as it is published."""

    content: bytes
    packages: int
    everywhere: bool
    """False where it holds for this machine's platform and Python alone."""

    @property
    def sha256(self) -> str:
        """Its digest, which runs pin."""
        return hashlib.sha256(self.content).hexdigest()


def resolve_lock(
    hub: HubApi,
    cache_dir: Path,
    owner: str,
    wheel: Path,
    *,
    exclude_newer: str | None = None,
    keep_hosts: Collection[str] = (),
    warn: Callable[[str], None] = lambda text: None,
) -> ResolvedLock:
    """Resolve what a wheel needs, with hashes; raises `ClientError` when it cannot be installed.

    `owner` is whose environment it is or will be; `exclude_newer`, a date or time, leaves out what package
    indexes took later; `keep_hosts` are indexes (`host` or `host:port`) that everybody reaches who will
    install it, whose addresses stay in the lock. `warn` is told where it holds for this machine alone.
    """
    metadata = metadata_of(wheel)
    project = parse_wheel_filename(wheel.name)[0]
    own = Wheel.at(wheel, hub.absolute(f"/{owner}/files/{project}/{wheel.name}"))
    what = f"{project} {own.version}"
    needs = needs_of(hub, cache_dir, own, requirements_in(metadata), warn)
    newer = ["--exclude-newer", exclude_newer] if exclude_newer else []
    everywhere = ["--universal", "--python-version", str(_oldest_python(metadata["Requires-Python"]))]
    try:
        text, whole = compile_lock(hub, owner, needs, what, [*everywhere, *newer]), True
    except Unavailable:
        raise
    except ClientError as error:
        if error.code != "uv_failed":
            raise
        try:
            python = choose_python(metadata["Requires-Python"], f"`{what}`", warn)
            here = ["--python", str(python.path), *newer]
            text, whole = compile_lock(hub, owner, needs, what, here), False
        except ClientError:
            error.hint = f"correct what the package requires, or look at your package index; {_NO_LOCK}"
            raise error from None
        reason = (error.detail or "").strip().partition("\n")[0].removeprefix("error: ")
        warn(f"the lock is valid for {python} only; your package index lacks what others need: {reason}")
    hosts = {*_PUBLIC_HOSTS, *keep_hosts, urlsplit(hub.url).netloc}
    data = _portable(tomllib.loads(text), needs, hosts)
    if not whole:
        data["requires-python"] = f">={python.minor}"
        data["environments"] = [
            f"implementation_name == '{sys.implementation.name}' and python_version == '{python.minor}' "
            f"and sys_platform == '{sys.platform}' and platform_machine == '{platform.machine()}'"
        ]
    content = _write(data).encode()
    return ResolvedLock(content, len(read_lock(content).packages), whole)


def compile_lock(hub: HubApi, owner: str, needs: Needs, what: str, options: Sequence[str]) -> str:
    """Return the lock that uv makes of the hub's wheels and all they need; their paths are this machine's.

    What `owner` or `wander` offers comes from the hub alone, whatever other indexes have under its name.
    """
    if os.environ.get(INDEXES_ONLY) == "1":
        _refuse_addresses(needs, what)
    # What is to be upstream's is not the hub's, though the hub has something of that name.
    elsewhere = {canonicalize_name(Requirement(line).name) for line in needs.first.splitlines()}
    with (
        tempfile.TemporaryDirectory(prefix="wander-lock-") as name,
        serve_hub_names(hub, owner, elsewhere) as front,
    ):
        work = Path(name)
        requirements, overriding = work / "requirements.in", work / "overrides.txt"
        wanted = [needs.first, *(f"{wheel.project} @ {wheel.path.as_uri()}" for wheel in needs.own)]
        wanted += needs.programs
        indexes, variables = put_first(front.index)
        if may_fall_through(indexes):
            # No archive of another index is built, which would run its code, to be refused below.
            wanted += [f"--only-binary {each}" for each in hub.projects(owner) if each not in elsewhere]
        requirements.write_text("".join(f"{line}\n" for line in wanted if line))
        overriding.write_text(needs.overrides)
        try:
            run_uv(
                [
                    "pip", "compile", "--quiet", "--no-header", "--format", "pylock.toml",
                    "--generate-hashes", *options, *indexes, "--override", str(overriding),
                    str(requirements), "--output-file", str(work / LOCK),
                ],
                doing=f"resolving the dependencies of `{what}`",
                variables=variables,
            )  # fmt: skip
        except ClientError as error:
            raise front.refusal or error from error
        text = front.with_hub_addresses((work / LOCK).read_text(encoding="utf-8"))
        _refuse_strangers(tomllib.loads(text), front.held, hub.absolute("/"))
        return text


def _refuse_addresses(needs: Needs, what: str) -> None:
    """Refuse requirements that name an address or a repository, which uv would ask."""
    stated = [line for wheel in needs.own for line in requirements_in(metadata_of(wheel.path))]
    for line in (*stated, *needs.first.splitlines(), *needs.programs):
        if line and Requirement(line).url is not None:
            raise ClientError(
                f"`{what}` requires `{Requirement(line).name}` from an address; this machine asks only its "
                "indexes",
                hint="require a release of it that a package index has",
                code="lock_address",
            )


def _refuse_strangers(lock: Mapping[str, Any], held: Collection[str], hub: str) -> None:
    """Refuse what another index offers under a name that the hub holds."""
    for package in lock["packages"]:
        files = [*package.get("wheels", []), *([package["sdist"]] if "sdist" in package else [])]
        strange = [file for file in files if not str(file.get("url", "")).startswith(hub)]
        if package["name"] in held and strange:
            raise ClientError(
                f"`{package['name']}` {package['version']} is from another index, but the hub holds the name",
                hint="ask the owner to publish a version that fits, or correct what requires it",
                code="ambiguous_name",
                detail=_without_secrets(str(package["index"]), package["name"])
                if "index" in package
                else None,
            )


def origins_in(content: bytes) -> dict[str, str]:
    """Return where each package of a lock comes from: an index, or the host of its file."""
    found = {}
    for package in tomllib.loads(content.decode())["packages"]:
        file = (package.get("wheels") or [package.get("sdist") or package.get("archive") or {}])[0]
        url = str(file.get("url", ""))
        parts = urlsplit(url)
        found[package["name"]] = _index_of(url, package["name"]) or f"{parts.scheme}://{parts.netloc}"
    return found


def _index_of(url: str, name: str) -> str | None:
    """Return the index that lists a file, where its address tells: PyPI, or that of an owner on a hub."""
    if url.startswith(f"{_PYPI_FILES}/"):
        return _PYPI
    place = re.fullmatch(rf"(https?://.+)/files/{re.escape(name)}/[^/]+", url)
    return f"{place[1]}/simple/" if place else None


def read_lock(content: bytes) -> Pylock:
    """Return a lock; raises `ClientError` for anything else."""
    try:
        return Pylock.from_dict(tomllib.loads(content.decode()))
    except (UnicodeDecodeError, tomllib.TOMLDecodeError, PylockValidationError) as error:
        raise ClientError("this is not a `pylock.toml`", code="bad_lock", detail=str(error)) from error


def install_lines(hub: HubApi, cache_dir: Path, lock: Pylock, own: Wheel, python: Interpreter = HERE) -> str:
    """Return what uv installs with `--require-hashes`: the files of a lock that this machine takes.

    The wheel of the environment is the one that the hub lists; its packages are as the lock says.
    """
    lines = [f"{own.project} @ {own.path.as_uri()} --hash=sha256:{own.sha256}"]
    try:
        selected = lock.select(environment=python.environment, tags=python.tags)
        chosen = [(package, file) for package, file in selected if package.name != own.project]
    except PylockSelectError as error:
        raise ClientError(
            f"the lock of `{own.project} {own.version}` does not hold for {python}",
            code="lock_platform",
            detail=str(error),
        ) from error
    own_urls = [file.url for each in lock.packages if each.name == own.project for file in each.wheels or []]
    home = {urlsplit(url).netloc for url in [hub.url, *own_urls] if url}
    """Addresses of the hub: the current one, and the one when the lock was made."""
    strict = os.environ.get(INDEXES_ONLY) == "1"
    origins = configured_origins() if strict else set()
    for package, file in chosen:
        if isinstance(file, PackageVcs | PackageDirectory) or file.url is None:
            raise ClientError(f"the lock names no file of `{package.name}`", code="bad_lock")
        digest, parts = file.hashes["sha256"], urlsplit(file.url)
        served = re.fullmatch(rf".*/([^/]+)/files/{re.escape(package.name)}/([^/]+)", parts.path)
        bundled = served is not None and served[1] == HUB_OWNER and package.name in HUB_PACKAGES
        if served is not None and (bundled or parts.netloc in home):
            # Of the hub itself; what hubs bundle, of whichever hub.
            owner, filename = served[1], unquote(served[2])
            wheel = find_served(hub, cache_dir, package.name, filename, digest, owner)
            lines.append(f"{package.name} @ {wheel.path.as_uri()} --hash=sha256:{digest}")
        elif f"{parts.scheme}://{parts.netloc}" in origins or (
            not strict and (isinstance(file, PackageArchive) or parts.netloc != _PYPI_HOST)
        ):
            lines.append(f"{package.name} @ {file.url} --hash=sha256:{digest}")
        elif isinstance(file, PackageArchive) or package.version is None:
            raise ClientError(
                f"the lock takes `{package.name}` from an address; this machine asks only its indexes",
                hint="require a release of it that a package index has",
                code="lock_address",
            )
        else:
            digests = [each.hashes["sha256"] for each in package.wheels or []]
            digests += [package.sdist.hashes["sha256"]] if package.sdist is not None else []
            hashes = " ".join(f"--hash=sha256:{each}" for each in digests)
            lines.append(f"{package.name}=={package.version} {hashes}")
    return "".join(f"{line}\n" for line in lines)


def _oldest_python(requires_python: str | None) -> Version:
    """Return the oldest Python that a package and the SDK allow."""
    try:
        bounds = lower_bounds(SpecifierSet(requires_python or ""))
    except ValueError:  # neither a specifier nor, after `===`, a version
        return OLDEST_PYTHON
    return max([OLDEST_PYTHON, *(bound for bound, _ in bounds)])


def _portable(lock: Mapping[str, Any], needs: Needs, hosts: Collection[str]) -> dict[str, Any]:
    """Return a lock in which nothing is of this machine: neither paths nor mirrors nor credentials."""
    wheels = {str(wheel.path): wheel for wheel in needs.wheels}
    return {
        "lock-version": lock["lock-version"],
        "created-by": "wander",
        "requires-python": lock["requires-python"],
        "packages": [_portable_package(package, wheels, hosts) for package in lock["packages"]],
    }


def _portable_package(
    package: Mapping[str, Any], wheels: Mapping[str, Wheel], hosts: Collection[str]
) -> dict[str, Any]:
    name = package["name"]
    kept = {key: package[key] for key in ("name", "version", "marker", "requires-python") if key in package}
    archive = package.get("archive")
    if archive is not None and archive.get("path") in wheels:
        wheel = wheels[archive["path"]]
        hashes = {"sha256": wheel.sha256}
        return kept | {"wheels": [{"url": wheel.url, "size": wheel.path.stat().st_size, "hashes": hashes}]}
    if archive is not None and "url" in archive:
        return kept | {"archive": {**archive, "url": _without_secrets(archive["url"], name)}}
    if "wheels" not in package and "sdist" not in package:
        place = next((key for key in ("vcs", "directory", "archive") if key in package), "nowhere")
        raise ClientError(
            f"`{name}` cannot be locked: it comes from {'a repository' if place == 'vcs' else 'a folder'}",
            hint=f"require a release of it; {_NO_LOCK}",
            code="unlockable",
        )
    if "sdist" in package and "sha256" in package["sdist"].get("hashes", {}):
        kept["sdist"] = _portable_file(package["sdist"], name, hosts)
    found = [each for each in package.get("wheels", []) if "sha256" in each.get("hashes", {})]
    if found:
        kept["wheels"] = [_portable_file(each, name, hosts) for each in found]
    return kept


def _portable_file(file: Mapping[str, Any], name: str, hosts: Collection[str]) -> dict[str, Any]:
    """Return a file of a package index at an address that every machine may ask."""
    parts = urlsplit(str(file.get("url") or file.get("path")))
    known = parts.scheme in ("https", "http") and parts.netloc.rpartition("@")[2] in hosts
    if known:
        url = _without_secrets(file["url"], name)
    else:  # where PyPI has a file by its name (docs.pypi.org/api, "predictable URLs")
        filename = parts.path.rpartition("/")[2]
        kind = filename.removesuffix(".whl").split("-")[-3] if filename.endswith(".whl") else "source"
        url = f"{_PYPI_FILES}/packages/{kind}/{name[0]}/{name}/{filename}"
    kept = {key: file[key] for key in ("upload-time", "size") if key in file}
    return {"url": url, **kept, "hashes": {"sha256": file["hashes"]["sha256"]}}


def _without_secrets(url: str, name: str) -> str:
    """Return an address without user, password, query and fragment."""
    parts = urlsplit(url)
    if parts.scheme not in ("https", "http") or parts.hostname is None:
        raise ClientError(f"`{name}` cannot be locked: it lies at `{parts.scheme}:`", code="unlockable")
    host = f"{parts.hostname}:{parts.port}" if parts.port else parts.hostname
    return urlunsplit((parts.scheme, host, parts.path, "", ""))


def _write(lock: Mapping[str, Any]) -> str:
    """Return the text of a lock, one line a file."""
    import tomlkit

    document = tomlkit.document()
    packages = tomlkit.aot()
    for package in lock["packages"]:
        table = tomlkit.table()
        for key, value in package.items():
            table.add(key, _inline(value))
        packages.append(table)
    for key, value in lock.items():
        document.add(key, packages if key == "packages" else value)
    return tomlkit.dumps(document)


def _inline(value: Any) -> Any:
    import tomlkit

    if isinstance(value, dict):
        table = tomlkit.inline_table()
        table.update({key: _inline(each) for key, each in value.items()})
        return table
    if isinstance(value, list):
        array = tomlkit.array()
        array.extend(_inline(each) for each in value)
        return array.multiline(len(value) > 1)
    return value
