"""Rubrics: how a finished rollout becomes a reward and metrics."""

from wander.rubrics.group import RubricGroup
from wander.rubrics.reward_function import RewardFunction
from wander.rubrics.rubric import Rubric
from wander.rubrics.score import Score

__all__ = ["RewardFunction", "Rubric", "RubricGroup", "Score"]
