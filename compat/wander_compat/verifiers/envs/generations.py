"""Which generation of the API an environment was written for, told from what it overrides.

The first one (0.1.3 to 0.1.7): `env_response` returns `(messages, state)`, `is_completed(messages, state)`,
`rollout(client, model, prompt, ...)` returns `(completion, state)`. The later ones return messages alone and
pass the row as `input`. A class may mix them, so each hook is looked at by itself.
"""

from __future__ import annotations

import ast
import inspect
import sys
import textwrap
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from wander_compat.verifiers.envs.declared import Version, declared_release
from wander_compat.verifiers.messages.conversion import Form

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
    return Generation(
        tuple_response=response is not None and _returns_pair(response),
        messages_first=completed is not None and _takes_messages(completed),
        own_rollout=None if rollout is None else _rollout_form(rollout),
        own_completion=completed is not None,
        declared=max(filter(None, map(declared_release, modules)), default=None),
    )


def calling_module() -> str:
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
        tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
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


def _takes_messages(function: Callable[..., Any]) -> bool:
    names = _positional(function)
    return names[:1] == ["messages"] or len(names) > 1


def _rollout_form(function: Callable[..., Any]) -> str:
    names = _positional(function)
    return "columns" if "prompt" in names and "input" not in names else "input"


def _positional(function: Callable[..., Any]) -> list[str]:
    """Return the names of a method's positional parameters without a default, `self` left out."""
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    parameters = [each for each in inspect.signature(function).parameters.values() if each.kind in kinds]
    if parameters and parameters[0].name == "self":
        parameters = parameters[1:]
    return [each.name for each in parameters if each.default is each.empty]
