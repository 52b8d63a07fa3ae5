"""Which releases of the classic API a package says it was written for."""

from __future__ import annotations

import re
import sys
import tomllib
from functools import lru_cache
from importlib.metadata import PackageNotFoundError, packages_distributions, requires
from pathlib import Path

_REQUIREMENT = re.compile(r"\s*verifiers\s*(?:\[[^\]]*\])?\s*\(?\s*([^;)]*)", re.IGNORECASE)
_BOUND = re.compile(r"(?:>=|==|~=|>|===)\s*(\d+(?:\.\d+)*)")
Version = tuple[int, ...]


@lru_cache(maxsize=256)
def declared_release(module: str) -> Version | None:
    """Return the lowest release that the package of a module asks for; None when it says nothing.

    Packages are tested with the newest release of their day and name it as the lower bound, so this is the
    best sign there is of what a package expects where releases differ.
    """
    found = [_lower_bound(text) for text in _requirements(module.partition(".")[0])]
    return max((release for release in found if release is not None), default=None)


def _lower_bound(requirement: str) -> Version | None:
    matched = _REQUIREMENT.match(requirement)
    if matched is None:
        return None
    bounds = [tuple(map(int, bound.split("."))) for bound in _BOUND.findall(matched[1])]
    return max(bounds, default=None)


def _requirements(top: str) -> list[str]:
    """Return the dependencies of the project around a module, or of the distribution that brought it."""
    project = _project_of(top)
    if project is not None:
        return project
    found: list[str] = []
    for name in packages_distributions().get(top, []):
        try:
            found += requires(name) or []
        except PackageNotFoundError:
            continue
    return found


def _project_of(top: str) -> list[str] | None:
    """Return the dependencies in the `pyproject.toml` beside a module, or one or two folders above it.

    Some wheels ship theirs; then it lies in `site-packages`, and counts only when it is the module's own.
    """
    origin = getattr(sys.modules.get(top), "__file__", None)
    if origin is None:
        return None
    for folder in list(Path(origin).parents)[:3]:
        try:
            project = tomllib.loads((folder / "pyproject.toml").read_text(encoding="utf-8"))["project"]
        except (OSError, ValueError, KeyError):
            continue
        if str(project.get("name", "")).replace("-", "_").lower() == top.lower() or "src" in origin:
            return [str(each) for each in project.get("dependencies", [])]
    return None
