"""Turns rows into the pages of the simple API: HTML 1.4 (frozen by PEP 833) and JSON 1.4.

Addresses are relative, so the stored bytes are right under whatever name the hub is reached.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import UTC, datetime
from html import escape
from typing import Any

from wander_hub.environments.models import File, Version

_HEAD = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="pypi:repository-version" content="1.4">
<meta name="pypi:project-status" content="active">
<title>{title}</title>
</head>
<body>
<h1>{title}</h1>
"""
_TAIL = "</body>\n</html>\n"
_ROOT_HEAD = _HEAD.replace('<meta name="pypi:project-status" content="active">\n', "")
_META = {"api-version": "1.4"}


def root_html(owner: str, projects: Sequence[str]) -> bytes:
    """Return the list of projects."""
    links = "".join(f'<a href="{name}/">{name}</a><br>\n' for name in projects)
    return (_ROOT_HEAD.format(title=f"Index of {escape(owner)}") + links + _TAIL).encode()


def root_json(projects: Sequence[str]) -> bytes:
    """Return the list of projects."""
    return _compact({"meta": _META, "projects": [{"name": name} for name in projects]})


def project_html(project: str, versions: Sequence[Version]) -> bytes:
    """Return the files of one project."""
    links = "".join(_anchor(project, version, file) for version in versions for file in version.files)
    return (_HEAD.format(title=f"Links for {escape(project)}") + links + _TAIL).encode()


def project_json(project: str, versions: Sequence[Version]) -> bytes:
    """Return the files of one project."""
    files = [_entry(project, version, file) for version in versions for file in version.files]
    return _compact(
        {
            "meta": _META,
            "name": project,
            "project-status": {"status": "active"},
            "versions": [version.version for version in versions],
            "files": files,
        }
    )


def _anchor(project: str, version: Version, file: File) -> str:
    attributes = [f'href="{_address(project, file)}#sha256={file.sha256}"']
    if version.requires_python:
        attributes.append(f'data-requires-python="{escape(version.requires_python)}"')
    if version.yanked:
        attributes.append(f'data-yanked="{escape(version.yanked_reason or "")}"')
    if file.core_metadata_sha256:
        digest = f"sha256={file.core_metadata_sha256}"
        attributes += [f'data-core-metadata="{digest}"', f'data-dist-info-metadata="{digest}"']
    return f"<a {' '.join(attributes)}>{escape(file.filename)}</a><br>\n"


def _entry(project: str, version: Version, file: File) -> dict[str, Any]:
    entry: dict[str, Any] = {
        "filename": file.filename,
        "url": _address(project, file),
        "hashes": {"sha256": file.sha256},
        "size": file.size,
        "upload-time": _time(file.uploaded_at),
        "yanked": (version.yanked_reason or True) if version.yanked else False,
    }
    if version.requires_python:
        entry["requires-python"] = version.requires_python
    core = {"sha256": file.core_metadata_sha256} if file.core_metadata_sha256 else False
    entry["core-metadata"] = entry["dist-info-metadata"] = core
    return entry


def _address(project: str, file: File) -> str:
    return f"../../files/{project}/{file.filename}"


def _time(moment: datetime) -> str:
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def _compact(value: dict[str, Any]) -> bytes:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()
