"""Which generation of the API an environment was written for, told from what it overrides.

The first one (0.1.3 to 0.1.7): `env_response` returns `(messages, state)`, `is_completed(messages, state)`,
`rollout(client, model, prompt, ...)` returns `(completion, state)`. The later ones return messages alone and
pass the row as `input`. A class may mix them, so each hook is looked at by itself.
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
from wander.wire.gate import read_project

from wander_compat.verifiers.messages.conversion import Form

_REQUIREMENT = re.compile(r"\s*verifiers\s*(?:\[[^\]]*\])?\s*\(?\s*([^;)]*)", re.IGNORECASE)
_BOUND = re.compile(r"(?:>=|==|~=|>|===)\s*(\d+(?:\.\d+)*)")
Version = tuple[int, ...]
OURS = "wander_compat."
MODELS_SINCE = (0, 1, 11)


@dataclass(frozen=True)
class Generation:
    """What a class of environments expects of each hook."""

    tuple_response: bool
    """`env_response` returns `(messages, state)`, and wants that of its base class too."""
    messages_first: bool
    """`is_completed` takes `(messages, state)`."""
    own_rollout: str | None
    """`columns` for an overridden `rollout(client, model, prompt, ...)`, `input` for the later form."""
    own_completion: bool
    """`is_completed` is overridden at all."""
    declared: Version | None
    """The lowest release that the package asks for."""
    text_prompts: bool = False
    """Rows whose prompt is text are asked of a chat model, which no release before 0.1.11 does."""

    @property
    def first(self) -> bool:
        """Whether anything is of the first generation; its keys of the state are then kept up to date."""
        return self.tuple_response or self.messages_first or self.own_rollout == "columns"

    @property
    def form(self) -> Form:
        """What its messages are: models where the package asks for a release that has them."""
        modern = self.text_prompts or (self.declared is not None and self.declared >= MODELS_SINCE)
        return "model" if modern and not self.first else "dict"


@lru_cache(maxsize=256)
def generation_of(cls: type, made_in: str = "") -> Generation:
    """Inspect a class once; `made_in` is the module that makes the environment, often the package itself."""
    modules = {made_in, *(each.__module__ for each in cls.__mro__)} - {"", "abc", "builtins", "typing"}
    modules = {each for each in modules if not each.startswith(OURS)}
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
    """Return the nearest module on the stack that is not ours: the package that makes an environment."""
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
    """Return the function that a package put in the place of ours, None where ours is in force."""
    for each in cls.__mro__:
        if name in vars(each):
            function = inspect.unwrap(getattr(vars(each)[name], "__func__", vars(each)[name]))
            return None if each.__module__.startswith(OURS) else function
    return None


def _returns_pair(function: Callable[..., Any]) -> bool:
    """Tell whether a function's annotation or one of its own `return`s is a pair."""
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
    """Return the nodes of a function's body, those of the functions inside it left out."""
    found: list[ast.AST] = []
    waiting = list(ast.iter_child_nodes(function))
    while waiting:
        node = waiting.pop()
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda | ast.ClassDef):
            found.append(node)
            waiting += ast.iter_child_nodes(node)
    return found


def _positional(function: Callable[..., Any]) -> list[str]:
    """Return the names of a method's positional parameters without a default, `self` left out."""
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    parameters = [each for each in inspect.signature(function).parameters.values() if each.kind in kinds]
    if parameters and parameters[0].name == "self":
        parameters = parameters[1:]
    return [each.name for each in parameters if each.default is each.empty]


@lru_cache(maxsize=256)
def read_declared_release(module: str) -> Version | None:
    """Return the lowest release that the package of a module asks for; None when it says nothing.

    Packages are tested with the newest release of their day and name it as the lower bound, so this is the
    best sign there is of what a package expects where releases differ.
    """
    matches = [_REQUIREMENT.match(text) for text in _requirements(module.partition(".")[0])]
    bounds = [bound for matched in matches if matched is not None for bound in _BOUND.findall(matched[1])]
    return max((tuple(map(int, bound.split("."))) for bound in bounds), default=None)


def _requirements(top: str) -> list[str]:
    """Return the dependencies of the project around a module, or of the distribution that brought it."""
    project = _project_of(top)
    if project is not None:
        return project
    return [each for one in distributions_of(top) for each in one.requires or []]


@lru_cache(maxsize=256)
def distributions_of(top: str) -> list[Distribution]:
    """Return the distributions that brought a top-level module.

    `importlib.metadata.packages_distributions` parses the metadata of everything that is installed for it.
    """
    found = []
    for one in distributions():
        record = one.read_text("RECORD") or ""
        listed = record.startswith((f"{top}/", f"{top}.py,")) or any(
            start in record for start in (f"\n{top}/", f"\n{top}.py,")
        )
        if listed or top in (one.read_text("top_level.txt") or "").split():
            found.append(one)
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
            project = read_project(folder)["project"]
        except (OSError, ValueError, KeyError):
            continue
        if str(project.get("name", "")).replace("-", "_").lower() == top.lower() or "src" in origin:
            return [str(each) for each in project.get("dependencies", [])]
    return None
