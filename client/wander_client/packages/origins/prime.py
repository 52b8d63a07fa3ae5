"""Bring an environment of Prime Intellect's hub: by its name, or from what `prime env pull` wrote here.

By name it is the download that their own command makes: `GET environmentshub/OWNER/NAME/@VERSION` names an
archive of the sources. Public environments need no key; `PRIME_API_KEY` is sent where it is set.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from dataclasses import replace
from pathlib import Path

from wander_client.errors import ClientError, NotFound, Unavailable, UsageError
from wander_client.packages.origins.source import Origin, bring_project, project_in, unpack_source

USUAL_BASE = "https://api.primeintellect.ai"
METADATA = Path(".prime", ".env-metadata.json")
_NAME = re.compile(r"([\w.-]+)/([\w.-]+?)(?:@([\w.+-]+))?")
_SECONDS = 60.0


def fetch_environment(source: str, work: Path) -> tuple[Path, Origin]:
    """Return the project's folder and its origin; raises `NotFound`, `UsageError`, `Unavailable`."""
    path = Path(source).expanduser()
    if path.is_dir():
        folder, origin = bring_project(source, work)
        return folder, _read_stated(path, origin)
    name = _NAME.fullmatch(source)
    if name is None or source.startswith((".", "/", "~")):
        raise UsageError(
            f"`{source}` is neither an environment of that hub nor a folder",
            hint="write `owner/name` or `owner/name@version`, or give what `prime env pull` wrote",
        )
    return _download(name[1], name[2], name[3] or "latest", work)


def _read_stated(folder: Path, origin: Origin) -> Origin:
    """Return the origin that the folder's own note gives, where `prime env pull` left one."""
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


def _download(owner: str, name: str, version: str, work: Path) -> tuple[Path, Origin]:
    import httpx

    base = os.environ.get("PRIME_API_BASE_URL") or os.environ.get("PRIME_BASE_URL") or USUAL_BASE
    key = os.environ.get("PRIME_API_KEY")
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    what = f"{owner}/{name}@{version}"
    url = f"{base.rstrip('/').removesuffix('/api/v1')}/api/v1/environmentshub/{owner}/{name}/@{version}"
    try:
        with httpx.Client(timeout=_SECONDS, follow_redirects=True) as client:
            answer = client.get(url, headers=headers)
            if answer.status_code in (401, 403, 404):
                raise NotFound(
                    f"`{what}` does not exist or is not public",
                    hint="set `PRIME_API_KEY`, or run `prime env pull` and give the folder that it wrote",
                )
            answer.raise_for_status()
            said = answer.json()
            detail = said.get("data", said) if isinstance(said, dict) else {}
            stated = detail.get("tracked_package_url") or detail.get("package_url")
            if not isinstance(stated, str):
                raise ClientError(
                    f"the hub names no archive for `{what}`",
                    hint="run `prime env pull` and give the folder that it wrote",
                )
            address = httpx.URL(url).join(stated)
            own = address.host == httpx.URL(url).host  # a signed address of a file store takes no key
            archive = client.get(address, headers=headers if own else {})
            archive.raise_for_status()
    except httpx.HTTPError as error:
        raise Unavailable(
            f"`{what}` cannot be downloaded: {error}",
            hint="run `prime env pull` and give the folder that it wrote",
        ) from error
    except ValueError as error:
        raise ClientError(f"`{base}` did not answer with JSON", hint="check `PRIME_API_BASE_URL`") from error
    path = work / f"{name}.tar.gz"
    path.write_bytes(archive.content)
    folder = work / name
    folder.mkdir()
    digest = hashlib.sha256(archive.content).hexdigest()
    revision = str(detail.get("semantic_version") or version)
    origin = Origin(f"prime:{owner}/{name}", revision=revision, sha256=digest)
    return project_in(unpack_source(path, folder)), origin
