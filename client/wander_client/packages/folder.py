"""Choose the interpreter for a project folder: this Python, or one with the folder's dependencies.

If this Python has all dependencies, it is used, because that is fastest. Otherwise, the dependencies are
installed into a separate virtual environment, with a copy of the SDK. Folders with the same dependencies
share it, and `wander cache prune` removes it if it has not been used for a long time.
"""

from __future__ import annotations

import hashlib
import shlex
import shutil
import sys
from collections.abc import Callable, Iterator
from importlib.metadata import PackageNotFoundError, distribution
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from wander.errors import install_command
from wander.wire.untrusted_text import read_project

from wander_client.errors import ClientError
from wander_client.packages import classic
from wander_client.packages.interpreters import HERE, choose_python
from wander_client.packages.needs import HUB_PACKAGES, INTEGRATIONS, SDK, read_requirement
from wander_client.packages.uv import install_into, make_virtualenv
from wander_client.packages.virtualenvs import VirtualEnvironments, key_of
from wander_client.settings import load_settings

_COPIED = {SDK: "wander", classic.COMPAT: "wander_compat", INTEGRATIONS: "wander_integrations"}
"""Packages to copy, by distribution."""


def python_of(folder: Path, data_dir: Path, note: Callable[[str], None]) -> Path:
    """Return the interpreter for a folder. `note` is called before packages are installed.

    Raises `ClientError` with the command that installs the packages if that fails.
    """
    declared = declared_requirements(folder)
    names = {canonicalize_name(item.name) for item in declared}
    if INTEGRATIONS in names and find_spec(_COPIED[INTEGRATIONS]) is None:
        raise ClientError(
            f"`{folder.name}` requires `{INTEGRATIONS}`, which is not installed",
            hint=f"install it: `{install_command(INTEGRATIONS, load_settings().hub)}`",
            code="missing_extra",
        )
    python = choose_python(_project(folder).get("requires-python"), f"`{folder.name}`", note)
    lacking = [item for item in declared if not _is_here(item)]
    if not lacking and python == HERE:
        return HERE.path
    wanted = sorted(set(_third_parties(_listed(folder))))  # uv evaluates the markers for the chosen Python
    copied = list(_sources())
    contents = "\n".join([*wanted, *(_fingerprint(source) for _, source in copied)])
    missing = ", ".join(f"`{item}`" for item in lacking) or f"Python {python.minor}"

    def build(target: Path) -> None:
        note(f"installing packages for `{folder.name}` that are missing in this Python: {missing}")
        make_virtualenv(target, python.path)
        never = target / "never.txt"
        # Requirements on Wander's own packages mean the copies, even if an index offers others.
        never.write_text(
            "".join(f"{name}; python_version < '3'\n" for name in HUB_PACKAGES), encoding="utf-8"
        )
        options = ["install", "--quiet", "--overrides", str(never), *wanted]
        install_into(target, options, doing=f"installing the dependencies of `{folder.name}`")
        (site,) = target.glob("lib/python3*/site-packages")
        for name, source in copied:
            _copy(name, source, site)

    try:
        digest = hashlib.sha256(contents.encode()).hexdigest()
        with VirtualEnvironments(data_dir).hold(key_of(digest, python.version), python, build) as virtualenv:
            return virtualenv / "bin" / "python"
    except ClientError as error:
        error.hint = (
            f"fix `dependencies` in `{folder / 'pyproject.toml'}`, or install them into this Python: "
            f"`{install_line(lacking)}`"
        )
        raise


def install_line(requirements: list[Requirement]) -> str:
    """Return the command that installs requirements into this Python."""
    words = shlex.join(str(item) for item in requirements)
    return f"uv pip install --python {shlex.quote(sys.executable)} {words}"


def declared_requirements(folder: Path) -> list[Requirement]:
    """Return the dependencies in `pyproject.toml` that apply to this machine, or none if they are dynamic."""
    return [item for item in _listed(folder) if _applies(item)]


def _project(folder: Path) -> dict[str, Any]:
    """Return the `[project]` table, or an empty table if it is unreadable, which loading reports."""
    try:
        project: dict[str, Any] = read_project(folder).get("project", {})
    except (OSError, ValueError):
        return {}
    return project


def _listed(folder: Path) -> list[Requirement]:
    try:
        return [read_requirement(text, folder.name) for text in _project(folder).get("dependencies", [])]
    except ClientError as error:
        error.hint = "fix `dependencies` in `pyproject.toml`"
        raise


def _applies(requirement: Requirement, extra: str = "") -> bool:
    return requirement.marker is None or requirement.marker.evaluate({"extra": extra})


def _is_here(requirement: Requirement) -> bool:
    """Return whether this Python has a package. Any version of Wander's own packages is accepted."""
    name = canonicalize_name(requirement.name)
    try:
        version = distribution(name).version
    except PackageNotFoundError:
        return name in HUB_PACKAGES
    fits = name in HUB_PACKAGES or requirement.specifier.contains(version, prereleases=True)
    return fits and all(map(_is_here, _of_extras(requirement)))


def _of_extras(requirement: Requirement) -> Iterator[Requirement]:
    """Yield the additional requirements of a package's extras."""
    if not requirement.extras:  # reading the requirements of the SDK takes 7 ms
        return
    for text in distribution(requirement.name).requires or []:
        addition = Requirement(text)
        if any(_applies(addition, extra) for extra in requirement.extras) and not _applies(addition):
            yield addition


def _third_parties(declared: list[Requirement]) -> Iterator[str]:
    """Yield the requirements that come from a package index, including those of the copied packages."""
    for requirement in declared:
        if canonicalize_name(requirement.name) not in HUB_PACKAGES:
            yield str(requirement)
        elif canonicalize_name(requirement.name) in (SDK, INTEGRATIONS):
            yield from map(_without_marker, _of_extras(requirement))
    for name, _ in _sources():
        for text in distribution(name).requires or []:
            addition = Requirement(text)
            if _applies(addition) and canonicalize_name(addition.name) not in HUB_PACKAGES:
                yield _without_marker(addition)


def _without_marker(requirement: Requirement) -> str:
    return str(requirement).partition(";")[0].strip()


def _sources() -> Iterator[tuple[str, Path]]:
    """Yield the distributions to copy, each with its package's folder."""
    for name, package in _COPIED.items():
        spec = find_spec(package)
        if spec is not None and spec.submodule_search_locations:
            yield name, Path(spec.submodule_search_locations[0])


def _fingerprint(source: Path) -> str:
    """Return a digest of the names, sizes and times of a package's files."""
    lines = [
        f"{path.relative_to(source)} {path.stat().st_size} {path.stat().st_mtime_ns}"
        for path in sorted(source.rglob("*.py"))
    ]
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def _copy(name: str, source: Path, site: Path) -> None:
    """Copy a package to another Python, together with the metadata of its distribution."""
    shutil.copytree(source, site / source.name, ignore=shutil.ignore_patterns("__pycache__"))
    about = distribution(name)
    metadata_dir = site / f"{name.replace('-', '_')}-{about.version}.dist-info"
    metadata_dir.mkdir()
    for file in ("METADATA", "entry_points.txt"):
        if (text := about.read_text(file)) is not None:
            (metadata_dir / file).write_text(text, encoding="utf-8")
