"""Metrics that a kind of environment reports beside its author's reward functions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from wander.rubrics import Rubric


def report_metric(rubric: Rubric, function: Callable[..., Any]) -> None:
    """Add a metric to a rubric, unless it already has a function of that name.

    Environments may share a rubric, and an author's own function of the name wins. The functions read only
    what is stored with a rollout, so a stored rollout can be scored again.
    """
    if all(each.name != function.__name__ for each in rubric.describe()):
        rubric.add_metric(function)
