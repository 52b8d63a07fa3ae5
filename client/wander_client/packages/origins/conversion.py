"""Convert a package by another author into a package that a hub accepts, by adding the missing parts.

Only `pyproject.toml` and the README of a copy are changed. The library and the environment are detected by
reading the source, without running any of the package's code.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import tomlkit
from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from wander_client.errors import ClientError, NotFound, UsageError
from wander_client.packages.built_package import ENTRY_POINT_GROUP, require_project
from wander_client.packages.classic import lower_bounds, requirement_of
from wander_client.packages.library_use import (
    LOADER,
    Library,
    bound_names,
    defines_loader,
    generation_of,
    library_of,
    list_exports,
    read_source,
    tasksets_of,
)
from wander_client.packages.needs import HUB_PACKAGES, read_requirement
from wander_client.packages.origins.source import BUILD_SYSTEM, PackageOrigin


@dataclass
class ConvertedProject:
    """A package that was converted so that it can be published."""

    folder: Path
    name: str
    target: str
    """`module:function` of its environment."""
    library: Library
    generation: int | None
    """Generation of the classic API that it uses (1 to 3); None for other libraries."""
    written: list[str] = field(default_factory=list)
    """Descriptions of the changes that were made."""


def convert_project(folder: Path, origin: PackageOrigin, target: str | None = None) -> ConvertedProject:
    """Analyze a project folder and complete it in place; raises `ClientError` and its subclasses.

    `target` is the `module:function` of the environment, or the `module:class` of a task set. It is needed
    only if the project does not declare its entry point and several would be possible.
    """
    path = folder / "pyproject.toml"
    written: list[str] = []
    if not path.is_file():  # a folder that contains only code
        described = {
            "build-system": BUILD_SYSTEM,
            "project": {
                "name": canonicalize_name(folder.name),
                "version": "0.1.0",
                "requires-python": ">=3.11",
            },
            "tool": {"hatch": {"build": {"include": ["**/*"]}}},
        }
        path.write_text(tomlkit.dumps(described), encoding="utf-8")
        written.append("`pyproject.toml`")
    project = require_project(folder)
    name = project["name"]
    document = tomlkit.parse(path.read_text(encoding="utf-8"))
    if pack_modules(folder, name, document):
        document["build-system"] = BUILD_SYSTEM
        path.write_text(tomlkit.dumps(document), encoding="utf-8")
        written.append("a package of the top-level modules")
    declared = project.get("entry-points", {}).get(ENTRY_POINT_GROUP, {})
    target = target or next(iter(declared.values()), None) or _target(folder, name)
    trees = _package(folder, target.partition(":")[0])
    if library_of(trees) is None:  # the module imports its loader from another module of the project
        trees = [read_source(path) for path in sources_in(folder)]
    asked = requirement_of([str(each) for each in project.get("dependencies", [])])
    # A package that it requires may bring its classes.
    library = library_of(trees) or ("verifiers" if asked is not None else None)
    if library is None:
        raise UsageError(
            f"`{name}` imports neither `wander` nor `verifiers`",
            hint="only environments of these two libraries can be imported",
        )
    generation = generation_of(trees) if library == "verifiers" else None
    if generation == 2:
        # From 0.1.11 on messages are models.
        lowest = lower_bounds(asked.specifier) if asked is not None else []
        generation = 3 if any(bound >= Version("0.1.11.dev0") for bound, _ in lowest) else 2
    converted = ConvertedProject(folder, name, target, library, generation, written)
    _complete(converted, path, origin)
    return converted


def _target(folder: Path, name: str) -> str:
    """Return `module:function` of the loader, or `module:class` of the task set; raises `NotFound`."""
    trees = {_dotted(folder, path): read_source(path) for path in sources_in(folder)}
    loaders = [f"{module}:{LOADER}" for module, tree in trees.items() if defines_loader(tree)]
    classes = tasksets_of(trees.values())
    tasksets = [
        f"{module}:{exported}"
        for module, tree in trees.items()
        for exported in list_exports(tree)
        if exported in classes
    ]
    found = loaders or tasksets
    if not found:
        raise NotFound(f"`{name}` has no function `{LOADER}`", hint=_missing(trees), code="no_environment")
    wanted = name.replace("-", "_")
    best = sorted(found, key=lambda each: (each.partition(":")[0] != wanted, each.count("."), each))
    named = best[0].partition(":")[0] == wanted
    if len(best) > 1 and not named and best[0].count(".") == best[1].count("."):
        raise UsageError(
            f"`{name}` defines an environment in {', '.join(each.partition(':')[0] for each in best)}",
            hint=f"name one: `--entry-point {best[0]}`",
        )
    return best[0]


def _missing(trees: dict[str, ast.Module]) -> str:
    """Return a hint about the probable kind of a package without an environment."""
    if any({"load_taskset", "load_harness"} & bound_names(tree) for tree in trees.values()):
        return "it is written for a development release of verifiers 0.1.13 to 0.1.15, whose API was dropped"
    if any(tasksets_of([tree]) for tree in trees.values()):
        return "its task set must be named in the module's `__all__`"
    return "it may be a library, not an environment"


def _dotted(folder: Path, path: Path) -> str:
    parts = path.relative_to(folder).with_suffix("").parts
    return ".".join(parts[parts[0] == "src" : -1 if parts[-1] == "__init__" else None])


def _package(folder: Path, module: str) -> list[ast.Module]:
    """Return the parsed sources of a module, or of the whole package that it belongs to."""
    top = module.partition(".")[0]
    for base in (folder, folder / "src"):
        if (base / f"{top}.py").is_file():
            return [read_source(base / f"{top}.py")]
        if (base / top).is_dir():
            return [read_source(path) for path in sources_in(base / top)]
    raise NotFound(f"there is no module `{module}` in `{folder.name}`", code="no_environment")


def _complete(converted: ConvertedProject, path: Path, origin: PackageOrigin) -> None:
    """Add the parts that the project lacks: build system, entry point, dependency, README, note of origin."""
    document = tomlkit.parse(path.read_text(encoding="utf-8"))
    project: Any = document["project"]
    if "build-system" not in document:
        system = tomlkit.table()
        system.update(BUILD_SYSTEM)
        document["build-system"] = system
        converted.written.append("`[build-system]`")
        beside = [each.name for each in sources_in(converted.folder) if each.parent == converted.folder]
        modules = [name for name in beside if name != "__init__.py"]
        if len(modules) > 1 and "hatch" not in document.get("tool", {}):
            tools = document.setdefault("tool", tomlkit.table(is_super_table=True))
            tools["hatch"] = {"build": {"targets": {"wheel": {"only-include": modules}}}}
    hatch = document.get("tool", {}).get("hatch", {}).get("build", {}).get("targets", {}).get("wheel", {})
    if hatch.get("packages") == ["."]:  # hatchling would begin every name in the wheel with `./`
        del hatch["packages"]
        hatch["only-include"] = sorted(files_beside(converted.folder))
        converted.written.append("which files the wheel has")
    if ENTRY_POINT_GROUP not in project.get("entry-points", {}):
        groups = project.setdefault("entry-points", tomlkit.table(is_super_table=True))
        groups[ENTRY_POINT_GROUP] = {canonicalize_name(converted.name): converted.target}
        converted.written.append("the entry point")
    needed = "wander-sdk" if converted.library == "wander" else "verifiers"
    if needed not in _dependencies(project):
        project.setdefault("dependencies", tomlkit.array()).insert(0, needed)
        converted.written.append(f"the dependency on `{needed}`")
    if _write_sources(project, document.get("tool", {}).get("uv", {}).get("sources", {})):
        tools = document["tool"].setdefault("hatch", tomlkit.table(is_super_table=True))
        tools.setdefault("metadata", tomlkit.table())["allow-direct-references"] = True
        converted.written.append("where its dependencies come from")
    readme = _readme(converted.folder, project)
    if readme is None:
        readme = converted.folder / "README.md"
        readme.write_text(f"# {converted.name}\n\n{project.get('description', '')}\n", encoding="utf-8")
        converted.written.append("`README.md`")
    if not project.get("readme"):
        project["readme"] = readme.name
    said = readme.read_text(encoding="utf-8", errors="replace")
    if origin.note not in said:
        readme.write_text(f"{said.rstrip()}\n\n---\n\n{origin.note}\n", encoding="utf-8")
        converted.written.append("the note of origin")
    path.write_text(tomlkit.dumps(document), encoding="utf-8")


def _write_sources(project: dict[str, Any], sources: dict[str, Any]) -> bool:
    """Copy URLs from `[tool.uv.sources]` into the requirements. Return whether a requirement changed.

    A wheel's metadata contains the requirements, but not this table. Raises `ClientError` for a repository,
    because its contents are not a release, and building it would run its code.
    """
    found = {canonicalize_name(name): source for name, source in sources.items() if isinstance(source, dict)}
    written = False
    for number, each in enumerate(project.get("dependencies", [])):
        try:
            wanted = Requirement(str(each))
        except InvalidRequirement:
            continue
        name = canonicalize_name(wanted.name)
        source = {} if name in HUB_PACKAGES else found.get(name, {})
        if "git" in source:
            raise ClientError(
                f"the project takes `{wanted.name}` from a repository (`[tool.uv.sources]`)",
                hint=f"publish `{wanted.name}` as a package, or require a release of it",
                code="unsafe_requirement",
            )
        url = str(source.get("url", ""))
        if url and not wanted.url:
            extras = f"[{','.join(sorted(wanted.extras))}]" if wanted.extras else ""
            marker = f" ; {wanted.marker}" if wanted.marker else ""
            linked = f"{wanted.name}{extras} @ {url}{marker}"
            project["dependencies"][number] = str(read_requirement(linked, "the project"))
            written = True
    return written


def _dependencies(project: dict[str, Any]) -> set[str]:
    names: set[str] = set()
    for each in project.get("dependencies", []):
        try:
            names.add(canonicalize_name(Requirement(str(each)).name))
        except InvalidRequirement:
            continue
    return names


def _readme(folder: Path, project: dict[str, Any]) -> Path | None:
    """Return the project's README, even if it is declared in a table or is not Markdown."""
    stated = project.get("readme")
    stated = stated.get("file") if isinstance(stated, dict) else stated
    names = [stated] if isinstance(stated, str) else ["README.md", "README.rst", "README.txt", "README"]
    return next((folder / name for name in names if (folder / name).is_file()), None)


_STAY = ("pyproject.toml", "readme", "licen", "changelog", "uv.lock", ".", "setup.")
"""Prefixes of names that belong to the project rather than to its package."""
SKIPPED = {"tests", "test", "docs", "examples", "scripts", "setup.py", "conftest.py"}


def sources_in(folder: Path) -> Iterator[Path]:
    """Yield the source files of a project that may define its environment."""
    for path in sorted(folder.rglob("*.py")):
        parts = path.relative_to(folder).parts
        if not SKIPPED & set(parts) and not any(part.startswith(("test_", ".")) for part in parts):
            yield path


def files_beside(folder: Path) -> list[str]:
    """Return the names in the project's top-level folder that belong to the installed package."""
    names = [path.name for path in folder.iterdir() if not path.name.lower().startswith(_STAY)]
    return [name for name in names if name not in SKIPPED]


def pack_modules(folder: Path, name: str, document: Any) -> bool:
    """Move the top-level modules of a project into a package if they need one; return whether they did.

    They need a package if the folder's `__init__.py` defines the loader or if one module imports another
    relatively, which fails for top-level modules. `document` is the parsed `pyproject.toml`; it is updated.
    """
    modules = {path: read_source(path) for path in sources_in(folder) if path.parent == folder}
    package, start = folder / name.replace("-", "_").replace(".", "_"), folder / "__init__.py"
    nodes = (node for tree in modules.values() for node in ast.walk(tree))
    relative = any(isinstance(node, ast.ImportFrom) and node.level for node in nodes)
    if package.exists() or not (relative or (start in modules and defines_loader(modules[start]))):
        return False
    moved = files_beside(folder)
    package.mkdir()
    for name in moved:
        (folder / name).rename(package / name)
    if start not in modules:
        loaders = [path.stem for path, tree in modules.items() if defines_loader(tree)]
        (package / "__init__.py").write_text(
            "".join(f"from .{each} import {LOADER}\n" for each in loaders), encoding="utf-8"
        )
    tools = document.setdefault("tool", {})
    tools.pop("setuptools", None)  # it says where the modules were
    tools.setdefault("hatch", {})["build"] = {"targets": {"wheel": {"packages": [package.name]}}}
    return True
