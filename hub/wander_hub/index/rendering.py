"""Renders rows as pages of the simple API: HTML 1.4 (frozen by PEP 833) and JSON 1.5.

Links are relative, so the stored bytes are right whatever host name the hub has.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
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
    return dump({"meta": _META, "projects": [{"name": name} for name in projects]})


def list_html(title: str, links: Sequence[str]) -> bytes:
    """Return a page of links; the title must already be escaped."""
    return (_HEAD.format(title=title, status="") + "".join(links) + _TAIL).encode()


@dataclass(frozen=True)
class Project:
    """The content of one index page."""

    name: str
    """Normalized name, as in the file names."""
    status: ProjectStatus
    reason: str | None
    files: Sequence[OfferedFile]
    """Files on offer, in upload order."""
    namespace: str | None = None
    """The owner's namespace if the combined index has the name in it (PEP 752)."""


def project_html(project: Project) -> bytes:
    """Return the files of one project."""
    status = f'<meta name="pypi:project-status" content="{project.status}">\n'
    if project.reason:
        status += f'<meta name="pypi:project-status-reason" content="{escape(project.reason)}">\n'
    links = "".join(link_to(_entry(project.name, file)) for file in project.files)
    head = _HEAD.format(title=f"Links for {escape(project.name)}", status=status)
    return (head + links + _TAIL).encode()


def project_json(project: Project) -> bytes:
    """Return the files of one project."""
    status: dict[str, str] = {"status": project.status}
    if project.reason:
        status["reason"] = project.reason
    return dump(
        {
            "meta": _META,
            "name": project.name,
            "project-status": status,
            "namespaces": [{"name": project.namespace, "owned": True}] if project.namespace else None,
            "versions": list(dict.fromkeys(file.version for file in project.files)),
            "files": [_entry(project.name, file) for file in project.files],
        }
    )


def link_to(entry: Mapping[str, Any]) -> str:
    """Return the link for a file entry of the JSON format (PEP 503, 592, 658, 714, 740)."""
    sha256 = entry["hashes"].get("sha256")
    attributes = {"href": entry["url"] + (f"#sha256={sha256}" if sha256 else "")}
    if "requires-python" in entry:
        attributes["data-requires-python"] = entry["requires-python"]
    if yanked := entry.get("yanked"):
        attributes["data-yanked"] = "" if yanked is True else yanked
    if core := entry.get("core-metadata") or entry.get("dist-info-metadata"):
        digest = core.get("sha256") if isinstance(core, dict) else None
        core_digest = f"sha256={digest}" if digest else "true"
        attributes["data-core-metadata"] = attributes["data-dist-info-metadata"] = core_digest
    if "provenance" in entry:
        attributes["data-provenance"] = entry["provenance"]
    shown = " ".join(f'{key}="{escape(str(value))}"' for key, value in attributes.items())
    return f"<a {shown}>{escape(entry['filename'])}</a><br>\n"


def _entry(project: str, file: OfferedFile) -> dict[str, Any]:
    entry: dict[str, Any] = {
        "filename": file.filename,
        "url": f"../../files/{project}/{file.filename}",
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
        # Relative like all links here: the hub may have several host names.
        entry["provenance"] = f"../../integrity/{project}/{file.version}/{file.filename}/provenance"
    return entry


def dump(value: dict[str, Any]) -> bytes:
    """Return a page in the JSON format."""
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()
