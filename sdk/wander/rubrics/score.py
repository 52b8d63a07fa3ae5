"""The result of scoring a rollout, and the check for valid numbers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import isfinite
from typing import Any

from wander.errors import RubricError
from wander.rollout.json_values import as_number


@dataclass
class Score:
    """Result of scoring one rollout with a rubric."""

    reward: float | None
    """Weighted sum, or None if any function failed."""
    metrics: dict[str, float] = field(default_factory=dict)
    """Raw value of every function that returned one."""
    error: RubricError | None = None
    """First failure, or None."""

    @classmethod
    def of(cls, reward: Any, metrics: Mapping[str, Any]) -> Score:
        """Create a score from values computed elsewhere. A value that is not a finite number is an error."""
        try:
            checked = {name: check_reward(value, name) for name, value in metrics.items()}
            return cls(check_reward(reward, "reward"), checked)
        except RubricError as error:
            return cls(None, error=error)

    def require_finite(self) -> Score:
        """Return the score, or a failed one if its finite values add up to a reward that is not finite."""
        if self.reward is None or isfinite(self.reward):
            return self
        largest = max(self.metrics, key=lambda name: abs(self.metrics[name]), default="reward")
        message = (
            f"the reward is {self.reward}, which is not finite: reward function `{largest}` returned "
            f"{self.metrics.get(largest)}"
        )
        return Score(None, self.metrics, RubricError(message))


def check_reward(value: Any, name: str) -> float:
    """Return the value as a float. Raises `RubricError` unless it is a finite number.

    It also accepts arrays and tensors with a single value.
    """
    try:
        number = float(value) if isinstance(value, float | int) else as_number(value)
    except (TypeError, OverflowError):
        raise RubricError(f"reward function `{name}` returned `{value!r:.80}`, not a number") from None
    if not isfinite(number):
        raise RubricError(f"reward function `{name}` returned {number}, which is not finite")
    return number
