"""The interpreter that runs a project folder: this one, or one that has what the folder declares.

What is installed here is taken where it suffices, since that costs nothing. Else the folder's dependencies go
into a virtual environment of its own, with a copy of the SDK, as they would once it is installed; it is made
once for the same dependencies, and `wander cache prune` removes it when it was not used for long.
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
from wander.wire.gate import read_project

from wander_client.errors import ClientError
from wander_client.packages import classic
from wander_client.packages.interpreters import HERE, choose_python
from wander_client.packages.needs import HUB_PACKAGES, INTEGRATIONS, SDK, read_requirement
from wander_client.packages.uv import install_into, make_virtualenv
from wander_client.packages.virtualenvs import VirtualEnvironments, key_of
from wander_client.settings import load_settings

_COPIED = {SDK: "wander", classic.COMPAT: "wander_compat", INTEGRATIONS: "wander_integrations"}
"""What runs an environment, by distribution: the package that is copied."""


def python_of(folder: Path, data_dir: Path, note: Callable[[str], None]) -> Path:
    """Return the interpreter for a folder; `note` is told when its packages are installed first.

    Raises `ClientError`, with the line that installs them, when that cannot be done.
    """
    declared = declared_requirements(folder)
    names = {canonicalize_name(each.name) for each in declared}
    if INTEGRATIONS in names and find_spec(_COPIED[INTEGRATIONS]) is None:
        raise ClientError(
            f"`{folder.name}` needs `{INTEGRATIONS}`, which is not installed",
            hint=f"install it: `{install_command(INTEGRATIONS, load_settings().hub)}`",
            code="missing_extra",
        )
    python = choose_python(_project(folder).get("requires-python"), f"`{folder.name}`", note)
    lacking = [each for each in declared if not _is_here(each)]
    if not lacking and python == HERE:
        return HERE.path
    wanted = sorted(set(_third_parties(_listed(folder))))  # uv knows which of them that Python needs
    copied = list(_sources())
    contents = "\n".join([*wanted, *(_fingerprint(source) for _, source in copied)])
    missing = ", ".join(f"`{each}`" for each in lacking) or f"Python {python.minor}"

    def build(place: Path) -> None:
        note(f"installing what `{folder.name}` needs and this Python lacks: {missing}")
        make_virtualenv(place, python.path)
        never = place / "never.txt"
        # Who requires one of Wander's own packages gets the copy, whatever an index has of that name.
        never.write_text(
            "".join(f"{name}; python_version < '3'\n" for name in HUB_PACKAGES), encoding="utf-8"
        )
        options = ["install", "--quiet", "--overrides", str(never), *wanted]
        install_into(place, options, doing=f"installing what `{folder.name}` declares")
        (site,) = place.glob("lib/python3*/site-packages")
        for name, source in copied:
            _copy(name, source, site)

    try:
        digest = hashlib.sha256(contents.encode()).hexdigest()
        with VirtualEnvironments(data_dir).hold(key_of(digest, python.version), python, build) as virtualenv:
            return virtualenv / "bin" / "python"
    except ClientError as error:
        error.hint = (
            f"correct `dependencies` in `{folder / 'pyproject.toml'}`, or put them into this Python: "
            f"`{install_line(lacking)}`"
        )
        raise


def install_line(requirements: list[Requirement]) -> str:
    """Return the command that installs requirements into this Python."""
    words = shlex.join(str(each) for each in requirements)
    return f"uv pip install --python {shlex.quote(sys.executable)} {words}"


def declared_requirements(folder: Path) -> list[Requirement]:
    """Return what `pyproject.toml` declares for this machine; nothing where it leaves that to its build."""
    return [each for each in _listed(folder) if _applies(each)]


def _project(folder: Path) -> dict[str, Any]:
    """Return the `[project]` table; nothing where it cannot be read, which loading tells."""
    try:
        project: dict[str, Any] = read_project(folder).get("project", {})
    except (OSError, ValueError):
        return {}
    return project


def _listed(folder: Path) -> list[Requirement]:
    try:
        return [read_requirement(each, folder.name) for each in _project(folder).get("dependencies", [])]
    except ClientError as error:
        error.hint = "correct `dependencies` in `pyproject.toml`"
        raise


def _applies(requirement: Requirement, extra: str = "") -> bool:
    return requirement.marker is None or requirement.marker.evaluate({"extra": extra})


def _is_here(requirement: Requirement) -> bool:
    """Tell whether this Python has it. Of Wander's own packages it has the version that counts."""
    name = canonicalize_name(requirement.name)
    try:
        version = distribution(name).version
    except PackageNotFoundError:
        return name in HUB_PACKAGES
    fits = name in HUB_PACKAGES or requirement.specifier.contains(version, prereleases=True)
    return fits and all(map(_is_here, _of_extras(requirement)))


def _of_extras(requirement: Requirement) -> Iterator[Requirement]:
    """Yield what the extras of a requirement that is installed here add to it."""
    for text in distribution(requirement.name).requires or []:
        one = Requirement(text)
        if any(_applies(one, extra) for extra in requirement.extras) and not _applies(one):
            yield one


def _third_parties(declared: list[Requirement]) -> Iterator[str]:
    """Yield what a package index has to supply: for the folder, and for the packages that are copied."""
    for requirement in declared:
        if canonicalize_name(requirement.name) not in HUB_PACKAGES:
            yield str(requirement)
        elif canonicalize_name(requirement.name) in (SDK, INTEGRATIONS):
            yield from map(_without_marker, _of_extras(requirement))
    for name, _ in _sources():
        for text in distribution(name).requires or []:
            one = Requirement(text)
            if _applies(one) and canonicalize_name(one.name) not in HUB_PACKAGES:
                yield _without_marker(one)


def _without_marker(requirement: Requirement) -> str:
    return str(requirement).partition(";")[0].strip()


def _sources() -> Iterator[tuple[str, Path]]:
    """Yield the distributions that are copied, each with its package's folder."""
    for name, package in _COPIED.items():
        spec = find_spec(package)
        if spec is not None and spec.submodule_search_locations:
            yield name, Path(spec.submodule_search_locations[0])


def _fingerprint(source: Path) -> str:
    """Return a digest of the names, sizes and times of a package's files: it changes when they do."""
    lines = [
        f"{path.relative_to(source)} {path.stat().st_size} {path.stat().st_mtime_ns}"
        for path in sorted(source.rglob("*.py"))
    ]
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def _copy(name: str, source: Path, site: Path) -> None:
    """Copy a package of this Python to another's, with what its distribution says of itself."""
    shutil.copytree(source, site / source.name, ignore=shutil.ignore_patterns("__pycache__"))
    about = distribution(name)
    told = site / f"{name.replace('-', '_')}-{about.version}.dist-info"
    told.mkdir()
    for file in ("METADATA", "entry_points.txt"):
        if (text := about.read_text(file)) is not None:
            (told / file).write_text(text, encoding="utf-8")
