"""The environments of a training run, and how they are opened."""

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
    """An environment with its arguments."""

    name: str | None = None
    """`owner/name@version` or a folder; None means the environment that the command names."""
    arguments: dict[str, Any] = field(default_factory=dict)
    label: str | None = None
    """Name in the metrics; None means the environment's own name."""
    workers: int | list[str] | None = None
    """Number of local worker processes, or addresses of remote workers; None leaves the choice to the
    opener."""


EnvironmentOpener = Callable[[EnvironmentChoice], AbstractAsyncContextManager[EnvironmentHandle]]
"""Function that opens an environment on the event loop that uses it, and closes it; it may be called several
times."""

PinSource = Callable[[EnvironmentChoice], EnvironmentPin]
"""Function that returns the manifest's description of an open environment."""


def choices_of(settings: GRPOSettings) -> list[EnvironmentChoice]:
    """Return the environments that a run trains on: a single one, or those in `[[environments]]`."""
    if not settings.environments:
        return [EnvironmentChoice(arguments=settings.environment.arguments)]
    return [
        EnvironmentChoice(section.name, section.arguments, section.label, section.workers)
        for section in settings.environments
    ]


def require_distinct(labels: Sequence[str]) -> None:
    """Raise `ConfigError` if two environments of a run have the same label."""
    if twice := next((label for label in labels if labels.count(label) > 1), None):
        raise ConfigError(
            f"two of the environments are called `{twice}`",
            hint="set a different `label` in each of the `[[environments]]`",
        )
