"""Checks of the package around an environment: what an index and a reader will see of it."""

from __future__ import annotations

import json
import re
import subprocess
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from wander.checks.report import CHECKS, CheckResult, Status, result
from wander.loading import GROUP

LEAST_README = 200
"""Characters that a README needs to explain anything."""

_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?")
_VERSION = re.compile(r"(\d+!)?\d+(\.\d+)*((a|b|rc)\d+)?(\.post\d+)?(\.dev\d+)?(\+[a-z0-9.]+)?")
"""PEP 440, normalised."""

_ASK = """
import importlib.metadata as metadata, json, re, sys
normal = lambda name: re.sub(r"[-_.]+", "-", name).lower()
every = metadata.entry_points(group=sys.argv[1])
found = [each for each in every if normal(each.name) == normal(sys.argv[2])]
if found and found[0].dist is not None:
    about, entry = found[0].dist.metadata, found[0]
    print(json.dumps({
        "name": about["Name"], "version": about["Version"], "description": about["Summary"],
        "readme": about.get_payload() or about["Description"] or "",
        "license": about["License-Expression"] or about["License"],
        "dependencies": entry.dist.requires or [], "entry_points": {entry.name: entry.value},
    }))
"""
"""Asks another interpreter what it has installed; prints nothing for what it has not."""


def check_package(folder: Path | None, name: str, python: Path) -> list[CheckResult]:
    """Check the project folder, or what `python` has installed under the environment's name.

    A single file is no package: its checks are skipped.
    """
    if folder is not None and not folder.is_dir():
        return _skip_all("a single file is no package")
    about = _read_project(folder) if folder is not None else _read_installed(name, python)
    if isinstance(about, str):
        return _skip_all(about)
    return [result(check_id, *found) for check_id, found in _findings(about).items()]


def _skip_all(reason: str) -> list[CheckResult]:
    return [result(check, "skip", reason) for check in CHECKS if check.startswith("package.")]


def _findings(about: dict[str, Any]) -> dict[str, tuple[Status, str]]:
    """Judge the metadata, check by check."""
    entries, version = about.get("entry_points") or {}, about.get("version")
    readme = str(about.get("readme") or "")
    return {
        "package.name": _first(_name_faults(about.get("name"), version)),
        "package.entry-point": _first(_entry_faults(entries)),
        "package.summary": ("pass", "")
        if about.get("description")
        else ("fail", "there is no `description`"),
        "package.readme": _readme_finding(readme.strip()),
        "package.license": ("pass", "") if about.get("license") else ("warn", "there is no `license`"),
        "package.sdk": (
            ("pass", "")
            if any(_requires_sdk(str(each)) for each in about.get("dependencies") or [])
            else ("warn", "`wander-sdk` is not among its dependencies")
        ),
    }


def _readme_finding(readme: str) -> tuple[Status, str]:
    if not readme:
        return "fail", "there is none"
    if len(readme) < LEAST_README:
        return "warn", f"its {len(readme)} characters can hardly explain it"
    return "pass", ""


def _first(faults: Iterator[str]) -> tuple[Status, str]:
    fault = next(faults, None)
    return ("pass", "") if fault is None else ("fail", fault)


def _name_faults(name: Any, version: Any) -> Iterator[str]:
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        yield f"`{name}` is no name of a package" if name else "there is no `name`"
    if not isinstance(version, str) or not version:
        yield "there is no `version`"
    elif not _VERSION.fullmatch(version):
        yield f"`{version}` is no version"


def _entry_faults(entries: dict[str, str]) -> Iterator[str]:
    if len(entries) != 1:
        yield f"`{GROUP}` has {len(entries)} entry points, not one"
    for target in entries.values():
        if not re.fullmatch(r"[\w.]+:[\w.]+", target):
            yield f"`{target}` is not `module:function`"


def _requires_sdk(requirement: str) -> bool:
    return re.sub(r"[-_.]+", "-", requirement).lower().startswith("wander-sdk")


def _read_project(folder: Path) -> dict[str, Any] | str:
    """Return a project's metadata, or why there is none."""
    settings = folder / "pyproject.toml"
    if not settings.is_file():
        return {}
    try:
        text = settings.read_text(encoding="utf-8")
        project: dict[str, Any] = tomllib.loads(text).get("project", {})
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        return f"`pyproject.toml` is not valid TOML: {error}"
    dynamic = project.get("dynamic", [])
    return {
        "name": project.get("name"),
        "version": "0" if "version" in dynamic else project.get("version"),
        "description": "dynamic" if "description" in dynamic else project.get("description"),
        "readme": _readme(folder, project.get("readme")),
        "license": project.get("license"),
        "dependencies": project.get("dependencies", []),
        "entry_points": project.get("entry-points", {}).get(GROUP, {}),
    }


def _readme(folder: Path, declared: Any) -> str:
    """Return the text of the README that the project declares; empty when there is none."""
    name = declared.get("file") if isinstance(declared, dict) else declared
    if isinstance(declared, dict) and "text" in declared:
        return str(declared["text"])
    place = folder / str(name) if name else None
    return place.read_text(encoding="utf-8", errors="replace") if place and place.is_file() else ""


def _read_installed(name: str, python: Path) -> dict[str, Any] | str:
    """Return an installed distribution's metadata, or why there is none."""
    wanted = name.rpartition("/")[2].partition("@")[0]
    asked = subprocess.run(  # noqa: S603 - our own program, in the interpreter that the caller chose
        [str(python), "-P", "-c", _ASK, GROUP, wanted], capture_output=True, text=True, check=False
    )
    if asked.returncode != 0 or not asked.stdout.strip():
        return f"no installed package declares the environment `{wanted}`"
    about: dict[str, Any] = json.loads(asked.stdout)
    return about
