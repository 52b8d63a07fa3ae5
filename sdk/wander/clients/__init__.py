"""Clients, which answer an environment's model calls. `Client` is their interface."""

from __future__ import annotations

from typing import TYPE_CHECKING

from wander.lazy import lazy_names

if TYPE_CHECKING:
    from wander.clients.base import Client, ModelRequest, ModelResponse, WrappedClient
    from wander.clients.openai import OpenAIClient
    from wander.clients.rate_limit import CallLimiter
    from wander.clients.replay import ReplayClient
    from wander.clients.scripted import ScriptedClient, scripted_client_from_spec

__all__ = [
    "CallLimiter",
    "Client",
    "ModelRequest",
    "ModelResponse",
    "OpenAIClient",
    "ReplayClient",
    "ScriptedClient",
    "WrappedClient",
    "scripted_client_from_spec",
]

__getattr__, __dir__ = lazy_names(__name__)
