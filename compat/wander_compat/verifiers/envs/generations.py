"""Detects the generation of the API that an environment was written for, from the methods that it overrides.

In the first generation (0.1.3 to 0.1.7), `env_response` returns `(messages, state)`, `is_completed` takes
`(messages, state)`, and `rollout(client, model, prompt, ...)` returns `(completion, state)`. In the later
ones, `env_response` returns only messages, and the row is passed as `input`. A class may mix them, so each
hook is inspected separately.
"""

from __future__ import annotations

import ast
import inspect
import re
import sys
import textwrap
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from importlib.metadata import Distribution, distributions
from pathlib import Path
from typing import Any

from wander.system.python_parser import parse_alone
from wander.wire.untrusted_text import read_project

from wander_compat.verifiers.messages.conversion import Form

_REQUIREMENT = re.compile(r"\s*verifiers\s*(?:\[[^\]]*\])?\s*\(?\s*([^;)]*)", re.IGNORECASE)
_BOUND = re.compile(r"(?:>=|==|~=|>|===)\s*(\d+(?:\.\d+)*)")
Version = tuple[int, ...]
OURS = "wander_compat."
MODELS_SINCE = (0, 1, 11)


@dataclass(frozen=True)
class Generation:
    """The expectations of a class of environments for each hook."""

    tuple_response: bool
    """Whether `env_response` returns `(messages, state)`, and also expects this of its base class."""
    messages_first: bool
    """Whether `is_completed` takes `(messages, state)`."""
    own_rollout: str | None
    """Kind of overridden `rollout`: `columns` for `(client, model, prompt, ...)`, `input` for the later
    one."""
    own_completion: bool
    """Whether `is_completed` is overridden."""
    declared: Version | None
    """Lowest release that the package requires."""
    text_prompts: bool = False
    """Whether rows with text prompts go to a chat model, which no release before 0.1.11 does."""

    @property
    def first(self) -> bool:
        """Whether anything belongs to the first generation. Its state keys are then kept up to date."""
        return self.tuple_response or self.messages_first or self.own_rollout == "columns"

    @property
    def form(self) -> Form:
        """Format of its messages: models if the package requires a release that has them."""
        modern = self.text_prompts or (self.declared is not None and self.declared >= MODELS_SINCE)
        return "model" if modern and not self.first else "dict"


@lru_cache(maxsize=256)
def generation_of(cls: type, made_in: str = "") -> Generation:
    """Inspect a class once.

    `made_in` is the module that creates the environment, often the package itself.
    """
    modules = {made_in, *(base.__module__ for base in cls.__mro__)} - {"", "abc", "builtins", "typing"}
    modules = {module for module in modules if not module.startswith(OURS)}
    response = _override(cls, "env_response")
    completed = _override(cls, "is_completed")
    rollout = _override(cls, "rollout")
    names = [] if completed is None else _positional(completed)
    by_columns = rollout is not None and {"prompt", "input"} & set(_positional(rollout)) == {"prompt"}
    return Generation(
        tuple_response=response is not None and _returns_pair(response),
        messages_first=completed is not None and (names[:1] == ["messages"] or len(names) > 1),
        own_rollout=None if rollout is None else "columns" if by_columns else "input",
        own_completion=completed is not None,
        declared=max(filter(None, map(read_declared_release, modules)), default=None),
    )


def find_calling_module() -> str:
    """Return the nearest module on the stack outside of this package, which creates the environment."""
    frame = sys._getframe(1)
    while frame is not None:
        name = str(frame.f_globals.get("__name__", ""))
        if not name.startswith((OURS, "abc")):
            return name
        if frame.f_back is None:
            break
        frame = frame.f_back
    return ""


def _override(cls: type, name: str) -> Callable[..., Any] | None:
    """Return a package's override of a method, or None."""
    for base in cls.__mro__:
        if name in vars(base):
            function = inspect.unwrap(getattr(vars(base)[name], "__func__", vars(base)[name]))
            return None if base.__module__.startswith(OURS) else function
    return None


def _returns_pair(function: Callable[..., Any]) -> bool:
    """Return whether a function's annotation or one of its own `return` statements is a pair."""
    annotation = inspect.signature(function).return_annotation
    shown = annotation if isinstance(annotation, str) else getattr(annotation, "__name__", str(annotation))
    if shown.lower().removeprefix("typing.").startswith("tuple"):
        return True
    try:
        tree = parse_alone(lambda: ast.parse(textwrap.dedent(inspect.getsource(function))))
    except (OSError, TypeError, SyntaxError):
        return False
    returned = [node.value for node in _own_nodes(tree.body[0]) if isinstance(node, ast.Return)]
    return any(isinstance(value, ast.Tuple) and len(value.elts) == 2 for value in returned)


def _own_nodes(function: ast.AST) -> list[ast.AST]:
    """Return the nodes of a function's body, without those of nested functions."""
    nodes: list[ast.AST] = []
    waiting = list(ast.iter_child_nodes(function))
    while waiting:
        node = waiting.pop()
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda | ast.ClassDef):
            nodes.append(node)
            waiting += ast.iter_child_nodes(node)
    return nodes


def _positional(function: Callable[..., Any]) -> list[str]:
    """Return the names of a method's positional parameters without a default, except for `self`."""
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    parameters = [
        parameter for parameter in inspect.signature(function).parameters.values() if parameter.kind in kinds
    ]
    if parameters and parameters[0].name == "self":
        parameters = parameters[1:]
    return [parameter.name for parameter in parameters if parameter.default is parameter.empty]


@lru_cache(maxsize=256)
def read_declared_release(module: str) -> Version | None:
    """Return the lowest release that the package of a module requires, or None if it does not specify one.

    Packages are tested with the newest release of their time, and specify it as the lower bound. Where
    releases differ, this is the best indication of what a package expects.
    """
    matches = [_REQUIREMENT.match(text) for text in _requirements(module.partition(".")[0])]
    bounds = [bound for matched in matches if matched is not None for bound in _BOUND.findall(matched[1])]
    return max((tuple(map(int, bound.split("."))) for bound in bounds), default=None)


def _requirements(top: str) -> list[str]:
    """Return the dependencies of the project around a module, or of the distribution that it belongs to."""
    project = _project_of(top)
    if project is not None:
        return project
    return [requirement for package in distributions_of(top) for requirement in package.requires or []]


@lru_cache(maxsize=256)
def distributions_of(top: str) -> list[Distribution]:
    """Return the distributions that a top-level module belongs to.

    `importlib.metadata.packages_distributions` would parse the metadata of all installed distributions.
    """
    matching = []
    for package in distributions():
        record = package.read_text("RECORD") or ""
        listed = record.startswith((f"{top}/", f"{top}.py,")) or any(
            start in record for start in (f"\n{top}/", f"\n{top}.py,")
        )
        if listed or top in (package.read_text("top_level.txt") or "").split():
            matching.append(package)
    return matching


def _project_of(top: str) -> list[str] | None:
    """Return the dependencies in the `pyproject.toml` next to a module, or up to two folders above it.

    Some wheels contain this file. It is then in `site-packages`, and counts only if it belongs to the module.
    """
    origin = getattr(sys.modules.get(top), "__file__", None)
    if origin is None:
        return None
    for folder in list(Path(origin).parents)[:3]:
        try:
            project = read_project(folder)["project"]
        except (OSError, ValueError, KeyError):
            continue
        if str(project.get("name", "")).replace("-", "_").lower() == top.lower() or "src" in origin:
            return [str(requirement) for requirement in project.get("dependencies", [])]
    return None
