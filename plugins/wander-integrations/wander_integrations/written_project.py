"""Projects of environments that are written for tasks of another format."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from wander.types import portable_json

_PYPROJECT = """\
[build-system]
requires = ["hatchling>=1.27"]
build-backend = "hatchling.build"

[project]
name = {name}
version = "0.1.0"
description = {summary}
readme = "README.md"
requires-python = ">=3.11"
keywords = {keywords}
dependencies = ["wander-sdk>=0.1", "{integrations}>=0.1"]

[project.entry-points."wander.environments"]
{name} = "{module}:load_environment"

[tool.hatch.build]
ignore-vcs = true

[tool.hatch.build.targets.wheel]
packages = ["{module}"]
"""


@dataclass(frozen=True)
class WrittenProject:
    """A project that was written."""

    name: str
    tasks: list[str]
    """Names of the tasks in it."""
    left_out: dict[str, list[str]] = field(default_factory=dict)
    """Tasks that cannot be played, with the reasons."""
    limits: list[str] = field(default_factory=list)
    """Fields that are not honored, although the tasks are played."""


def pyproject_text(
    name: str, summary: str, keywords: Sequence[str], integrations: str = "wander-integrations"
) -> str:
    """Return the `pyproject.toml` of a project. `integrations` may name an extra of this distribution."""
    return _PYPROJECT.format(
        name=portable_json(name),
        module=name.replace("-", "_"),
        summary=portable_json(summary),
        keywords=portable_json(list(keywords)),
        integrations=integrations,
    )
