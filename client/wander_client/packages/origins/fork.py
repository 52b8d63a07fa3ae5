"""Fork an environment: on the hub, or only on the disk under a new name."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import tomlkit
from packaging.utils import (
    InvalidSdistFilename,
    InvalidWheelFilename,
    canonicalize_name,
    parse_sdist_filename,
    parse_wheel_filename,
)
from packaging.version import Version
from wander.wire import VersionDetail
from wander.wire.untrusted_text import read_project

from wander_client.errors import ClientError, NotFound, UsageError, name_option
from wander_client.hub.api import HubApi
from wander_client.names import environment_path
from wander_client.packages.built_package import ENTRY_POINT_GROUP
from wander_client.packages.needs import fetch_into
from wander_client.packages.origins.source import unpack_source, unpack_wheel
from wander_client.packages.scaffold import package_name, require_free
from wander_client.paths import path_below

if TYPE_CHECKING:
    from wander.wire import EnvironmentDetail
    from wander.wire.environments import FileInfo

    from wander_client.context import Invocation
    from wander_client.names import EnvironmentName


@dataclass(frozen=True)
class Forked:
    """The result of a fork."""

    folder: Path
    """The folder with the fork's source."""
    source: str
    """The forked version, as `owner/name@version`."""
    detail: EnvironmentDetail | None
    """The fork on the hub, or None for a fork with a new name, which must be published first."""


def fork(
    context: Invocation,
    environment: EnvironmentName,
    folder: Path | None,
    *,
    owner: str | None = None,
    name: str | None = None,
) -> Forked:
    """Copy a version's source to a folder, and fork the environment on the hub.

    With a new `name`, only the copy in the folder is renamed, and nothing changes on the hub: the published
    files contain the old name, so the hub cannot copy them.
    """
    from wander.wire import EnvironmentDetail
    from wander.wire.changes import TransferTarget

    if name is not None and owner is not None:
        raise UsageError(
            "a fork with a new name has no owner until you publish it",
            hint="pass " + name_option("owner") + " when you publish it",
        )
    new = None if name is None else package_name(name)
    place = (folder or Path(new or environment.name)).expanduser()
    require_free(place, f"choose another folder: `wander env fork {environment} FOLDER`")
    place.parent.mkdir(parents=True, exist_ok=True)
    with (
        context.hub(login=new is None) as hub,
        tempfile.TemporaryDirectory(prefix=f".{place.name}-", dir=place.parent) as work,
    ):
        version = (
            hub.version(environment.owner, environment.name, environment.version)
            if environment.version
            else hub.environment(environment.owner, environment.name).latest
        )
        source = bring_version(hub, context.settings.cache_dir, version, Path(work))
        detail = None
        if new is not None:
            _rename(source / "pyproject.toml", new)
        else:  # fork on the hub only after the source has been downloaded
            target = (owner or hub.whoami().user).lower()
            if (target, environment.name) == (environment.owner, environment.name):
                raise UsageError(
                    f"`{target}` already has an environment `{environment.name}`",
                    hint="choose another name for the fork: " + name_option("name", "NEW-NAME"),
                )
            path = environment_path(environment.owner, environment.name, "fork")
            copied = TransferTarget(owner=target, version=version.version)
            detail = hub.change("POST", path, EnvironmentDetail, copied)
        source.replace(place)
    return Forked(place, f"{version.owner}/{version.name}@{version.version}", detail)


def _rename(pyproject: Path, name: str) -> None:
    """Rename a project and the environment that it declares."""
    try:
        read_project(pyproject.parent)
        described = tomlkit.parse(pyproject.read_text(encoding="utf-8"))
        project = described["project"]
        points = project["entry-points"][ENTRY_POINT_GROUP]
        (old,) = points
    except (OSError, KeyError, ValueError) as error:
        raise ClientError(
            "the source cannot be renamed: it has no `pyproject.toml` that declares exactly one environment",
            hint="fork it without a new name, and rename it yourself",
            code="bad_pyproject",
        ) from error
    project["name"] = name
    points[name] = points.pop(old)
    pyproject.write_text(tomlkit.dumps(described), encoding="utf-8")


def bring_version(hub: HubApi, cache_dir: Path, version: VersionDetail, work: Path) -> Path:
    """Unpack a version into `work`: its source archive, or else its wheel; returns the project's folder.

    Raises `NotFound` for a version that has neither.
    """
    files = sorted(version.files, key=lambda file: file.kind != "sdist")
    if not files:
        raise NotFound(
            f"`{version.owner}/{version.name}` {version.version} has no files",
            hint=f"`wander env info {version.owner}/{version.name}` lists its versions",
            code="no_source",
        )
    file = files[0]
    hub.require(_is_of(file, version), file.filename)
    archive = path_below(cache_dir / "sources", file.sha256, file.filename)
    fetch_into(hub, archive, file.url, file.sha256, file.size)
    if file.kind == "wheel":
        return unpack_wheel(archive, work)
    folder = unpack_source(archive, work)
    (folder / "PKG-INFO").unlink(missing_ok=True)  # the build wrote it
    return folder


def _is_of(file: FileInfo, version: VersionDetail) -> bool:
    """Return whether a file has the name that a build of the version would give it."""
    parse = parse_sdist_filename if file.kind == "sdist" else parse_wheel_filename
    try:
        name, number, *_ = parse(file.filename)
    except (InvalidSdistFilename, InvalidWheelFilename):
        return False
    return (name, number) == (canonicalize_name(version.name), Version(version.version))
