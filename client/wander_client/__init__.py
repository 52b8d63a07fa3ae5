"""The `wander` command and the hub's client."""

from __future__ import annotations

from typing import TYPE_CHECKING

from wander.lazy import lazy_names

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
    from wander_client.settings import Settings, load_settings

__version__ = "0.1.0"

__all__ = [
    "ClientError",
    "HubApi",
    "Interrupted",
    "LoginRequired",
    "NotFound",
    "Settings",
    "Unavailable",
    "UsageError",
    "load_settings",
    "open_hub",
]

__getattr__, __dir__ = lazy_names(__name__)
