"""Metrics that a kind of environment reports in addition to its author's reward functions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from wander.rubrics import Rubric


def report_metric(rubric: Rubric, function: Callable[..., Any]) -> None:
    """Add a metric to a rubric, unless it already has a function with this name.

    Environments may share a rubric, and the author's own function takes precedence. The functions read only
    what is stored with a rollout, so a stored rollout can be scored again.
    """
    if all(info.name != function.__name__ for info in rubric.describe()):
        rubric.add_metric(function)
