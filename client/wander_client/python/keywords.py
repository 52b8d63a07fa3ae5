"""Keywords that a call does not take, answered with the near ones that it takes."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from wander.types import SamplingArgs

from wander_client.errors import UsageError
from wander_client.terminal.suggestions import did_you_mean

KEYS = {"n": "num_examples", "url": "hub"}
"""The settings of keywords that have another name in Python."""
KEYWORDS = {key: keyword for keyword, key in KEYS.items()}
"""The keywords of settings that have another name in Python."""


class UnknownKeyword(UsageError, TypeError):
    """A call has no such keyword."""


def require_keywords(call: Callable[..., Any], given: Mapping[str, Any]) -> None:
    """Raise `UnknownKeyword`, with the near name, for what a call does not take."""
    parameters = inspect.signature(call).parameters
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()):
        return
    for name in given:
        if name not in parameters:
            of = "" if call.__name__ == "__init__" else f" of `{call.__name__}`"
            known = ", ".join(f"`{keyword}`" for keyword in _keywords(call))
            hint = find_near(call, name) or f"it takes {known}"
            raise UnknownKeyword(f"there is no argument `{name}`{of}", hint=hint)


def find_near(call: Callable[..., Any], name: str) -> str | None:
    """Return the hint with the keyword of a call that a wrong one stands for."""
    known = _keywords(call)
    if name in SamplingArgs.model_fields and "sampling" in known:
        return f'write `sampling={{"{name}": ...}}`'
    return did_you_mean(KEYWORDS.get(name, name), known)


def _keywords(call: Callable[..., Any]) -> list[str]:
    parameters = inspect.signature(call).parameters.values()
    named = (inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return [
        parameter.name for parameter in parameters if parameter.kind in named and parameter.name != "self"
    ]
