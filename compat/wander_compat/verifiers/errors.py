"""Errors of the classic API. Raised in a rollout, they end it and are stored in `state["error"]`.

Error
|- ModelError
|  '- InvalidModelResponseError
|     '- EmptyModelResponseError
|- OverlongPromptError            ends the rollout as truncated, not as failed
|- ToolError
|  |- ToolParseError
|  '- ToolCallError
'- InfraError
   |- TunnelError
   '- SandboxError
      '- BrowserSandboxError
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


class Error(Exception):
    """Base of the errors that can end a rollout."""


class ModelError(Error):
    """The model or its endpoint failed."""


class InvalidModelResponseError(ModelError):
    """The endpoint's response is not a completion."""


class EmptyModelResponseError(InvalidModelResponseError):
    """The completion contains neither text nor a tool call."""


class OverlongPromptError(Error):
    """The prompt is too long for the model."""


class ToolError(Error):
    """A tool call failed, and the environment ends the rollout for that."""


class ToolParseError(ToolError):
    """The arguments of a tool call cannot be parsed."""


class ToolCallError(ToolError):
    """The tool raised an exception."""


class InfraError(Error):
    """Infrastructure around the environment failed."""


class TunnelError(InfraError):
    """The tunnel to a remote agent failed."""


class SandboxError(InfraError):
    """The sandbox failed."""


class BrowserSandboxError(SandboxError):
    """The browser's sandbox failed."""


class MissingKeyError(ValueError):
    """The environment needs variables that are not set."""

    def __init__(self, keys: list[str]) -> None:
        self.keys = keys
        self.hint = f"set them and add `{' '.join(f'--pass-env {key}' for key in keys)}`"
        names = ", ".join(f"`{key}`" for key in keys)
        super().__init__(f"variables that the environment needs are not set: {names}")


def error_chain(error: BaseException | None) -> list[BaseException]:
    """Return an exception and its causes, outermost first."""
    chain: list[BaseException] = []
    while error is not None and error not in chain:
        chain.append(error)
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    return chain


def error_info(error: BaseException) -> dict[str, str]:
    """Return the fields of an exception for an output record."""
    chain = ErrorChain(error)
    return {
        "error": type(error).__name__,
        "message": str(error),
        "error_chain_repr": repr(chain),
        "error_chain_str": str(chain),
    }


def error_type_name(error: Any) -> str | None:
    """Return the class name of an error, given as an exception or a record."""
    if error is None:
        return None
    if isinstance(error, Mapping):
        name = error.get("error")
        return None if name is None else str(name)
    return type(error).__name__


class ErrorChain:
    """An exception with its causes. `in` checks whether any is of a class, and `str` joins their names."""

    def __init__(self, error: BaseException) -> None:
        self.root_error = error
        self.chain = error_chain(error)

    def __contains__(self, kind: type[BaseException]) -> bool:
        return any(isinstance(cause, kind) for cause in self.chain)

    def __str__(self) -> str:
        return " -> ".join(type(cause).__name__ for cause in self.chain)

    def __repr__(self) -> str:
        return " -> ".join(repr(cause) for cause in self.chain)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ErrorChain) and str(self) == str(other)

    def __hash__(self) -> int:
        return hash(str(self))


def vf_error_chain(error: BaseException) -> list[BaseException]:
    """Return those of an exception and its causes that are `Error`s."""
    return [cause for cause in error_chain(error) if isinstance(cause, Error)]
