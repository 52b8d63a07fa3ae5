"""Which environments a training run opens, and who opens them."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Any

from wander.handle import EnvironmentHandle
from wander.wire import EnvironmentPin


@dataclass(frozen=True)
class EnvironmentChoice:
    """One environment with its arguments."""

    name: str | None = None
    """`owner/name@version` or a folder; None is the environment that the command names."""
    arguments: dict[str, Any] = field(default_factory=dict)


EnvironmentOpener = Callable[[EnvironmentChoice], AbstractAsyncContextManager[EnvironmentHandle]]
"""Opens an environment on the event loop that will use it, and closes it; it may be asked more than once."""

PinSource = Callable[[EnvironmentChoice], EnvironmentPin]
"""Tells how a manifest names an environment that is open."""
