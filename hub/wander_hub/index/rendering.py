"""Turns rows into the pages of the simple API: HTML 1.4 (frozen by PEP 833) and JSON 1.5.

Addresses are relative, so the stored bytes are right under whatever name the hub is reached.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC
from html import escape
from typing import Any

from wander.wire import ProjectStatus

from wander_hub.environments.repository import OfferedFile

_HEAD = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="pypi:repository-version" content="1.4">
{status}<title>{title}</title>
</head>
<body>
<h1>{title}</h1>
"""
_TAIL = "</body>\n</html>\n"
_META = {"api-version": "1.5"}


def root_html(owner: str, projects: Sequence[str]) -> bytes:
    """Return the list of projects."""
    links = [f'<a href="{name}/">{name}</a><br>\n' for name in projects]
    return list_html(f"Index of {escape(owner)}", links)


def root_json(projects: Sequence[str]) -> bytes:
    """Return the list of projects."""
    return _compact({"meta": _META, "projects": [{"name": name} for name in projects]})


def list_html(title: str, links: Sequence[str]) -> bytes:
    """Return a page of links; the title is escaped already."""
    return (_HEAD.format(title=title, status="") + "".join(links) + _TAIL).encode()


@dataclass(frozen=True)
class Project:
    """The content of one index page."""

    name: str
    """As the files have it, normalised."""
    status: ProjectStatus
    reason: str | None
    files: Sequence[OfferedFile]
    """What may be had, in order of upload."""
    namespace: str | None = None
    """The owner's namespace where the name lies in it (PEP 752), so where the combined index has it."""


def project_html(project: Project) -> bytes:
    """Return the files of one project."""
    status = f'<meta name="pypi:project-status" content="{project.status}">\n'
    if project.reason:
        status += f'<meta name="pypi:project-status-reason" content="{escape(project.reason)}">\n'
    links = "".join(_anchor(project.name, file) for file in project.files)
    head = _HEAD.format(title=f"Links for {escape(project.name)}", status=status)
    return (head + links + _TAIL).encode()


def project_json(project: Project) -> bytes:
    """Return the files of one project."""
    status: dict[str, str] = {"status": project.status}
    if project.reason:
        status["reason"] = project.reason
    return _compact(
        {
            "meta": _META,
            "name": project.name,
            "project-status": status,
            "namespaces": [{"name": project.namespace, "owned": True}] if project.namespace else None,
            "versions": list(dict.fromkeys(file.version for file in project.files)),
            "files": [_entry(project.name, file) for file in project.files],
        }
    )


def _anchor(project: str, file: OfferedFile) -> str:
    attributes = [f'href="{_address(project, file)}#sha256={file.sha256}"']
    if file.requires_python:
        attributes.append(f'data-requires-python="{escape(file.requires_python)}"')
    if file.yanked:
        attributes.append(f'data-yanked="{escape(file.yanked_reason or "")}"')
    if file.core_metadata_sha256:
        digest = f"sha256={file.core_metadata_sha256}"
        attributes += [f'data-core-metadata="{digest}"', f'data-dist-info-metadata="{digest}"']
    if file.attested:
        attributes.append(f'data-provenance="{_provenance(project, file)}"')
    return f"<a {' '.join(attributes)}>{escape(file.filename)}</a><br>\n"


def _entry(project: str, file: OfferedFile) -> dict[str, Any]:
    entry: dict[str, Any] = {
        "filename": file.filename,
        "url": _address(project, file),
        "hashes": {"sha256": file.sha256},
        "size": file.size,
        "upload-time": file.uploaded_at.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
        "yanked": (file.yanked_reason or True) if file.yanked else False,
    }
    if file.requires_python:
        entry["requires-python"] = file.requires_python
    core = {"sha256": file.core_metadata_sha256} if file.core_metadata_sha256 else False
    entry["core-metadata"] = entry["dist-info-metadata"] = core
    if file.attested:
        entry["provenance"] = _provenance(project, file)
    return entry


def _provenance(project: str, file: OfferedFile) -> str:
    """Return the address of the provenance object, relative as all others: the hub may have several names."""
    return f"../../integrity/{project}/{file.version}/{file.filename}/provenance"


def _address(project: str, file: OfferedFile) -> str:
    return f"../../files/{project}/{file.filename}"


def _compact(value: dict[str, Any]) -> bytes:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()
