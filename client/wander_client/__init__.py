"""The `wander` command, the hub's client, and the Python API that `import wander` offers with both."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from wander_client.errors import (
        ClientError,
        Interrupted,
        LoginRequired,
        NotFound,
        Unavailable,
        UsageError,
    )
    from wander_client.hub.api import HubApi, open_hub
    from wander_client.python.environment import Examples, LoadedEnvironment, load
    from wander_client.python.hub import Hub
    from wander_client.python.run import Run
    from wander_client.python.training import TrainingRun, new_model, sft, train
    from wander_client.settings import Settings, load_settings

__version__ = "0.1.0"

__all__ = [
    "ClientError",
    "Examples",
    "Hub",
    "HubApi",
    "Interrupted",
    "LoadedEnvironment",
    "LoginRequired",
    "NotFound",
    "Run",
    "Settings",
    "TrainingRun",
    "Unavailable",
    "UsageError",
    "load",
    "load_settings",
    "new_model",
    "open_hub",
    "sft",
    "train",
]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module `{__name__}` has no attribute `{name}`")
    from wander.lazy import lazy_names  # late, so that `wander --help` does not import the SDK

    return lazy_names(__name__)[0](name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
