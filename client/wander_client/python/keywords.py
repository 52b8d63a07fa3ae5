"""Errors for unknown keywords, with suggestions."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from wander.types import SamplingArgs

from wander_client.errors import UsageError
from wander_client.terminal.suggestions import did_you_mean

KEYS = {"n": "num_examples", "url": "hub"}
"""Settings of keywords that have another name in Python."""
KEYWORDS = {key: keyword for keyword, key in KEYS.items()}
"""Keywords of settings that have another name in Python."""


class UnknownKeyword(UsageError, TypeError):
    """Raised if a method does not accept a keyword argument."""


def require_keywords(call: Callable[..., Any], given: Mapping[str, Any]) -> None:
    """Raise `UnknownKeyword`, with a suggestion, for keywords that a call does not accept."""
    parameters = inspect.signature(call).parameters
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()):
        return
    for name in given:
        if name not in parameters:
            of = "" if call.__name__ == "__init__" else f" of `{call.__name__}`"
            known = ", ".join(f"`{keyword}`" for keyword in _keywords(call))
            hint = find_near(call, name) or f"it accepts {known}"
            raise UnknownKeyword(f"unknown argument `{name}`{of}", hint=hint)


def find_near(call: Callable[..., Any], name: str) -> str | None:
    """Return a hint with the keyword that was probably meant."""
    known = _keywords(call)
    if name in SamplingArgs.model_fields and "sampling" in known:
        return f'pass `sampling={{"{name}": ...}}`'
    return did_you_mean(KEYWORDS.get(name, name), known)


def _keywords(call: Callable[..., Any]) -> list[str]:
    parameters = inspect.signature(call).parameters.values()
    named = (inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return [
        parameter.name for parameter in parameters if parameter.kind in named and parameter.name != "self"
    ]
