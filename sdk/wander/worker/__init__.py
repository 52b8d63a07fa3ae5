"""One environment in its own virtual environment and process, and the host's handle to it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from wander.lazy import lazy_names

if TYPE_CHECKING:
    from wander.worker.host.environment import WorkerEnvironment

__all__ = [
    "WorkerEnvironment",
]

__getattr__, __dir__ = lazy_names(__name__)
