"""Rubrics, which turn a finished rollout into a reward and metrics."""

from __future__ import annotations

from typing import TYPE_CHECKING

from wander.lazy import lazy_names
from wander.rubrics.group import RubricGroup
from wander.rubrics.reward_function import RewardFunction
from wander.rubrics.rubric import Rubric
from wander.rubrics.score import Score

if TYPE_CHECKING:
    from wander.rubrics.judge import Judge, JudgeRubric, judge_score
    from wander.rubrics.math import MathRubric

__all__ = [
    "Judge",
    "JudgeRubric",
    "MathRubric",
    "RewardFunction",
    "Rubric",
    "RubricGroup",
    "Score",
    "judge_score",
]

__getattr__, __dir__ = lazy_names(__name__)
