"""Locks (PEP 751): every package of an environment version, pinned by the digests of its files.

A lock is resolved once, when a version is published, for every platform and Python that the version allows.
If the package index is a partial mirror, the lock is only for this machine's platform, and says so. It
contains the version's wheel, the hub's packages, and their dependencies.
A lock must mean the same on every machine. So the files of PyPI packages have PyPI's URLs, whatever mirror
served them, and no URL contains credentials. `install_lines` requests names, versions and digests, so the
package index of the installing machine, mirror or not, supplies the files.
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
from wander.wire.package_index import (
    FileAddress,
    hub_file,
    origin_of,
    parse_file_address,
)
from wander.wire.untrusted_text import LOCK as LOCK_TEXT
from wander.wire.untrusted_text import read_toml

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
"""Hosts whose URLs stay in the lock: they are public, and their URLs always mean the same bytes."""
_DIGEST = re.compile(r"[0-9a-f]{64}")
_LINE = re.compile(
    r"[a-z0-9][a-z0-9-]*(==[0-9][A-Za-z0-9.!+]*| @ file:///[A-Za-z0-9/._~%+-]+)( --hash=sha256:[0-9a-f]{64})+"
)
"""The only form of a requirement that is passed to uv."""
_LARGEST_DOWNLOAD = 16 << 30
"""Maximum size of all files of a lock for one machine, in bytes."""
_NO_LOCK = name_option("lock", False) + " publishes without a lock; the version's page shows this"


@dataclass(frozen=True)
class ResolvedLock:
    """The lock of a version in its published form."""

    content: bytes
    packages: int
    everywhere: bool
    """Whether the lock is for all platforms; False means only this machine's platform and Python."""

    @property
    def sha256(self) -> str:
        """Digest of the lock, which runs pin."""
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
    """Lock the dependencies of a wheel, with digests. Raises `ClientError` if they cannot be resolved.

    `owner` is the owner of the environment. `exclude_newer`, a date or time, ignores packages that were
    uploaded later. `keep_hosts` are public indexes (`host` or `host:port`) whose URLs stay in the lock.
    `warn` is called if the lock is only for this machine.
    """
    metadata = metadata_of(wheel)
    own = Wheel.to_publish(wheel, hub, owner)
    label = f"{own.project} {own.version}"
    needs = find_supplies(hub, cache_dir, own, warn)
    newer = ["--exclude-newer", exclude_newer] if exclude_newer else []
    everywhere = ["--universal", "--python-version", str(_oldest_python(metadata["Requires-Python"]))]
    try:
        data, is_universal = _resolve(hub, owner, needs, label, [*everywhere, *newer], keep_hosts), True
        content = _write(data).encode()
    except Unavailable:
        raise
    except ClientError as error:
        if error.code != "uv_failed":
            raise
        try:
            python = choose_python(metadata["Requires-Python"], f"`{label}`", warn)
            content, is_universal = lock_here(hub, owner, needs, label, python, newer, keep_hosts), False
        except ClientError:
            error.hint = "fix the package's requirements, or check your package index; " + _NO_LOCK
            raise error from None
        reason = (error.detail or "").strip().partition("\n")[0].removeprefix("error: ")
        warn(
            f"the lock is valid only for {python}, because your package index lacks files for other "
            f"platforms: {reason}"
        )
    return ResolvedLock(content, len(read_lock(content).packages), is_universal)


def lock_here(
    hub: HubApi,
    owner: str,
    needs: Supplies,
    label: str,
    python: Interpreter,
    options: Sequence[str] = (),
    keep_hosts: Collection[str] = (),
) -> bytes:
    """Return a lock for one Python of this machine. Raises `ClientError`."""
    data = _resolve(hub, owner, needs, label, ["--python", str(python.path), *options], keep_hosts)
    data["requires-python"] = f">={python.minor}"
    data["environments"] = [
        f"implementation_name == '{sys.implementation.name}' and python_version == '{python.minor}' "
        f"and sys_platform == '{sys.platform}' and platform_machine == '{platform.machine()}'"
    ]
    return _write(data).encode()


def _resolve(
    hub: HubApi, owner: str, needs: Supplies, label: str, options: Sequence[str], keep_hosts: Collection[str]
) -> dict[str, Any]:
    """Resolve the hub's wheels and their dependencies to a lock without any data of this machine.

    Packages of `owner` and of `wander` come only from the hub, whatever other indexes have under the same
    names.
    """
    # These packages must come from upstream, even if the hub has packages with the same names.
    upstream = {canonicalize_name(Requirement(line).name) for line in needs.first.splitlines()}
    with (
        tempfile.TemporaryDirectory(prefix="wander-lock-") as name,
        serve_index_proxy(hub, owner, upstream) as proxy,
    ):
        work = Path(name)
        requirements, overriding = work / "requirements.in", work / "overrides.txt"
        wanted = [needs.first, *(f"{wheel.project} @ {wheel.path.as_uri()}" for wheel in needs.own)]
        wanted += needs.programs
        if builds_packages() and falls_through(uv_settings(os.environ)):
            # Otherwise, uv could build an archive from another index, and run its code, before it is rejected
            # below.
            wanted += [
                f"--only-binary {project}" for project in hub.projects(owner) if project not in upstream
            ]
        requirements.write_text("".join(f"{line}\n" for line in wanted if line))
        overriding.write_text(needs.overrides)
        try:
            run_uv(
                [
                    "pip", "compile", "--quiet", "--no-header", "--format", "pylock.toml",
                    "--generate-hashes", *options, "--override", str(overriding),
                    str(requirements), "--output-file", str(work / LOCK),
                ],
                doing=f"resolving the dependencies of `{label}`",
                index=proxy.index,
            )  # fmt: skip
        except ClientError as error:
            raise proxy.refusal or error from error
        lock = tomllib.loads(proxy.with_hub_addresses((work / LOCK).read_text(encoding="utf-8")))
        _require_hub_files(lock, proxy.held, hub.absolute("/"))
    return _portable(lock, needs, {*_PUBLIC_HOSTS, *keep_hosts, urlsplit(hub.url).netloc})


def _require_hub_files(lock: Mapping[str, Any], held: Collection[str], hub: str) -> None:
    """Raise `ClientError` for files of another index under a name that the hub stores."""
    for package in lock["packages"]:
        files = [*package.get("wheels", []), *([package["sdist"]] if "sdist" in package else [])]
        foreign = [file for file in files if not str(file.get("url", "")).startswith(hub)]
        if package["name"] in held and foreign:
            raise ClientError(
                f"`{package['name']}` {package['version']} comes from another index, but the hub has a "
                "package with this name",
                hint="ask the owner to publish a matching version, or fix the requirement",
                code="ambiguous_name",
                detail=_without_secrets(str(package["index"]), package["name"])
                if "index" in package
                else None,
            )


def origins_in(content: bytes) -> dict[str, str]:
    """Return where each package of a lock comes from: the URL of its index if known, otherwise of its file's
    host."""
    origins = {}
    for package in tomllib.loads(content.decode())["packages"]:
        file = (package.get("wheels") or [package.get("sdist") or package.get("archive") or {}])[0]
        url = str(file.get("url", ""))
        parts = urlsplit(url)
        origins[package["name"]] = _index_of(url, package["name"]) or f"{parts.scheme}://{parts.netloc}"
    return origins


def _index_of(url: str, name: str) -> str | None:
    """Return the index of a file if its URL reveals it: PyPI, or the index of an owner on a hub."""
    if url.startswith(f"{_PYPI_FILES}/"):
        return _PYPI
    match = re.fullmatch(rf"(https?://.+)/files/{re.escape(name)}/[^/]+", url)
    return f"{match[1]}/simple/" if match else None


def read_lock(content: bytes) -> Pylock:
    """Parse a lock. Raises `ClientError` if it is invalid."""
    try:
        return Pylock.from_dict(read_toml(content, LOCK_TEXT))
    except (ValueError, PylockValidationError) as error:
        raise ClientError("this is not a `pylock.toml`", code="bad_lock", detail=str(error)) from error


def install_lines(hub: HubApi, cache_dir: Path, lock: Pylock, own: Wheel, python: Interpreter = HERE) -> str:
    """Return the requirements of a lock for this machine, for uv with `--require-hashes`.

    The environment's wheel is the one on the hub, and its packages come from the lock. No text of a lock is
    passed to uv unchanged: each line is built from a parsed name, version and digests, or from a local file
    with the digest.
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
            raise ClientError(f"the lock has no file for `{package.name}`", code="bad_lock")
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
    """Return the packages of a lock that a Python interpreter needs, each with its file."""
    try:
        selected = list(lock.select(environment=python.environment, tags=python.tags))
    except PylockSelectError as error:
        raise ClientError(
            f"the lock of `{label}` does not support {python}", code="lock_platform", detail=str(error)
        ) from error
    if sum(max(0, getattr(file, "size", None) or 0) for _, file in selected) > _LARGEST_DOWNLOAD:
        raise ClientError(
            f"the packages of `{label}` have more than {_LARGEST_DOWNLOAD >> 30} GiB, according to its lock",
            hint="choose another version, or ask its owner to use fewer dependencies",
            code="unsafe_package",
        )
    return selected


class _Addresses:
    """The URLs of a lock, and where this machine gets the files."""

    def __init__(self, hub: HubApi, lock: Pylock, own: str) -> None:
        urls = [
            hub.url,
            *(file.url for package in lock.packages if package.name == own for file in package.wheels or []),
        ]
        self._home = {origin_of(url) for url in [hub.url, *urls] if url is not None}
        """Origins of the hub: the current origin, and the origin at the time of the lock."""
        self._indexes = configured_origins(os.environ) | {_PYPI_FILES}
        self._strict = os.environ.get(HUB_JOB) == "1"

    def read(self, package: Package, url: str) -> FileAddress:
        """Parse a URL. Raises `ClientError` if it is not a plain URL."""
        try:
            address = parse_file_address(url, {*self._home, *self._indexes, origin_of(url)})
        except ValueError as error:
            raise ClientError(
                f"the lock has an invalid URL for `{package.name}`: {error}",
                hint="ask its owner to publish a corrected version",
                code="bad_lock",
                detail=url[:200],
            ) from error
        return address

    def of_hub(self, address: FileAddress, package: Package) -> str | None:
        """Return the owner of a file on the hub, or None for other files."""
        owner, project = hub_file(address) or ("", "")
        bundled = owner == HUB_OWNER and project in HUB_PACKAGES  # every hub bundles these packages
        return owner if project == package.name and (bundled or address.origin in self._home) else None

    def in_index(self, address: FileAddress, package: Package, file: object) -> bool:
        """Return whether a file comes from the configured indexes."""
        known = address.origin in self._indexes or self._strict
        return known and not isinstance(file, PackageArchive) and package.version is not None

    def fetch(
        self, cache_dir: Path, address: FileAddress, package: Package, digest: str, size: int | None
    ) -> Path:
        """Download a file that is not in a configured index over https, and check its digest.

        Raises `ClientError` if the address is not https, or if this machine uses only its indexes.
        """
        if self._strict:
            raise ClientError(
                f"the lock has a URL for `{package.name}`, but this machine uses only its indexes",
                hint="require a release that is in a package index",
                code="lock_address",
            )
        if not address.origin.startswith("https:"):
            raise ClientError(
                f"the lock takes `{package.name}` from `{address.origin}`, which is not a configured index",
                hint="ask its owner to publish a lock with https URLs",
                code="bad_lock",
            )
        target = path_below(cache_dir / "wheels", digest, address.filename)
        fetch_linked(address, target, digest, size)
        return target


def line_of_file(name: str, path: Path, sha256: str) -> str:
    """Return the requirement that makes uv install a local file."""
    return _checked(f"{name} @ {path.as_uri()} --hash=sha256:{sha256}")


def _line_of_index(package: Package) -> str:
    """Return the requirement that makes uv install a package from the configured indexes, by its digests."""
    digests = [_digest_of(package, file.hashes) for file in package.wheels or []]
    digests += [_digest_of(package, package.sdist.hashes)] if package.sdist is not None else []
    hashes = " ".join(f"--hash=sha256:{digest}" for digest in digests)
    return _checked(f"{package.name}=={package.version} {hashes}")


def _digest_of(package: Package, hashes: Mapping[str, str]) -> str:
    digest = str(hashes.get("sha256", ""))
    if not _DIGEST.fullmatch(digest):
        raise ClientError(f"the lock has no SHA-256 digest for a file of `{package.name}`", code="bad_lock")
    return digest


def _checked(line: str) -> str:
    """Return a line for uv. Raises `ClientError` if uv could interpret it in another way."""
    if not _LINE.fullmatch(line):
        raise ClientError("the lock has an invalid package entry", code="bad_lock", detail=line[:200])
    return line


def _oldest_python(requires_python: str | None) -> Version:
    """Return the oldest Python that a package and the SDK support."""
    try:
        bounds = lower_bounds(SpecifierSet(requires_python or ""))
    except ValueError:  # an invalid specifier, or `===` with an invalid version
        return OLDEST_PYTHON
    return max([OLDEST_PYTHON, *(bound for bound, _ in bounds)])


def _portable(lock: Mapping[str, Any], needs: Supplies, hosts: Collection[str]) -> dict[str, Any]:
    """Return a lock without data of this machine: no paths, mirrors or credentials."""
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
        source = next((key for key in ("vcs", "directory", "archive") if key in package), "unknown")
        raise ClientError(
            f"`{name}` cannot be locked: it comes from {'a repository' if source == 'vcs' else 'a folder'}",
            hint=f"require a release instead; {_NO_LOCK}",
            code="unlockable",
        )
    if "sdist" in package and "sha256" in package["sdist"].get("hashes", {}):
        kept["sdist"] = _portable_file(package["sdist"], name, hosts)
    wheel_files = [file for file in package.get("wheels", []) if "sha256" in file.get("hashes", {})]
    if wheel_files:
        kept["wheels"] = [_portable_file(file, name, hosts) for file in wheel_files]
    return kept


def _portable_file(file: Mapping[str, Any], name: str, hosts: Collection[str]) -> dict[str, Any]:
    """Return a file of a package index with a URL that works on every machine."""
    parts = urlsplit(str(file.get("url") or file.get("path")))
    known = parts.scheme in ("https", "http") and parts.netloc.rpartition("@")[2] in hosts
    if known:
        url = _without_secrets(file["url"], name)
    else:  # PyPI's predictable URL of the file (see docs.pypi.org/api)
        filename = parts.path.rpartition("/")[2]
        kind = filename.removesuffix(".whl").split("-")[-3] if filename.endswith(".whl") else "source"
        url = f"{_PYPI_FILES}/packages/{kind}/{name[0]}/{name}/{filename}"
    kept = {key: file[key] for key in ("upload-time", "size") if key in file}
    return {"url": url, **kept, "hashes": {"sha256": file["hashes"]["sha256"]}}


def _without_secrets(url: str, name: str) -> str:
    """Return a URL without user, password, query and fragment."""
    parts = urlsplit(url)
    if parts.scheme not in ("https", "http") or parts.hostname is None:
        raise ClientError(
            f"`{name}` cannot be locked, because its URL starts with `{parts.scheme}:`", code="unlockable"
        )
    host = f"{parts.hostname}:{parts.port}" if parts.port else parts.hostname
    return urlunsplit((parts.scheme, host, parts.path, "", ""))


def _write(lock: Mapping[str, Any]) -> str:
    """Return the text of a lock, with one line per file."""
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
        table.update({key: _inline(item) for key, item in value.items()})
        return table
    if isinstance(value, list):
        array = tomlkit.array()
        array.extend(_inline(item) for item in value)
        return array.multiline(len(value) > 1)
    return value
