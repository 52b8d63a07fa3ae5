"""Checks of the package around an environment: what an index and a reader will see of it."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from contextlib import suppress
from email import message_from_string
from importlib import metadata
from pathlib import Path
from typing import Any

from wander.checks.report import CHECKS, CheckResult, Status, check_result
from wander.loading import GROUP, normal_name
from wander.system.plain_files import read_plain_file
from wander.wire.gate import read_project

_LARGEST_README = 8 << 20
"""Bytes of a README that are read."""

LEAST_README = 200
"""Characters that a README needs to explain anything."""

SCAFFOLD = "This text came with `wander new`"
"""What the templates' README says of itself."""
SCAFFOLDED = frozenset(
    {
        "Add two numbers.",
        "Guess a number that is higher or lower.",
        "Look prices up and add them.",
        "Move money until all have the same.",
        "Ask a library about its books over MCP.",
        "Count what a long log reports.",
        "Add numbers and spell words backwards.",
        "Answer why, and let a judge compare.",
    }
)
"""The descriptions with which `wander new` begins a package."""
_LEFT = re.compile(r"\b(?:TODO|FIXME|TBD)\b|(?i:\blorem ipsum\b|\byour[- ]name[- ]here\b)|@[a-z_]+@(?!\w)")
"""What stands in a text that nobody has finished."""

_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?")
_VERSION = re.compile(r"(\d+!)?\d+(\.\d+)*((a|b|rc)\d+)?(\.post\d+)?(\.dev\d+)?(\+[a-z0-9.]+)?")
"""PEP 440, normalised."""


def check_package(folder: Path | None, name: str, python: Path) -> list[CheckResult]:
    """Check the project folder, or what `python` has installed under the environment's name.

    A single file is no package: its checks are skipped.
    """
    checks = [check for check in CHECKS if check.startswith("package.")]
    if folder is not None and not folder.is_dir():
        return [check_result(check, "skip", "a single file is no package") for check in checks]
    about = _read_project(folder) if folder is not None else _read_installed(name, python)
    if isinstance(about, str):
        return [check_result(check, "skip", about) for check in checks]
    faults = {check: check_result(check, status, said) for check, status, said in _find_faults(about)}
    return [faults.get(check) or check_result(check, "pass") for check in checks]


def _find_faults(about: dict[str, Any]) -> Iterator[tuple[str, Status, str]]:
    """Yield what is wrong with the metadata: check, status, and message."""
    name, version, readme = about.get("name"), about.get("version"), str(about.get("readme") or "").strip()
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        said = f"`{name}` is no name of a package" if name else "there is no `name`"
        yield "package.name", "fail", said
    elif not isinstance(version, str) or not version:
        yield "package.name", "fail", "there is no `version`"
    elif not _VERSION.fullmatch(version):
        yield "package.name", "fail", f"`{version}` is no version"
    targets = list((about.get("entry_points") or {}).values())
    if len(targets) != 1:
        yield "package.entry-point", "fail", f"`{GROUP}` has {len(targets)} entry points, not one"
    elif not re.fullmatch(r"[\w.]+:[\w.]+", targets[0]):
        yield "package.entry-point", "fail", f"`{targets[0]}` is not `module:function`"
    if not about.get("description"):
        yield "package.summary", "fail", "there is no `description`"
    if not readme:
        yield "package.readme", "fail", "there is none"
    elif len(readme) < LEAST_README:
        yield "package.readme", "warn", f"its {len(readme)} characters can hardly explain it"
    told = f"{about.get('description') or ''}\n{readme}"
    left = re.search(re.escape(SCAFFOLD), told) or _LEFT.search(told)
    if left is not None or about.get("description") in SCAFFOLDED:
        said = left.group() if left is not None else about["description"]
        status: Status = "fail" if said == SCAFFOLD else "warn"  # the others may be meant
        yield "package.scaffold", status, f'it still says "{said}"'
    if not about.get("license"):
        yield "package.license", "warn", "there is no `license`"
    required = [normal_name(str(each)) for each in about.get("dependencies") or []]
    if not any(each.startswith(("wander-sdk", "verifiers")) for each in required):
        yield "package.sdk", "warn", "`wander-sdk` is not among its dependencies"


def _read_project(folder: Path) -> dict[str, Any] | str:
    """Return a project's metadata, or why there is none."""
    settings = folder / "pyproject.toml"
    if not settings.is_file():
        return {}
    try:
        project: dict[str, Any] = read_project(folder).get("project", {})
    except (OSError, ValueError) as error:
        return f"`pyproject.toml` cannot be read: {error}"
    dynamic, readme = project.get("dynamic", []), project.get("readme")
    if isinstance(readme, dict) and "text" in readme:
        readme = readme["text"]
    elif readme:
        place = folder / str(readme.get("file") if isinstance(readme, dict) else readme)
        readme = ""
        with suppress(OSError):  # it is not there, or not a file
            readme = read_plain_file(place, _LARGEST_README, below=folder).decode(errors="replace")
    return {
        "name": project.get("name"),
        "version": "0" if "version" in dynamic else project.get("version"),
        "description": "dynamic" if "description" in dynamic else project.get("description"),
        "readme": readme,
        "license": project.get("license"),
        "dependencies": project.get("dependencies", []),
        "entry_points": project.get("entry-points", {}).get(GROUP, {}),
    }


def _read_installed(name: str, python: Path) -> dict[str, Any] | str:
    """Return an installed distribution's metadata, or why there is none.

    It is read from the files: the interpreter would run what packages left for its start (`.pth`), which may
    be a stranger's, and no sandbox is around it here.
    """
    wanted = normal_name(name.rpartition("/")[2].partition("@")[0])
    folders = sys.path
    if python != Path(sys.executable):
        folders = [str(each) for each in python.parent.parent.glob("lib/python*/site-packages")]
    for dist in metadata.distributions(path=folders):
        for entry in dist.entry_points:
            if entry.group == GROUP and normal_name(entry.name) == wanted:
                about = message_from_string(dist.read_text("METADATA") or "")
                return {
                    "name": about["Name"],
                    "version": about["Version"],
                    "description": about["Summary"],
                    "readme": about.get_payload() or about["Description"] or "",
                    "license": about["License-Expression"] or about["License"],
                    "dependencies": dist.requires or [],
                    "entry_points": {entry.name: entry.value},
                }
    return f"no installed package declares the environment `{wanted}`"
