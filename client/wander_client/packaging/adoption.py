"""Turn a package of somebody else's into one that a hub takes: see what it is, write what it lacks.

Only a copy is changed, and of it only `pyproject.toml` and the README. What an environment is, is read from
its source; nothing of it runs here.
"""

from __future__ import annotations

import ast
import re
import tomllib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from wander_client.errors import ClientError, NotFound, UsageError
from wander_client.packaging.classic import requirement_of

Library = Literal["wander", "verifiers", "verifiers.v1"]
LOADER = "load_environment"
GROUP = "wander.environments"
_SKIPPED = {"tests", "test", "docs", "examples", "scripts", "setup.py", "conftest.py"}
_LATER_NAMES = {"UserMessage", "AssistantMessage", "ToolMessage", "tool_defs", "ClientConfig"}
_MARKS = {"stop", "cleanup", "teardown"}


@dataclass
class Adoption:
    """What a package is, and what was written so that it can be published."""

    folder: Path
    name: str
    target: str
    """`module:function` of its environment."""
    library: Library
    generation: int | None
    """Which generation of the classic API it uses (1 to 3); None for other libraries."""
    written: list[str] = field(default_factory=list)
    """What was added, in words."""


def adopt(folder: Path, origin: str, target: str | None = None) -> Adoption:
    """See what a project folder holds and complete it in place; raises `ClientError` and its kinds.

    `target` names its `module:function`, where it declares none and there are several.
    """
    path = folder / "pyproject.toml"
    written: list[str] = []
    if not path.is_file():
        path.write_text(_new_project(folder), encoding="utf-8")
        written.append("`pyproject.toml`")
    text = path.read_text(encoding="utf-8")
    project = _project(text, path)
    name = str(project.get("name") or "")
    if not name:
        raise ClientError(f"`{path}` has no `name` under `[project]`", code="bad_pyproject")
    declared = project.get("entry-points", {}).get(GROUP, {})
    target = target or next(iter(declared.values()), None) or f"{_module(folder, name)}:{LOADER}"
    source = _source(folder, target.partition(":")[0])
    library, generation = read_kind(source)
    if library == "verifiers.v1":
        raise UsageError(
            f"`{name}` is written for `verifiers.v1`, a library of its own",
            hint="run it with that library; its `traces.jsonl` can be imported with `wander import results`",
        )
    if generation == 2 and _asks_for_models(project):
        generation = 3
    adopted = Adoption(folder, name, target, library, generation, written)
    _complete(adopted, path, text, project, origin)
    return adopted


def _project(text: str, path: Path) -> dict[str, Any]:
    try:
        project: dict[str, Any] = tomllib.loads(text).get("project", {})
    except tomllib.TOMLDecodeError as error:
        raise ClientError(f"`{path}` is not valid TOML", detail=str(error), code="bad_pyproject") from error
    return project


def _new_project(folder: Path) -> str:
    """Return the `pyproject.toml` of a folder that is only code."""
    name = canonicalize_name(folder.name)
    return (
        '[build-system]\nrequires = ["hatchling>=1.27"]\nbuild-backend = "hatchling.build"\n\n[project]\n'
        f'name = "{name}"\nversion = "0.1.0"\nrequires-python = ">=3.11"\n\n'
        '[tool.hatch.build]\ninclude = ["**/*"]\n'
    )


def _module(folder: Path, name: str) -> str:
    """Return the dotted module that defines `load_environment`; raises `NotFound`."""
    wanted = name.replace("-", "_")
    found = [path for path in _sources(folder) if _defines_loader(path)]
    modules = {_dotted(folder, path): path for path in found}
    if wanted in modules or not modules:
        if not modules:
            raise NotFound(
                f"`{name}` has no function `{LOADER}`",
                hint="it may be a library, not an environment",
                code="no_environment",
            )
        return wanted
    best = sorted(modules, key=lambda dotted: (dotted.count("."), dotted))
    if len(best) > 1 and best[0].count(".") == best[1].count("."):
        raise UsageError(
            f"`{name}` defines `{LOADER}` in {', '.join(best)}",
            hint=f"name one: `--entry-point {best[0]}:{LOADER}`",
        )
    return best[0]


def _sources(folder: Path) -> list[Path]:
    found = []
    for path in sorted(folder.rglob("*.py")):
        parts = path.relative_to(folder).parts
        if not _SKIPPED & set(parts) and not any(part.startswith(("test_", ".")) for part in parts):
            found.append(path)
    return found


def _dotted(folder: Path, path: Path) -> str:
    parts = list(path.relative_to(folder).with_suffix("").parts)
    if parts[0] == "src":
        parts = parts[1:]
    if parts[-1] == "__init__":
        parts = parts[:-1]
    return ".".join(parts)


def _defines_loader(path: Path) -> bool:
    tree = _tree(path)
    names = {node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}
    imported = {
        alias.asname or alias.name
        for node in tree.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    return LOADER in names | imported


def _tree(path: Path) -> ast.Module:
    try:
        return ast.parse(path.read_text(encoding="utf-8"))
    except (SyntaxError, UnicodeDecodeError, ValueError):
        return ast.Module(body=[], type_ignores=[])


def _source(folder: Path, module: str) -> list[ast.Module]:
    """Return the parsed sources of a module, or of the whole package that it belongs to."""
    top = module.partition(".")[0]
    for base in (folder, folder / "src"):
        if (base / f"{top}.py").is_file():
            return [_tree(base / f"{top}.py")]
        if (base / top).is_dir():
            return [_tree(path) for path in _sources(base / top)]
    raise NotFound(f"there is no module `{module}` in `{folder}`", code="no_environment")


def read_kind(trees: list[ast.Module]) -> tuple[Library, int | None]:
    """Return which library an environment is written for, and which generation of the classic API."""
    imported = {name for tree in trees for name in _imported(tree)}
    if any(name == "verifiers.v1" or name.startswith("verifiers.v1.") for name in imported):
        return "verifiers.v1", None
    if any(name.partition(".")[0] == "verifiers" for name in imported):
        return "verifiers", _generation(trees)
    if any(name.partition(".")[0] == "wander" for name in imported):
        return "wander", None
    raise UsageError(
        "the package imports neither `wander` nor `verifiers`",
        hint="only environments of these two libraries can be imported",
    )


def _imported(tree: ast.Module) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return found


def _generation(trees: list[ast.Module]) -> int:
    """Tell the generation by what it overrides and names; 2 where nothing tells."""
    nodes = [node for tree in trees for node in ast.walk(tree)]
    functions = [node for node in nodes if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    if any(_of_the_first(function) for function in functions):
        return 1
    names = {node.attr for node in nodes if isinstance(node, ast.Attribute)}
    names |= {node.id for node in nodes if isinstance(node, ast.Name)}
    return 3 if names & _LATER_NAMES else 2


def _asks_for_models(project: dict[str, Any]) -> bool:
    """Tell whether a package asks for 0.1.11 or later, where messages are models."""
    requirement = requirement_of([str(each) for each in project.get("dependencies", [])])
    bounds = [] if requirement is None else [each for each in requirement.specifier if each.operator != "!="]
    lowest = [
        Version(each.version.removesuffix(".*")) for each in bounds if not each.operator.startswith("<")
    ]
    return any(bound >= Version("0.1.11.dev0") for bound in lowest)


def _of_the_first(function: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    arguments = [each.arg for each in function.args.args]
    if function.name == "is_completed":
        return "messages" in arguments
    if function.name == "rollout":
        return "prompt" in arguments and "input" not in arguments
    returned = [node.value for node in ast.walk(function) if isinstance(node, ast.Return)]
    pairs = any(isinstance(value, ast.Tuple) and len(value.elts) == 2 for value in returned)
    return function.name == "env_response" and pairs


def _complete(adopted: Adoption, path: Path, text: str, project: dict[str, Any], origin: str) -> None:
    """Write what the project lacks: build system, entry point, dependency, README, the note of origin."""
    if "build-system" not in tomllib.loads(text):
        text += '\n[build-system]\nrequires = ["hatchling>=1.27"]\nbuild-backend = "hatchling.build"\n'
        adopted.written.append("`[build-system]`")
    if not project.get("entry-points", {}).get(GROUP):
        name = canonicalize_name(adopted.name)
        text += f'\n[project.entry-points."{GROUP}"]\n{name} = "{adopted.target}"\n'
        adopted.written.append("the entry point")
    needed = "wander-sdk" if adopted.library == "wander" else "verifiers"
    if needed not in _dependencies(project):
        text = _with_dependency(text, needed, given="dependencies" in project)
        adopted.written.append(f"the dependency on `{needed}`")
    readme = _readme(adopted.folder, project)
    if readme is None:
        readme = adopted.folder / "README.md"
        readme.write_text(f"# {adopted.name}\n\n{project.get('description', '')}\n", encoding="utf-8")
        adopted.written.append("`README.md`")
    if not project.get("readme"):
        text = _in_project(text, f'readme = "{readme.name}"')
    note = f"Imported into Wander from `{origin}`; the code is as its author published it."
    said = readme.read_text(encoding="utf-8", errors="replace")
    if note not in said:
        readme.write_text(f"{said.rstrip()}\n\n---\n\n{note}\n", encoding="utf-8")
        adopted.written.append("the note of origin")
    path.write_text(text, encoding="utf-8")


def _dependencies(project: dict[str, Any]) -> set[str]:
    names: set[str] = set()
    for each in project.get("dependencies", []):
        try:
            names.add(canonicalize_name(Requirement(str(each)).name))
        except InvalidRequirement:
            continue
    return names


def _with_dependency(text: str, name: str, *, given: bool) -> str:
    if not given:
        return _in_project(text, f'dependencies = ["{name}"]')
    return re.sub(r"(?m)^(\s*dependencies\s*=\s*\[)", rf'\g<1>"{name}", ', text, count=1)


def _in_project(text: str, line: str) -> str:
    return re.sub(r"(?m)^\[project\][^\n]*$", lambda found: f"{found[0]}\n{line}", text, count=1)


def _readme(folder: Path, project: dict[str, Any]) -> Path | None:
    """Return the README that a project has; one in a table, or in another form, too."""
    stated = project.get("readme")
    stated = stated.get("file") if isinstance(stated, dict) else stated
    names = [stated] if isinstance(stated, str) else ["README.md", "README.rst", "README.txt", "README"]
    return next((folder / name for name in names if (folder / name).is_file()), None)
