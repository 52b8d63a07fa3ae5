"""Packages that an environment needs from the hub: its own wheel, and packages that hubs serve themselves.

`wander-sdk`, `wander-client`, the plugins and the classic API (`wander-compat`, `verifiers`) come from the
hub's index (`/wander/simple/`) if the hub serves them. They are resolved by direct URL, so that no other
index can replace them.
"""

from __future__ import annotations

import hashlib
import os
import re
import struct
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.message import Message
from email.parser import BytesParser
from pathlib import Path
from typing import IO
from zipfile import ZIP_DEFLATED, ZIP_STORED, BadZipFile, ZipFile, ZipInfo

from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import InvalidWheelFilename, canonicalize_name, parse_wheel_filename
from packaging.version import Version
from wander.system.child_environ import HUB_JOB
from wander.wire import FileInfo
from wander.wire.package_index import FileAddress, IndexFile, check_requirement, parse_file_address

from wander_client.errors import ClientError
from wander_client.hub.api import HubApi
from wander_client.packages import classic
from wander_client.paths import path_below

HUB_OWNER = "wander"
"""Owner of the packages that a hub serves itself."""
LARGEST_METADATA = 16 << 20
LARGEST_UNPACKED = 32 << 30
_FREE_UNPACKED, _MOST_RATIO = 1 << 30, 100
"""Maximum unpacked size of any wheel, and the maximum compression ratio of larger wheels."""
_METADATA = re.compile(r"[^/]+\.dist-info/METADATA")
SDK, CLIENT = "wander-sdk", "wander-client"
INTEGRATIONS = "wander-integrations"
HUB_PACKAGES = (SDK, CLIENT, classic.COMPAT, classic.PROJECT, INTEGRATIONS, "wander-ray")
"""Packages that hubs serve themselves."""


@dataclass(frozen=True)
class Wheel:
    """A downloaded and checked wheel from the hub, or a local wheel."""

    project: str
    version: str
    path: Path
    url: str
    sha256: str

    @classmethod
    def to_publish(cls, path: Path, hub: HubApi, owner: str) -> Wheel:
        """Return a local wheel with the URL that it will have on the hub."""
        project, version, *_ = parse_wheel_filename(path.name)
        url = hub.absolute(f"/{owner}/files/{project}/{path.name}")
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
        return cls(project, str(version), path.resolve(), url, digest)


def metadata_of(wheel: Path) -> Message:
    """Return the core metadata of a wheel. Raises `ClientError` if the file has no valid metadata."""
    try:
        with ZipFile(wheel) as archive:
            entries = [entry for entry in archive.infolist() if _METADATA.fullmatch(entry.filename)]
            if len(entries) == 1 and entries[0].file_size <= LARGEST_METADATA:
                return BytesParser().parsebytes(archive.read(entries[0]))
    except (BadZipFile, OSError, NotImplementedError, RuntimeError, zlib.error) as error:
        raise ClientError(f"`{wheel.name}` is not a wheel", code="bad_wheel", detail=str(error)) from error
    raise ClientError(
        f"`{wheel.name}` is not a wheel: it does not have exactly one METADATA", code="bad_wheel"
    )


def requirements_in(metadata: Message) -> list[str]:
    """Return the requirements in core metadata, unparsed."""
    return [str(text) for text in metadata.get_all("Requires-Dist") or []]


def read_requirement(text: str, label: str) -> Requirement:
    """Parse a requirement of the package `label`. Raises `ClientError` if it must not be passed to uv.

    uv also accepts environment variables, options after a line break, and programs.
    """
    try:
        requirement = Requirement(text)
        check_requirement(text, requirement.url)
    except (InvalidRequirement, ValueError) as error:
        raise ClientError(
            f"`{label}` requires `{text[:200]}`, which is not allowed: {error}",
            hint="ask its owner to publish a corrected version; a requirement must be a package, or the "
            "`https` URL of a wheel",
            code="unsafe_requirement",
        ) from error
    return requirement


@dataclass(frozen=True)
class Supplies:
    """Contents of a virtual environment that do not come from a package index."""

    own: list[Wheel]
    """The environment's wheel, and the hub's own packages that it needs."""
    at_hand: list[Wheel] = field(default_factory=list)
    """Wheels of the hub that replace required packages, such as `verifiers` instead of upstream's."""
    overrides: str = ""
    first: str = ""
    """Requirements that are resolved before all others, one per line."""
    programs: list[str] = field(default_factory=list)
    """Requirements of scripts in the wheel."""

    @property
    def wheels(self) -> list[Wheel]:
        """All wheels in this machine's cache."""
        return [*self.own, *self.at_hand]


def find_supplies(hub: HubApi, cache_dir: Path, wheel: Wheel, warn: Callable[[str], None]) -> Supplies:
    """Return the packages that an environment needs from the hub: the SDK, and the classic API for its code.

    The requirements are read from the wheel, as uv will read them.
    """
    label, requires_dist = f"{wheel.project} {wheel.version}", requirements_in(metadata_of(wheel.path))
    wanted = requirements_of(requires_dist, label)
    own = [wheel]
    for project in (SDK, CLIENT, INTEGRATIONS):
        if project != SDK and project not in wanted:
            continue
        files = hub.index_files(HUB_OWNER, project)
        if files is None:
            warn(f"`{hub.url}` does not serve `{project}`, so it comes from your package index")
            continue
        own.append(fetch_file(hub, cache_dir, project, newest(project, files, wanted.get(project))))
    sdk = next((item.version for item in own if item.project == SDK), None)
    compat = _newest_served(hub, cache_dir, classic.COMPAT, sdk)
    first = []
    if classic.names_library(wheel.path):
        if compat is not None:
            own.append(compat)
        elif sdk is None:  # the hub serves none of these, so they come from the package index
            first.append(classic.COMPAT)
    if classic.keeps_upstream(wheel.path, requires_dist):
        upstream = classic.upstream_requirements(wheel.path, requires_dist)
        programs = classic.requirements_of_programs(wheel.path)
        if any(read_requirement(text, label).url for text in programs):
            raise ClientError(
                f"a script in `{label}` requires a package by URL",
                hint="ask its owner to require a release instead",
                code="unsafe_requirement",
            )
        linked, overrides = _bring_linked(cache_dir, own, label)
        return Supplies(own, linked, overrides, "\n".join([*first, *upstream]), programs)
    at_hand, overrides = _bring_linked(cache_dir, own, label)
    if compat is not None and compat not in own:
        at_hand.append(compat)
        overrides += f"{classic.COMPAT} @ {compat.path.as_uri()}\n"
    if shim := _newest_served(hub, cache_dir, classic.PROJECT):
        at_hand.append(shim)
        overrides += classic.override(shim.path, classic.requirement_of(requires_dist))
    return Supplies(own, at_hand, overrides, "\n".join(first))


def _bring_linked(cache_dir: Path, own: list[Wheel], label: str) -> tuple[list[Wheel], str]:
    """Return the wheels that requirements name by URL, with overrides that make uv use the downloaded files.

    uv does not download them itself, because it would follow any further URLs in such a wheel.
    """
    linked: dict[str, Wheel] = {}
    for wheel in own:
        for text in requirements_in(metadata_of(wheel.path)):
            requirement = read_requirement(text, f"{wheel.project} {wheel.version}")
            name = canonicalize_name(requirement.name)
            if requirement.url is None or name in linked or name in HUB_PACKAGES:
                continue
            if os.environ.get(HUB_JOB) == "1":
                raise ClientError(
                    f"`{label}` requires `{name}` by URL, but this machine uses only its indexes",
                    hint="require a release that is in a package index",
                    code="lock_address",
                )
            linked[name] = _fetch_required(cache_dir, requirement.url, name)
    lines = "".join(f"{name} @ {wheel.path.as_uri()}\n" for name, wheel in linked.items())
    return list(linked.values()), lines


def _fetch_required(cache_dir: Path, url: str, name: str) -> Wheel:
    """Download a wheel that a requirement names by URL. Raises `ClientError` for any other file."""
    address = parse_file_address(url)
    stated = url.partition("#sha256=")[2]
    folder = stated or hashlib.sha256(address.url.encode()).hexdigest()
    target = path_below(cache_dir / ("wheels" if stated else "linked"), folder, address.filename)
    digest = fetch_linked(address, target, stated or None, None)
    try:
        project, version, *_ = parse_wheel_filename(address.filename)
        metadata = metadata_of(target)
        same = project == name == canonicalize_name(str(metadata["Name"]))
        nested = [text for text in requirements_in(metadata) if read_requirement(text, name).url is not None]
    except InvalidWheelFilename:
        same, nested = False, []
    if not same or nested:
        fault = "requires another file by URL" if nested else f"is not a wheel of `{name}`"
        raise ClientError(
            f"`{address.url}` {fault}",
            hint="a requirement can be the URL of a wheel that requires only released packages",
            code="unsafe_requirement",
        )
    return Wheel(project, str(version), target.resolve(), address.url, digest)


def fetch_linked(address: FileAddress, target: Path, sha256: str | None, size: int | None) -> str:
    """Download a file from any server into the cache, and return its digest.

    A file with a known digest is downloaded only once.
    """
    if sha256 is not None and _has_digest(target, sha256):
        return sha256
    server = HubApi(address.origin)
    try:
        digest = server.download(address.url, target, sha256, size=size)
    finally:
        server.close()
    if target.suffix == ".whl":
        _require_bounded(target)
    return digest


def _newest_served(hub: HubApi, cache_dir: Path, project: str, version: str | None = None) -> Wheel | None:
    """Return the newest wheel of a package, or that of a version, or None if the hub does not serve it."""
    files = hub.index_files(HUB_OWNER, project) or []
    fitting = [file for file in files if version is None or f"-{version}-" in file.filename]
    return fetch_file(hub, cache_dir, project, newest(project, fitting, None)) if fitting else None


def requirements_of(requires_dist: list[str], what: str) -> dict[str, SpecifierSet]:
    """Return the required versions of a package by project.

    Raises `ClientError` for an invalid requirement.
    """
    versions: dict[str, SpecifierSet] = {}
    for text in requires_dist:
        requirement = read_requirement(text, what)
        if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
            versions[canonicalize_name(requirement.name)] = requirement.specifier
    return versions


def newest(project: str, files: list[IndexFile], wanted: SpecifierSet | None) -> FileInfo:
    """Return the newest wheel in the hub's index that the specifier allows.

    Raises `ClientError` if no version matches.
    """
    candidates: list[tuple[Version, IndexFile]] = []
    for file in files:
        try:
            version = parse_wheel_filename(file.filename)[1]
        except InvalidWheelFilename:
            continue
        if not file.yanked and (wanted is None or wanted.contains(version, prereleases=True)):
            candidates.append((version, file))
    if not candidates:
        served = ", ".join(file.filename for file in files) or "nothing"
        raise ClientError(
            f"the hub has no version of `{project}` that matches `{wanted}`",
            hint="the environment requires another version of Wander than the hub provides",
            code="incompatible_sdk",
            detail=f"available: {served}",
        )
    _, best = max(candidates, key=lambda item: item[0])
    return file_info(best)


def file_info(file: IndexFile) -> FileInfo:
    """Return a file of the hub's index page. Raises `ClientError` if it has no digest."""
    if file.hashes.sha256 is None:
        raise ClientError(f"the hub lists `{file.filename}` without a digest", code="no_digest")
    return FileInfo(
        filename=file.filename,
        kind="wheel",
        size=file.size or 0,
        sha256=file.hashes.sha256,
        url=file.url,
        uploaded_at=datetime.now(UTC),
    )


def find_served(
    hub: HubApi, cache_dir: Path, project: str, filename: str, sha256: str, owner: str = HUB_OWNER
) -> Wheel:
    """Return the wheel that a lock names for an owner's package. Raises `ClientError` if it is not served."""
    target = path_below(cache_dir / "wheels", sha256, filename)
    url = hub.absolute(f"/{owner}/files/{project}/{filename}")
    if _has_digest(target, sha256):
        return Wheel(project, str(parse_wheel_filename(filename)[1]), target.resolve(), url, sha256)
    for file in hub.index_files(owner, project) or []:
        if file.hashes.sha256 == sha256:
            return fetch_file(hub, cache_dir, project, file_info(file))
    raise ClientError(
        f"`{hub.url}` does not serve the `{filename}` of the lock",
        code="lock_unserved",
        detail=f"it has sha256:{sha256}",
    )


def fetch_file(hub: HubApi, cache_dir: Path, project: str, file: FileInfo) -> Wheel:
    """Return a wheel of the hub from the cache. Downloads it if necessary."""
    try:
        version = parse_wheel_filename(file.filename)[1]
    except InvalidWheelFilename as error:
        raise ClientError(f"the hub lists `{file.filename}`, which is not a wheel") from error
    target = path_below(cache_dir / "wheels", file.sha256, file.filename)
    if fetch_into(hub, target, file.url, file.sha256, file.size):
        _require_bounded(target)
    return Wheel(project, str(version), target.resolve(), hub.absolute(file.url), file.sha256)


def require_bounded(wheel: Path) -> None:
    """Raise `ClientError` for a wheel that unpacks to more than it states, or to many times its size."""
    most = min(LARGEST_UNPACKED, max(_FREE_UNPACKED, _MOST_RATIO * wheel.stat().st_size))
    try:
        with ZipFile(wheel) as archive, wheel.open("rb") as file:
            entries = archive.infolist()
            is_bounded = sum(entry.file_size for entry in entries) <= most
            is_bounded = is_bounded and all(_is_as_stated(file, entry) for entry in entries)
    except (BadZipFile, OSError, struct.error, zlib.error) as error:
        raise ClientError(f"`{wheel.name}` is not a wheel", code="bad_wheel", detail=str(error)) from error
    if not is_bounded:
        raise ClientError(
            f"`{wheel.name}` unpacks to more than it states, or to more than {most >> 20:,} MiB",
            hint="tell the hub's operator, or the owner of the package",
            code="unsafe_package",
        )


def _require_bounded(wheel: Path) -> None:
    """Check a downloaded wheel, and delete it if it is rejected."""
    try:
        require_bounded(wheel)
    except ClientError:
        wheel.unlink()
        raise


def _is_as_stated(file: IO[bytes], entry: ZipInfo) -> bool:
    """Return whether an archive entry unpacks to exactly the size in its header."""
    if entry.compress_type == ZIP_STORED:
        return entry.file_size == entry.compress_size
    if entry.compress_type != ZIP_DEFLATED:
        return False
    file.seek(entry.header_offset + 26)
    name, extra = struct.unpack("<HH", file.read(4))
    file.seek(entry.header_offset + 30 + name + extra)
    decompressor, remaining, room = zlib.decompressobj(-zlib.MAX_WBITS), entry.compress_size, entry.file_size
    while remaining > 0 and not decompressor.eof and (block := file.read(min(remaining, 1 << 16))):
        remaining -= len(block)
        while block and not decompressor.eof:
            room -= len(decompressor.decompress(block, 1 << 20))
            block = decompressor.unconsumed_tail
            if room < 0:
                return False
    return True


def fetch_into(hub: HubApi, target: Path, url: str, sha256: str, size: int) -> bool:
    """Download a file of the hub into the cache. Returns False if it was already there."""
    if _has_digest(target, sha256):
        return False
    hub.download(url, target, sha256, size=size)
    return True


def _has_digest(file: Path, sha256: str) -> bool:
    return file.is_file() and hashlib.sha256(file.read_bytes()).hexdigest() == sha256
