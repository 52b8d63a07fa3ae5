"""The boundary at which an error of the library broke, by the name of its class in any release."""

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
    """Return our error of the boundary that an error of the library belongs to."""
    return _KINDS.get(name, EnvironmentFault)
