"""Download an environment from Prime Intellect's hub, or import a folder that `prime env pull` wrote.

The download uses the same route as the `prime` command: `GET environmentshub/OWNER/NAME/@VERSION` returns the
URL of an archive with the sources. Public environments need no key. If `PRIME_API_KEY` is set, it is sent.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
from dataclasses import replace
from pathlib import Path

from wander.wire.postings import file_digest

from wander_client.errors import ClientError, NotFound, Unavailable, UsageError
from wander_client.hub.connection import HubConnection
from wander_client.packages.building.build import Builder
from wander_client.packages.origins.source import PackageOrigin, bring_project, project_in, unpack_source

USUAL_BASE = "https://api.primeintellect.ai"
METADATA = Path(".prime", ".env-metadata.json")
_NAME = re.compile(r"(\w[\w.-]*)/(\w[\w.-]*?)(?:@(\w[\w.+-]*))?")
_LARGEST_ARCHIVE = 1 << 30


def fetch_environment(source: str, work: Path, builder: Builder) -> tuple[Path, PackageOrigin]:
    """Return the project's folder and its origin; raises `NotFound`, `UsageError`, `Unavailable`."""
    path = Path(source).expanduser()
    if path.is_dir():
        folder, origin = bring_project(source, work, builder)
        return folder, _read_stated(path, origin)
    name = _NAME.fullmatch(source)
    if name is None or source.startswith((".", "/", "~")):
        raise UsageError(
            f"`{source}` is neither an environment on Prime Intellect's hub nor a folder",
            hint="pass `owner/name` or `owner/name@version`, or the folder that `prime env pull` wrote",
        )
    return _download(name[1], name[2], name[3] or "latest", work, builder)


def _read_stated(folder: Path, origin: PackageOrigin) -> PackageOrigin:
    """Return the origin in the metadata of `prime env pull`, or `origin` without metadata."""
    try:
        said = json.loads((folder / METADATA).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return origin
    owner, name = said.get("owner"), said.get("name")
    if isinstance(owner, dict):
        owner = owner.get("slug") or owner.get("name")
    if not (isinstance(owner, str) and isinstance(name, str)):
        return origin
    version = said.get("version")
    return replace(origin, source=f"prime:{owner}/{name}", revision=str(version) if version else None)


def _download(
    owner: str, name: str, version: str, work: Path, builder: Builder
) -> tuple[Path, PackageOrigin]:
    base = os.environ.get("PRIME_API_BASE_URL") or os.environ.get("PRIME_BASE_URL") or USUAL_BASE
    what = f"{owner}/{name}@{version}"
    hint = "run `prime env pull`, and pass the folder that it wrote"
    connection = HubConnection(
        base.rstrip("/").removesuffix("/api/v1"), os.environ.get("PRIME_API_KEY") or None
    )
    path = work / f"{name}.tar.gz"
    with contextlib.closing(connection):
        answer = connection.send("GET", f"/api/v1/environmentshub/{owner}/{name}/@{version}")
        if answer.status in (401, 403, 404):
            raise NotFound(
                f"`{what}` does not exist or is not public",
                hint="set `PRIME_API_KEY`, or run `prime env pull` and pass the folder that it wrote",
            )
        _require_success(what, answer.status, hint)
        try:
            said = json.loads(answer.content)
        except (ValueError, RecursionError) as error:
            hint = "check `PRIME_API_BASE_URL`"
            raise ClientError(f"`{base}` returned a response that is not JSON", hint=hint) from error
        detail = said.get("data", said) if isinstance(said, dict) else {}
        detail = detail if isinstance(detail, dict) else {}
        stated = detail.get("tracked_package_url") or detail.get("package_url")
        if not isinstance(stated, str):
            raise ClientError(f"the hub did not return an archive for `{what}`", hint=hint)
        # The key is not sent to the signed URL of a file store.
        with connection.stream("GET", connection.join(answer.url, stated), elsewhere=True) as archive:
            _require_success(what, archive.status, hint)
            with path.open("wb") as file:
                for piece in archive.pieces(_LARGEST_ARCHIVE):
                    file.write(piece)
    folder = work / name
    folder.mkdir()
    revision = str(detail.get("semantic_version") or version)
    origin = PackageOrigin(f"prime:{owner}/{name}", revision=revision, sha256=file_digest(path))
    return project_in(unpack_source(path, folder), builder), origin


def _require_success(what: str, status: int, hint: str) -> None:
    if not 200 <= status < 300:
        raise Unavailable(f"`{what}` cannot be downloaded: the server returned status {status}", hint=hint)
