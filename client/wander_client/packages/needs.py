"""What an environment needs beside its package index: its own wheel and packages that the hub serves itself.

`wander-sdk`, `wander-client`, the plugins and the classic API (`wander-compat`, `verifiers`) come from the
hub's own index (`/wander/simple/`) when it serves them, and are resolved by direct URL: no index can offer
another package under those names.
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
"""The owner under which a hub serves the packages it runs with."""
LARGEST_METADATA = 16 << 20
LARGEST_UNPACKED = 32 << 30
_FREE_UNPACKED, _MOST_RATIO = 1 << 30, 100
"""Bytes that a wheel of any size may unpack to, and how much more than its size a large one may."""
_METADATA = re.compile(r"[^/]+\.dist-info/METADATA")
SDK, CLIENT = "wander-sdk", "wander-client"
INTEGRATIONS = "wander-integrations"
HUB_PACKAGES = (SDK, CLIENT, classic.COMPAT, classic.PROJECT, INTEGRATIONS, "wander-ray")
"""What hubs serve themselves."""


@dataclass(frozen=True)
class Wheel:
    """A wheel that the hub lists, downloaded and checked, or one of this machine."""

    project: str
    version: str
    path: Path
    url: str
    sha256: str

    @classmethod
    def to_publish(cls, path: Path, hub: HubApi, owner: str) -> Wheel:
        """Return a wheel of this machine, which the hub will serve under an owner."""
        project, version, *_ = parse_wheel_filename(path.name)
        url = hub.absolute(f"/{owner}/files/{project}/{path.name}")
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
        return cls(project, str(version), path.resolve(), url, digest)


def metadata_of(wheel: Path) -> Message:
    """Return the core metadata in a wheel; raises `ClientError` for a file that has not one."""
    try:
        with ZipFile(wheel) as archive:
            found = [each for each in archive.infolist() if _METADATA.fullmatch(each.filename)]
            if len(found) == 1 and found[0].file_size <= LARGEST_METADATA:
                return BytesParser().parsebytes(archive.read(found[0]))
    except (BadZipFile, OSError, NotImplementedError, RuntimeError, zlib.error) as error:
        raise ClientError(f"`{wheel.name}` is not a wheel", code="bad_wheel", detail=str(error)) from error
    raise ClientError(f"`{wheel.name}` is not a wheel: it has not one METADATA", code="bad_wheel")


def requirements_in(metadata: Message) -> list[str]:
    """Return the requirements that core metadata states, as they are written."""
    return [str(each) for each in metadata.get_all("Requires-Dist") or []]


def read_requirement(text: str, what: str) -> Requirement:
    """Return a requirement that `what` states; raises `ClientError` for one that must not reach uv.

    uv reads more than requirements: variables of its environment, options after a line break, programs.
    """
    try:
        requirement = Requirement(text)
        check_requirement(text, requirement.url)
    except (InvalidRequirement, ValueError) as error:
        raise ClientError(
            f"`{what}` requires `{text[:200]}`, which is refused: {error}",
            hint="ask its owner to publish a corrected version; a requirement names a package, or a wheel by "
            "its `https` address",
            code="unsafe_requirement",
        ) from error
    return requirement


@dataclass(frozen=True)
class Supplies:
    """What goes into a virtual environment beside what a package index has."""

    own: list[Wheel]
    """The environment's wheel, then those of the hub's own packages that it needs."""
    at_hand: list[Wheel] = field(default_factory=list)
    """The hub's wheels that are taken where something requires them: `verifiers` in place of upstream's."""
    overrides: str = ""
    first: str = ""
    """Requirements, a line each, that are resolved before all others."""
    programs: list[str] = field(default_factory=list)
    """What scripts in the wheel need when they run."""

    @property
    def wheels(self) -> list[Wheel]:
        """Every wheel that lies in this machine's cache."""
        return [*self.own, *self.at_hand]


def find_supplies(hub: HubApi, cache_dir: Path, wheel: Wheel, warn: Callable[[str], None]) -> Supplies:
    """Return what an environment needs of the hub: the SDK, and what serves the classic API to its code.

    What it requires is read from the wheel itself, as uv will read it.
    """
    what, requires_dist = f"{wheel.project} {wheel.version}", requirements_in(metadata_of(wheel.path))
    wanted = requirements_of(requires_dist, what)
    own = [wheel]
    for project in (SDK, CLIENT, INTEGRATIONS):
        if project != SDK and project not in wanted:
            continue
        files = hub.index_files(HUB_OWNER, project)
        if files is None:
            warn(f"`{hub.url}` does not serve `{project}`: it comes from your package index")
            continue
        own.append(fetch_file(hub, cache_dir, project, newest(project, files, wanted.get(project))))
    sdk = next((each.version for each in own if each.project == SDK), None)
    compat = _newest_served(hub, cache_dir, classic.COMPAT, sdk)
    first = []
    if classic.names_library(wheel.path):
        if compat is not None:
            own.append(compat)
        elif sdk is None:  # a hub that serves none of these leaves them to the package index
            first.append(classic.COMPAT)
    if classic.keeps_upstream(wheel.path, requires_dist):
        upstream = classic.upstream_requirements(wheel.path, requires_dist)
        programs = classic.requirements_of_programs(wheel.path)
        if any(read_requirement(each, what).url for each in programs):
            raise ClientError(
                f"a program in `{what}` requires a package from an address",
                hint="ask its owner to require a release of it",
                code="unsafe_requirement",
            )
        linked, overrides = _bring_linked(cache_dir, own, what)
        return Supplies(own, linked, overrides, "\n".join([*first, *upstream]), programs)
    at_hand, overrides = _bring_linked(cache_dir, own, what)
    if compat is not None and compat not in own:
        at_hand.append(compat)
        overrides += f"{classic.COMPAT} @ {compat.path.as_uri()}\n"
    if shim := _newest_served(hub, cache_dir, classic.PROJECT):
        at_hand.append(shim)
        overrides += classic.override(shim.path, classic.requirement_of(requires_dist))
    return Supplies(own, at_hand, overrides, "\n".join(first))


def _bring_linked(cache_dir: Path, own: list[Wheel], what: str) -> tuple[list[Wheel], str]:
    """Return the wheels that requirements name by address, and the lines that make uv take them from here.

    uv follows no address itself: it would follow what such a wheel names in turn, in whatever form.
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
                    f"`{what}` requires `{name}` from an address; this machine asks only its indexes",
                    hint="require a release of it that a package index has",
                    code="lock_address",
                )
            linked[name] = _fetch_required(cache_dir, requirement.url, name)
    lines = "".join(f"{name} @ {wheel.path.as_uri()}\n" for name, wheel in linked.items())
    return list(linked.values()), lines


def _fetch_required(cache_dir: Path, url: str, name: str) -> Wheel:
    """Fetch the wheel at an address that a requirement names; raises `ClientError` for any other file."""
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
        fault = "requires another file by its address" if nested else f"is not a wheel of `{name}`"
        raise ClientError(
            f"`{address.url}` {fault}",
            hint="a requirement may name the address of a wheel, which requires released packages",
            code="unsafe_requirement",
        )
    return Wheel(project, str(version), target.resolve(), address.url, digest)


def fetch_linked(address: FileAddress, target: Path, sha256: str | None, size: int | None) -> str:
    """Bring a file of any server to its place in the cache, and return its digest.

    One whose digest is known is fetched once.
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
    """Return the newest wheel, or that of a version, of a package that this hub may not serve."""
    files = hub.index_files(HUB_OWNER, project) or []
    fitting = [file for file in files if version is None or f"-{version}-" in file.filename]
    return fetch_file(hub, cache_dir, project, newest(project, fitting, None)) if fitting else None


def requirements_of(requires_dist: list[str], what: str) -> dict[str, SpecifierSet]:
    """Return the versions that a package asks for here, by project; raises for what is no requirement."""
    found: dict[str, SpecifierSet] = {}
    for text in requires_dist:
        requirement = read_requirement(text, what)
        if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
            found[canonicalize_name(requirement.name)] = requirement.specifier
    return found


def newest(project: str, files: list[IndexFile], wanted: SpecifierSet | None) -> FileInfo:
    """Return the newest wheel of the hub's index page that the specifier allows."""
    found: list[tuple[Version, IndexFile]] = []
    for file in files:
        try:
            version = parse_wheel_filename(file.filename)[1]
        except InvalidWheelFilename:
            continue
        if not file.yanked and (wanted is None or wanted.contains(version, prereleases=True)):
            found.append((version, file))
    if not found:
        served = ", ".join(file.filename for file in files) or "nothing"
        raise ClientError(
            f"the hub serves no `{project}` that fits `{wanted}`",
            hint="the environment was written for a different version of Wander than this hub has",
            code="incompatible_sdk",
            detail=f"served: {served}",
        )
    _, best = max(found, key=lambda item: item[0])
    return file_info(best)


def file_info(file: IndexFile) -> FileInfo:
    """Return a file of the hub's index page; raises `ClientError` for one without a digest."""
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
    """Return the very wheel that a lock names of an owner's packages; raises where it is not served."""
    target = path_below(cache_dir / "wheels", sha256, filename)
    url = hub.absolute(f"/{owner}/files/{project}/{filename}")
    if _has_digest(target, sha256):
        return Wheel(project, str(parse_wheel_filename(filename)[1]), target.resolve(), url, sha256)
    for file in hub.index_files(owner, project) or []:
        if file.hashes.sha256 == sha256:
            return fetch_file(hub, cache_dir, project, file_info(file))
    raise ClientError(
        f"the lock names a `{filename}` that `{hub.url}` does not serve",
        code="lock_unserved",
        detail=f"it has sha256:{sha256}",
    )


def fetch_file(hub: HubApi, cache_dir: Path, project: str, file: FileInfo) -> Wheel:
    """Return a wheel of the hub from the cache, downloading it first when it is not there."""
    try:
        version = parse_wheel_filename(file.filename)[1]
    except InvalidWheelFilename as error:
        raise ClientError(f"the hub lists `{file.filename}`, which is not a wheel") from error
    target = path_below(cache_dir / "wheels", file.sha256, file.filename)
    if fetch_into(hub, target, file.url, file.sha256, file.size):
        _require_bounded(target)
    return Wheel(project, str(version), target.resolve(), hub.absolute(file.url), file.sha256)


def require_bounded(wheel: Path) -> None:
    """Raise `ClientError` for a wheel that unpacks to more than it states, or to far more than it has."""
    most = min(LARGEST_UNPACKED, max(_FREE_UNPACKED, _MOST_RATIO * wheel.stat().st_size))
    try:
        with ZipFile(wheel) as archive, wheel.open("rb") as file:
            entries = archive.infolist()
            is_bounded = sum(each.file_size for each in entries) <= most
            is_bounded = is_bounded and all(_is_as_stated(file, each) for each in entries)
    except (BadZipFile, OSError, struct.error, zlib.error) as error:
        raise ClientError(f"`{wheel.name}` is not a wheel", code="bad_wheel", detail=str(error)) from error
    if not is_bounded:
        raise ClientError(
            f"`{wheel.name}` unpacks to more than it states, or to more than {most >> 20:,} MiB",
            hint="tell the hub's operator, or the owner of the package",
            code="unsafe_package",
        )


def _require_bounded(wheel: Path) -> None:
    """Check a wheel that was just fetched; one that is refused does not stay."""
    try:
        require_bounded(wheel)
    except ClientError:
        wheel.unlink()
        raise


def _is_as_stated(file: IO[bytes], entry: ZipInfo) -> bool:
    """Return whether an entry of an archive unpacks to as many bytes as its header states, and no more."""
    if entry.compress_type == ZIP_STORED:
        return entry.file_size == entry.compress_size
    if entry.compress_type != ZIP_DEFLATED:
        return False
    file.seek(entry.header_offset + 26)
    name, extra = struct.unpack("<HH", file.read(4))
    file.seek(entry.header_offset + 30 + name + extra)
    unpacking, left, room = zlib.decompressobj(-zlib.MAX_WBITS), entry.compress_size, entry.file_size
    while left > 0 and not unpacking.eof and (block := file.read(min(left, 1 << 16))):
        left -= len(block)
        while block and not unpacking.eof:
            room -= len(unpacking.decompress(block, 1 << 20))
            block = unpacking.unconsumed_tail
            if room < 0:
                return False
    return True


def fetch_into(hub: HubApi, target: Path, url: str, sha256: str, size: int) -> bool:
    """Download a file of the hub to its place in the cache; return False if it is there with this digest."""
    if _has_digest(target, sha256):
        return False
    hub.download(url, target, sha256, size=size)
    return True


def _has_digest(file: Path, sha256: str) -> bool:
    return file.is_file() and hashlib.sha256(file.read_bytes()).hexdigest() == sha256
