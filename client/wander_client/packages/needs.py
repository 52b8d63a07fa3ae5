"""What an environment needs beside its package index: its own wheel and packages that the hub serves itself.

`wander-sdk`, `wander-client` and the classic API (`wander-compat`, `verifiers`) come from the hub's own index
(`/wander/simple/`) when it serves them, and are resolved by direct URL: no index can offer another package
under those names.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.message import Message
from email.parser import BytesParser
from pathlib import Path
from zipfile import ZipFile

from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import InvalidWheelFilename, canonicalize_name, parse_wheel_filename
from packaging.version import Version
from wander.wire import FileInfo
from wander.wire.package_index import IndexFile

from wander_client.errors import ClientError
from wander_client.hub.api import HubApi
from wander_client.packages import classic
from wander_client.paths import path_below

HUB_OWNER = "wander"
"""The owner under which a hub serves the packages it runs with."""
SDK, CLIENT = "wander-sdk", "wander-client"
HUB_PACKAGES = (SDK, CLIENT, classic.COMPAT, classic.PROJECT)
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
    def at(cls, path: Path, url: str | None = None) -> Wheel:
        """Return a wheel of this machine; `url` is where a hub serves it, or will."""
        project, version, *_ = parse_wheel_filename(path.name)
        whole, digest = path.resolve(), hashlib.sha256(path.read_bytes()).hexdigest()
        return cls(project, str(version), whole, url or whole.as_uri(), digest)


def metadata_of(wheel: Path) -> Message:
    """Return the core metadata in a wheel."""
    with ZipFile(wheel) as archive:
        name = next(each for each in archive.namelist() if re.fullmatch(r"[^/]+\.dist-info/METADATA", each))
        return BytesParser().parsebytes(archive.read(name))


def requirements_in(metadata: Message) -> list[str]:
    """Return the requirements that core metadata states, as they are written."""
    return [str(each) for each in metadata.get_all("Requires-Dist") or []]


@dataclass(frozen=True)
class Needs:
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


def needs_of(
    hub: HubApi, cache_dir: Path, wheel: Wheel, requires_dist: list[str], warn: Callable[[str], None]
) -> Needs:
    """Return what an environment needs of the hub: the SDK, and what serves the classic API to its code."""
    wanted = requirements_of(requires_dist, f"{wheel.project} {wheel.version}")
    own = [wheel]
    for project in (SDK, CLIENT):
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
        own += [] if compat is None else [compat]
        # Where the hub serves the SDK alone, that is an older one, which holds the classic API itself.
        first += [classic.COMPAT] if compat is None and sdk is None else []
    if classic.keeps_upstream(wheel.path, requires_dist):
        upstream = classic.upstream_requirements(wheel.path, requires_dist)
        programs = classic.needs_of_programs(wheel.path)
        return Needs(own, first="\n".join([*first, *upstream]), programs=programs)
    at_hand, overrides = [], ""
    if compat is not None and compat not in own:
        at_hand.append(compat)
        overrides += f"{classic.COMPAT} @ {compat.path.as_uri()}\n"
    if shim := _newest_served(hub, cache_dir, classic.PROJECT):
        at_hand.append(shim)
        overrides += classic.override(shim.path, classic.requirement_of(requires_dist))
    return Needs(own, at_hand, overrides, "\n".join(first))


def _newest_served(hub: HubApi, cache_dir: Path, project: str, version: str | None = None) -> Wheel | None:
    """Return the newest wheel, or that of a version, of a package that this hub may not serve."""
    files = hub.index_files(HUB_OWNER, project) or []
    fitting = [file for file in files if version is None or f"-{version}-" in file.filename]
    return fetch_file(hub, cache_dir, project, newest(project, fitting, None)) if fitting else None


def requirements_of(requires_dist: list[str], what: str) -> dict[str, SpecifierSet]:
    """Return the versions that a package asks for here, by project; raises for what is no requirement."""
    found: dict[str, SpecifierSet] = {}
    for text in requires_dist:
        try:
            requirement = Requirement(text)
        except InvalidRequirement as error:
            raise ClientError(
                f"`{what}` requires `{text}`, which is not a valid requirement",
                hint="ask its owner to publish a corrected version",
            ) from error
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
    fetch_into(hub, target, file.url, file.sha256, file.size)
    return Wheel(project, str(version), target.resolve(), hub.absolute(file.url), file.sha256)


def fetch_into(hub: HubApi, target: Path, url: str, sha256: str, size: int) -> None:
    """Download a file of the hub to its place in the cache, unless it is there with this digest."""
    if not _has_digest(target, sha256):
        hub.download(url, target, sha256, size=size)


def _has_digest(file: Path, sha256: str) -> bool:
    return file.is_file() and hashlib.sha256(file.read_bytes()).hexdigest() == sha256
