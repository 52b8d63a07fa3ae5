"""Which environments a training run opens, and who opens them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Any

from wander.errors import ConfigError
from wander.handle import EnvironmentHandle
from wander.train.config import GRPOSettings
from wander.wire import EnvironmentPin


@dataclass(frozen=True)
class EnvironmentChoice:
    """One environment with its arguments."""

    name: str | None = None
    """`owner/name@version` or a folder; None is the environment that the command names."""
    arguments: dict[str, Any] = field(default_factory=dict)
    label: str | None = None
    """What it is called in the metrics; None means the name that it gives itself."""
    workers: int | list[str] | None = None
    """Processes that play it here, or addresses of those elsewhere; None leaves that to who opens it."""


EnvironmentOpener = Callable[[EnvironmentChoice], AbstractAsyncContextManager[EnvironmentHandle]]
"""Opens an environment on the event loop that will use it, and closes it; it may be asked more than once."""

PinSource = Callable[[EnvironmentChoice], EnvironmentPin]
"""Tells how a manifest names an environment that is open."""


def choices_of(settings: GRPOSettings) -> list[EnvironmentChoice]:
    """Return the environments that a run trains on: one, or those of `[[environments]]`."""
    if not settings.environments:
        return [EnvironmentChoice(arguments=settings.environment.arguments)]
    return [
        EnvironmentChoice(section.name, section.arguments, section.label, section.workers)
        for section in settings.environments
    ]


def require_distinct(labels: Sequence[str]) -> None:
    """Raise `ConfigError` when two environments of one run are called the same."""
    if twice := next((label for label in labels if labels.count(label) > 1), None):
        raise ConfigError(
            f"two of the environments are called `{twice}`",
            hint="tell them apart: `label` in each of the `[[environments]]`",
        )
