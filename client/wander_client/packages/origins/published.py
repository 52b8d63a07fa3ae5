"""Bring the sources of a published version to a folder of ours."""

from __future__ import annotations

from pathlib import Path

from wander.wire import VersionDetail

from wander_client.errors import NotFound
from wander_client.hub.api import HubApi
from wander_client.packages.needs import fetch_into
from wander_client.packages.origins.source import unpack_source, unpack_wheel


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
    archive = cache_dir / "sources" / file.sha256 / file.filename
    fetch_into(hub, archive, file.url, file.sha256)
    if file.kind == "wheel":
        return unpack_wheel(archive, work)
    folder = unpack_source(archive, work)
    (folder / "PKG-INFO").unlink(missing_ok=True)  # the build wrote it
    return folder
