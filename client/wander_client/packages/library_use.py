"""Detect the library that a package is written for from its source code, without running it."""

from __future__ import annotations

import ast
import re
import zipfile
from collections.abc import Iterable
from pathlib import Path
from typing import Literal

from wander.system.plain_files import read_plain_file
from wander.system.python_parser import parse_alone

Library = Literal["wander", "verifiers", "verifiers.v1"]
LOADER = "load_environment"
TASKSETS = "verifiers.v1"

_EARLY_NAMES = {"Taskset", "TasksetConfig", "Harness", "HarnessConfig", "Toolset", "ToolsetConfig"}
"""Top-level names of the library in 0.1.14 that belong to `verifiers.v1` and not to the classic API."""
_ONLY_IN: dict[str, frozenset[str]] = {
    "0.1": frozenset(
        {
            *("CLIHarness", "Config", "HarborTaskset", "MCPTool", "MCPToolConfig", "MiniSWEAgent"),
            *("OpenCode", "Pi", "RLM", "SandboxConfig", "add_advantage", "add_metric", "add_reward"),
            *("advantage", "build_signals", "cleanup", "collect_signals", "score_group", "score_rollout"),
            *("setup", "teardown", "update"),
        }
    ),
    "0.2": frozenset(
        {
            *("EnvServerConfig", "Environment", "GenerationSpan", "JudgeSamplingConfig", "Rollout"),
            *("RolloutRetryConfig", "StrictBaseModel", "TimeoutConfig", "User", "UserConfig"),
            *("UserError", "group_reward"),
        }
    ),
    "0.3": frozenset({"ACP", "KeptTokens", "LegacyEnvConfig"}),
}
"""Names of `verifiers.v1` that only the releases of one minor version have."""

_TASK = re.compile(r"(.*\.)?Task(set)?(\[.*\])?", re.DOTALL)
_LATER_NAMES = {"UserMessage", "AssistantMessage", "ToolMessage", "tool_defs", "ClientConfig"}
LARGEST_SOURCE = 2_000_000
"""Maximum size of a source file to read, in bytes."""


def parse_source(text: bytes | str) -> ast.Module:
    """Return the syntax tree of a module, or an empty tree if the module cannot be parsed."""
    try:
        return parse_alone(lambda: ast.parse(text))
    except (SyntaxError, ValueError, RecursionError, MemoryError):  # the last two for deep nesting
        return ast.Module(body=[], type_ignores=[])


def _write(node: ast.expr) -> str:
    """Return an expression as text, or an empty text if it is nested too deeply."""
    try:
        return ast.unparse(node)
    except RecursionError:
        return ""


def read_source(path: Path) -> ast.Module:
    """Return the syntax tree of a file, or an empty tree if it is unreadable, invalid or too large."""
    try:
        return parse_source(read_plain_file(path, LARGEST_SOURCE))
    except OSError:
        return parse_source(b"")


def sources_of_wheel(wheel: Path) -> list[ast.Module]:
    """Return the syntax trees of the sources in a wheel."""
    with zipfile.ZipFile(wheel) as archive:
        return [
            parse_source(archive.read(item))
            for item in archive.infolist()
            if item.filename.endswith(".py") and item.file_size <= LARGEST_SOURCE
        ]


def library_of(trees: Iterable[ast.Module]) -> Library | None:
    """Return the library that the sources are written for, or None if they use none of the three.

    A package with a loader of the classic API is classic, even if it also has a task set.
    """
    trees = list(trees)
    imported = {name for tree in trees for name in imports_of(tree)}
    tasksets = any(_is_within(name, TASKSETS) for name in imported)
    classic = any(_is_within(name, "verifiers") and not _is_within(name, TASKSETS) for name in imported)
    if tasksets and not (classic and any(_loads_classic(tree) for tree in trees)):
        return "verifiers.v1"
    if any(_EARLY_NAMES & names_used(tree, "verifiers") for tree in trees):
        return "verifiers.v1"
    if classic:
        return "verifiers"
    if any(_is_within(name, "wander") for name in imported):
        return "wander"
    # A source that contains the module's name as a string may import it dynamically.
    by_name = any(
        defines_loader(tree)
        and any(isinstance(node, ast.Constant) and node.value == "verifiers" for node in ast.walk(tree))
        for tree in trees
    )
    return "verifiers" if by_name else None


def _loads_classic(tree: ast.Module) -> bool:
    """Return whether a source has a loader and does not import task sets at the top level."""
    imports: list[ast.stmt] = [node for node in tree.body if isinstance(node, ast.Import | ast.ImportFrom)]
    top = ast.Module(body=imports, type_ignores=[])
    return defines_loader(tree) and not any(_is_within(name, TASKSETS) for name in imports_of(top))


def minor_of_tasksets(trees: Iterable[ast.Module]) -> str | None:
    """Return the minor release of `verifiers.v1` whose names the sources use, if later ones lack them."""
    trees = list(trees)
    imported = {name for tree in trees for name in imports_of(tree)}
    used = {name for tree in trees for module in ("verifiers", TASKSETS) for name in names_used(tree, module)}
    functions = {name for tree in trees for name in bound_names(tree) if imports_of(tree)}
    early = used & _EARLY_NAMES and {"load_taskset", "load_harness"} & functions
    if early or any(_is_within(name, f"{TASKSETS}.utils.judge_utils") for name in imported):
        return "0.1"
    if any(_sets_on_class(tree) for tree in trees):
        return "0.2"
    return next((minor for minor, names in _ONLY_IN.items() if used & names), None)


def _sets_on_class(tree: ast.Module) -> bool:
    """Return whether a task sets its tools or its user as class attributes, which only 0.2 supports."""
    classes = [node for node in tree.body if isinstance(node, ast.ClassDef)]
    return any(
        {"tools", "user"} & set(map(_write, _targets(statement)))
        for node in classes
        if any(_TASK.fullmatch(_write(base)) for base in node.bases)
        for statement in node.body
    )


def _targets(statement: ast.stmt) -> list[ast.expr]:
    if isinstance(statement, ast.Assign):
        return statement.targets
    return [statement.target] if isinstance(statement, ast.AnnAssign) and statement.value else []


def names_used(tree: ast.Module, module: str) -> set[str]:
    """Return the names that a source uses from a module: imported names and attributes of the module."""
    names, aliases = set(), set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            aliases |= {alias.asname or alias.name for alias in node.names if alias.name == module}
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            whole = {f"{node.module}.{alias.name}": alias for alias in node.names}
            aliases |= {alias.asname or alias.name for name, alias in whole.items() if name == module}
            names |= {alias.name for alias in node.names if node.module == module}
    attributes = [node for node in ast.walk(tree) if isinstance(node, ast.Attribute)] if aliases else []
    plain = [attribute for attribute in attributes if isinstance(attribute.value, ast.Name | ast.Attribute)]
    return names | {attribute.attr for attribute in plain if _write(attribute.value) in aliases}


def _is_within(name: str, module: str) -> bool:
    return name == module or name.startswith(f"{module}.")


def imports_of(tree: ast.Module) -> set[str]:
    """Return the dotted names that a module imports."""
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return names


def bound_names(tree: ast.Module) -> set[str]:
    """Return the names that a module binds at the top level: functions, classes, imports and assignments."""
    names: set[str] = set()
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.ImportFrom):
            names |= {alias.asname or alias.name for alias in node.names}
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names |= {target.id for target in targets if isinstance(target, ast.Name)}
    return names


def defines_loader(tree: ast.Module) -> bool:
    """Return whether a source has a `load_environment` at the top level, defined, imported or assigned."""
    return LOADER in bound_names(tree)


def tasksets_of(trees: Iterable[ast.Module]) -> set[str]:
    """Return the names of the classes that derive from `Taskset`."""
    return {
        node.name
        for tree in trees
        for node in tree.body
        if isinstance(node, ast.ClassDef)
        # `Taskset`, `vf.Taskset` or `vf.Taskset[Config]`.
        and any(re.fullmatch(r"(.*\.)?Taskset(\[.*\])?", _write(base), re.DOTALL) for base in node.bases)
    }


def list_exports(tree: ast.Module) -> list[str]:
    """Return the names in a module's `__all__`."""
    for node in tree.body:
        if isinstance(node, ast.Assign) and "__all__" in map(_write, node.targets):
            values = getattr(node.value, "elts", [])
            return [str(value.value) for value in values if isinstance(value, ast.Constant)]
    return []


def generation_of(trees: Iterable[ast.Module]) -> int:
    """Return the generation of the classic API, from the methods and names in the sources.

    The default is 2.
    """
    nodes = [node for tree in trees for node in ast.walk(tree)]
    functions = (node for node in nodes if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))
    if any(_is_first_generation(function) for function in functions):
        return 1
    names = {node.attr for node in nodes if isinstance(node, ast.Attribute)}
    names |= {node.id for node in nodes if isinstance(node, ast.Name)}
    return 3 if names & _LATER_NAMES else 2


def _is_first_generation(function: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    arguments = [argument.arg for argument in function.args.args]
    if function.name == "is_completed":
        return "messages" in arguments
    if function.name == "rollout":
        return "prompt" in arguments and "input" not in arguments
    returned = [node.value for node in ast.walk(function) if isinstance(node, ast.Return)]
    pairs = any(isinstance(value, ast.Tuple) and len(value.elts) == 2 for value in returned)
    return function.name == "env_response" and pairs
