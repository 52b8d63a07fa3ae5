"""Maps errors of the library to boundaries, by the names of their classes in any release."""

from __future__ import annotations

from wander.errors import (
    BoundaryError,
    ContextOverflow,
    EnvironmentFault,
    ModelError,
    SandboxError,
    ToolError,
)

_NAMES: dict[type[BoundaryError], tuple[str, ...]] = {
    ModelError: (
        *("ModelError", "InvalidModelResponseError", "EmptyModelResponseError"),
        "ProviderError",
    ),
    ContextOverflow: ("OverlongPromptError",),
    ToolError: ("ToolError", "ToolParseError", "ToolCallError", "ToolsetError"),
    SandboxError: (
        *("InfraError", "TunnelError", "SandboxError", "BrowserSandboxError"),
        *("HarnessError", "InterceptionError"),
    ),
}
_KINDS = {name: kind for kind, names in _NAMES.items() for name in names}


def find_boundary(name: str) -> type[BoundaryError]:
    """Return the boundary error class for an error of the library."""
    return _KINDS.get(name, EnvironmentFault)
