"""Fork an environment: copy the source of a version to a folder, with the same name or a new one."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

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

from wander_client.errors import ClientError, NotFound
from wander_client.hub.api import HubApi
from wander_client.packages.built_package import ENTRY_POINT_GROUP
from wander_client.packages.needs import fetch_into
from wander_client.packages.origins.source import unpack_source, unpack_wheel
from wander_client.packages.scaffold import package_name, require_free
from wander_client.paths import path_below

if TYPE_CHECKING:
    from wander.wire.environments import FileInfo

    from wander_client.context import Invocation
    from wander_client.names import EnvironmentName


class Forked(NamedTuple):
    """The result of a fork."""

    folder: Path
    """The folder with the fork's source."""
    source: str
    """The forked version, as `owner/name@version`."""


def fork(context: Invocation, environment: EnvironmentName, folder: Path | None, name: str | None) -> Forked:
    """Copy a version's source to a folder, under a new name if it is given. Nothing changes on the hub."""
    new = None if name is None else package_name(name)
    place = (folder or Path(new or environment.name)).expanduser()
    require_free(place, f"choose another folder: `wander env fork {environment} FOLDER`")
    place.parent.mkdir(parents=True, exist_ok=True)
    with (
        context.hub() as hub,
        tempfile.TemporaryDirectory(prefix=f".{place.name}-", dir=place.parent) as work,
    ):
        version = (
            hub.version(environment.owner, environment.name, environment.version)
            if environment.version
            else hub.environment(environment.owner, environment.name).latest
        )
        source = bring_version(hub, context.settings.cache_dir, version, Path(work))
        if new is not None:
            _rename(source / "pyproject.toml", new)
        source.replace(place)
    return Forked(place, f"{version.owner}/{version.name}@{version.version}")


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
