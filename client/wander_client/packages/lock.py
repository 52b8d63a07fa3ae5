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
from urllib.parse import urlsplit, urlunsplit

from packaging.pylock import (
    Package,
    PackageArchive,
    PackageDirectory,
    PackageVcs,
    Pylock,
    PylockSelectError,
    PylockValidationError,
)
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import Version
from wander.system.child_environ import HUB_JOB
from wander.wire.gate import LOCK as LOCK_TEXT
from wander.wire.gate import read_toml
from wander.wire.package_index import (
    FileAddress,
    hub_file,
    origin_of,
    parse_file_address,
)

from wander_client.errors import ClientError, Unavailable, name_option
from wander_client.hub.api import HubApi
from wander_client.packages.classic import lower_bounds
from wander_client.packages.index_proxy import serve_index_proxy
from wander_client.packages.indexes import configured_origins, falls_through, uv_settings
from wander_client.packages.interpreters import HERE, OLDEST_PYTHON, Interpreter, choose_python
from wander_client.packages.needs import (
    HUB_OWNER,
    HUB_PACKAGES,
    Supplies,
    Wheel,
    fetch_linked,
    find_served,
    find_supplies,
    metadata_of,
)
from wander_client.packages.uv import builds_packages, run_uv
from wander_client.paths import path_below

LOCK = "pylock.toml"
_PYPI = "https://pypi.org/simple/"
_PYPI_FILES = "https://files.pythonhosted.org"
_PUBLIC_HOSTS = frozenset(
    {"files.pythonhosted.org", "download.pytorch.org", "download-r2.pytorch.org", "pypi.nvidia.com"}
)
"""Where files stay: everybody reaches these, and their addresses name the same bytes for ever."""
_DIGEST = re.compile(r"[0-9a-f]{64}")
_LINE = re.compile(
    r"[a-z0-9][a-z0-9-]*(==[0-9][A-Za-z0-9.!+]*| @ file:///[A-Za-z0-9/._~%+-]+)( --hash=sha256:[0-9a-f]{64})+"
)
"""What uv is given for one package, and no more."""
_LARGEST_DOWNLOAD = 16 << 30
"""Bytes of all files that a machine takes of a lock."""
_NO_LOCK = name_option("lock", False) + " publishes without a lock, and the version's page says so"


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
    own = Wheel.to_publish(wheel, hub, owner)
    what = f"{own.project} {own.version}"
    needs = find_supplies(hub, cache_dir, own, warn)
    newer = ["--exclude-newer", exclude_newer] if exclude_newer else []
    everywhere = ["--universal", "--python-version", str(_oldest_python(metadata["Requires-Python"]))]
    try:
        data, whole = _resolve(hub, owner, needs, what, [*everywhere, *newer], keep_hosts), True
        content = _write(data).encode()
    except Unavailable:
        raise
    except ClientError as error:
        if error.code != "uv_failed":
            raise
        try:
            python = choose_python(metadata["Requires-Python"], f"`{what}`", warn)
            content, whole = lock_here(hub, owner, needs, what, python, newer, keep_hosts), False
        except ClientError:
            error.hint = "correct what the package requires, or look at your package index; " + _NO_LOCK
            raise error from None
        reason = (error.detail or "").strip().partition("\n")[0].removeprefix("error: ")
        warn(f"the lock is valid for {python} only; your package index lacks what others need: {reason}")
    return ResolvedLock(content, len(read_lock(content).packages), whole)


def lock_here(
    hub: HubApi,
    owner: str,
    needs: Supplies,
    what: str,
    python: Interpreter,
    options: Sequence[str] = (),
    keep_hosts: Collection[str] = (),
) -> bytes:
    """Return a lock that holds for one Python of this machine; raises `ClientError`."""
    data = _resolve(hub, owner, needs, what, ["--python", str(python.path), *options], keep_hosts)
    data["requires-python"] = f">={python.minor}"
    data["environments"] = [
        f"implementation_name == '{sys.implementation.name}' and python_version == '{python.minor}' "
        f"and sys_platform == '{sys.platform}' and platform_machine == '{platform.machine()}'"
    ]
    return _write(data).encode()


def _resolve(
    hub: HubApi, owner: str, needs: Supplies, what: str, options: Sequence[str], keep_hosts: Collection[str]
) -> dict[str, Any]:
    """Return the lock that uv makes of the hub's wheels and all they need, with nothing of this machine.

    What `owner` or `wander` offers comes from the hub alone, whatever other indexes have under its name.
    """
    # What is to be upstream's is not the hub's, though the hub has something of that name.
    elsewhere = {canonicalize_name(Requirement(line).name) for line in needs.first.splitlines()}
    with (
        tempfile.TemporaryDirectory(prefix="wander-lock-") as name,
        serve_index_proxy(hub, owner, elsewhere) as proxy,
    ):
        work = Path(name)
        requirements, overriding = work / "requirements.in", work / "overrides.txt"
        wanted = [needs.first, *(f"{wheel.project} @ {wheel.path.as_uri()}" for wheel in needs.own)]
        wanted += needs.programs
        if builds_packages() and falls_through(uv_settings(os.environ)):
            # No archive of another index is built, which would run its code, to be refused below.
            wanted += [f"--only-binary {each}" for each in hub.projects(owner) if each not in elsewhere]
        requirements.write_text("".join(f"{line}\n" for line in wanted if line))
        overriding.write_text(needs.overrides)
        try:
            run_uv(
                [
                    "pip", "compile", "--quiet", "--no-header", "--format", "pylock.toml",
                    "--generate-hashes", *options, "--override", str(overriding),
                    str(requirements), "--output-file", str(work / LOCK),
                ],
                doing=f"resolving the dependencies of `{what}`",
                index=proxy.index,
            )  # fmt: skip
        except ClientError as error:
            raise proxy.refusal or error from error
        made = tomllib.loads(proxy.with_hub_addresses((work / LOCK).read_text(encoding="utf-8")))
        _refuse_strangers(made, proxy.held, hub.absolute("/"))
    return _portable(made, needs, {*_PUBLIC_HOSTS, *keep_hosts, urlsplit(hub.url).netloc})


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
        return Pylock.from_dict(read_toml(content, LOCK_TEXT))
    except (ValueError, PylockValidationError) as error:
        raise ClientError("this is not a `pylock.toml`", code="bad_lock", detail=str(error)) from error


def install_lines(hub: HubApi, cache_dir: Path, lock: Pylock, own: Wheel, python: Interpreter = HERE) -> str:
    """Return what uv installs with `--require-hashes`: the files of a lock that this machine takes.

    The wheel of the environment is the one that the hub lists; its packages are as the lock says. No word of
    a lock gets to uv as it stands: a line is a name, a version and digests that were parsed, for the indexes
    of this machine, or a file that lies here and has the digest.
    """
    label = f"{own.project} {own.version}"
    addresses = _Addresses(hub, lock, own.project)
    lines = [line_of_file(own.project, own.path, own.sha256)]
    for package, file in _select(lock, label, python):
        if package.name == own.project:
            continue
        digest = (
            _digest_of(package, file.hashes) if not isinstance(file, PackageVcs | PackageDirectory) else ""
        )
        if not digest or file.url is None:
            raise ClientError(f"the lock names no file of `{package.name}`", code="bad_lock")
        address = addresses.read(package, file.url)
        if served := addresses.of_hub(address, package):
            path = find_served(hub, cache_dir, package.name, address.filename, digest, served).path
        elif addresses.in_index(address, package, file):
            lines.append(_line_of_index(package))
            continue
        else:
            path = addresses.fetch(cache_dir, address, package, digest, file.size)
        lines.append(line_of_file(package.name, path, digest))
    return "".join(f"{line}\n" for line in lines)


def _select(lock: Pylock, label: str, python: Interpreter) -> list[tuple[Package, Any]]:
    """Return the packages of a lock that a Python takes, each with its file."""
    try:
        found = list(lock.select(environment=python.environment, tags=python.tags))
    except PylockSelectError as error:
        raise ClientError(
            f"the lock of `{label}` does not hold for {python}", code="lock_platform", detail=str(error)
        ) from error
    if sum(max(0, getattr(file, "size", None) or 0) for _, file in found) > _LARGEST_DOWNLOAD:
        raise ClientError(
            f"the packages of `{label}` have more than {_LARGEST_DOWNLOAD >> 30} GiB, as its lock states",
            hint="choose another version, or ask its owner to require less",
            code="unsafe_package",
        )
    return found


class _Addresses:
    """The addresses of a lock, and where this machine gets what they name."""

    def __init__(self, hub: HubApi, lock: Pylock, own: str) -> None:
        urls = [
            hub.url,
            *(file.url for each in lock.packages if each.name == own for file in each.wheels or []),
        ]
        self._home = {origin_of(url) for url in [hub.url, *urls] if url is not None}
        """Origins of the hub: the current one, and the one when the lock was made."""
        self._indexes = configured_origins(os.environ) | {_PYPI_FILES}
        self._strict = os.environ.get(HUB_JOB) == "1"

    def read(self, package: Package, url: str) -> FileAddress:
        """Return an address in its parts; raises `ClientError` for one that is not plain."""
        try:
            address = parse_file_address(url, {*self._home, *self._indexes, origin_of(url)})
        except ValueError as error:
            raise ClientError(
                f"the lock names an address of `{package.name}` that is refused: {error}",
                hint="ask its owner to publish a corrected version",
                code="bad_lock",
                detail=url[:200],
            ) from error
        return address

    def of_hub(self, address: FileAddress, package: Package) -> str | None:
        """Return the owner whose file of the hub this is; None for a file of others."""
        owner, project = hub_file(address) or ("", "")
        bundled = owner == HUB_OWNER and project in HUB_PACKAGES  # what hubs bundle, of whichever hub
        return owner if project == package.name and (bundled or address.origin in self._home) else None

    def in_index(self, address: FileAddress, package: Package, file: object) -> bool:
        """Return whether the indexes of this machine have a file."""
        known = address.origin in self._indexes or self._strict
        return known and not isinstance(file, PackageArchive) and package.version is not None

    def fetch(
        self, cache_dir: Path, address: FileAddress, package: Package, digest: str, size: int | None
    ) -> Path:
        """Return a file that lies elsewhere, fetched over https and with its digest checked."""
        if self._strict:
            raise ClientError(
                f"the lock takes `{package.name}` from an address; this machine asks only its indexes",
                hint="require a release of it that a package index has",
                code="lock_address",
            )
        if not address.origin.startswith("https:"):
            raise ClientError(
                f"the lock takes `{package.name}` from `{address.origin}`, not an index of this machine",
                hint="ask its owner to publish a lock whose files come over https",
                code="bad_lock",
            )
        target = path_below(cache_dir / "wheels", digest, address.filename)
        fetch_linked(address, target, digest, size)
        return target


def line_of_file(name: str, path: Path, sha256: str) -> str:
    """Return the line that makes uv install a file of this machine."""
    return _checked(f"{name} @ {path.as_uri()} --hash=sha256:{sha256}")


def _line_of_index(package: Package) -> str:
    """Return the line that makes uv install a package from the indexes of this machine, by its digests."""
    digests = [_digest_of(package, file.hashes) for file in package.wheels or []]
    digests += [_digest_of(package, package.sdist.hashes)] if package.sdist is not None else []
    hashes = " ".join(f"--hash=sha256:{digest}" for digest in digests)
    return _checked(f"{package.name}=={package.version} {hashes}")


def _digest_of(package: Package, hashes: Mapping[str, str]) -> str:
    digest = str(hashes.get("sha256", ""))
    if not _DIGEST.fullmatch(digest):
        raise ClientError(f"the lock states no SHA-256 of a file of `{package.name}`", code="bad_lock")
    return digest


def _checked(line: str) -> str:
    """Return a line for uv; raises `ClientError` if it could be read as anything else."""
    if not _LINE.fullmatch(line):
        raise ClientError(
            "the lock names a package in a form that is refused", code="bad_lock", detail=line[:200]
        )
    return line


def _oldest_python(requires_python: str | None) -> Version:
    """Return the oldest Python that a package and the SDK allow."""
    try:
        bounds = lower_bounds(SpecifierSet(requires_python or ""))
    except ValueError:  # neither a specifier nor, after `===`, a version
        return OLDEST_PYTHON
    return max([OLDEST_PYTHON, *(bound for bound, _ in bounds)])


def _portable(lock: Mapping[str, Any], needs: Supplies, hosts: Collection[str]) -> dict[str, Any]:
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
