"""What a collapse looks like: the last few steps, held against the first few and the best few of the run.

Read from the metrics of the steps alone, so a resumed run finds the same. Three ways of collapsing are told:
- the reward falls far below the best that it was: by a share of it, by half of what rollouts differ from each
  other, and by more than chance;
- the entropy is gone and the reward has not risen: the policy repeats itself and tries nothing else any more;
- the entropy bursts and the reward has not risen: what the policy writes is noise.
Entropy that goes while the reward rises is what learning looks like.
"""

from __future__ import annotations

import math
import statistics
from collections import deque
from collections.abc import Mapping
from typing import Any

from wander.train.config import GRPOSettings
from wander.train.records.metrics import number

WINDOW = 5
"""Steps whose mean is judged, at the beginning fewer: a bad learning rate destroys a policy in two."""
FEWEST = 3
"""Steps before anything is judged."""
SPREADS = 0.5
"""Of the standard deviation of a step's rollouts: what the reward must fall by, whatever its scale is."""
DEVIATIONS = 4.0
"""That two means differ by more than by chance."""
MEDIAN_JUMP = 0.954
"""Median of the distance of two steps, in deviations of one, where chance alone moves them."""


class Collapse:
    """Reads the metrics of one step after another and finds out whether the policy has collapsed."""

    def __init__(self, settings: GRPOSettings) -> None:
        self._section = settings.alerts
        self._groups = settings.batch.groups
        self._rewards = _Means()
        self._entropies = _Means()
        self._jumps: list[float] = []
        """How far each reward is from the one before."""
        self._spread = 0.0
        """The largest standard deviation of a step's rollouts so far."""

    def read(self, entry: Mapping[str, Any]) -> str:
        """Return how the policy has collapsed, in words; an empty text if it has not."""
        reward, entropy = number(entry, "reward"), number(entry, "entropy")
        if reward is not None:
            self._spread = max(self._spread, number(entry, "rewards/reward/std") or 0.0)
            if self._rewards.last:
                self._jumps.append(abs(reward - self._rewards.last[-1]))
            self._rewards.add(reward)
        if entropy is not None:
            self._entropies.add(entropy)
        if reward is None or len(self._rewards.last) < FEWEST:
            return ""
        reason = self._judge_reward() or self._judge_entropy()
        return f"the policy has collapsed: {reason}" if reason else ""

    def _judge_reward(self) -> str:
        now = self._rewards.now
        for steps, best in self._rewards.best.items():
            least = max(self._section.reward_drop * abs(best), SPREADS * self._spread, self._chance(steps))
            if best - now > least:
                return f"the reward fell to {now:.3g}, and was {best:.3g} at its best"
        return ""

    def _judge_entropy(self) -> str:
        first = self._rewards.first
        if len(self._entropies.last) < FEWEST or self._rewards.now - first > self._chance(WINDOW):
            return ""
        now, before = self._entropies.now, self._entropies.first
        text = f"the entropy is {now:.3g} and was {before:.3g} at first, and the reward is no higher"
        if now < self._section.entropy_share * before:
            return f"{text}: the policy repeats itself"
        if now > self._section.entropy_burst * before:
            return f"{text}: the policy writes noise"
        return ""

    def _chance(self, steps: int) -> float:
        """Return by how much the mean of the last steps and one of so many may differ by chance."""
        # Rollouts of a group share an example, so at worst they count as one. What steps really differ by is
        # told by the median of their jumps, on which a collapse itself has no influence.
        of_step = self._spread / math.sqrt(self._groups)
        if len(self._jumps) >= 2 * WINDOW:
            of_step = min(of_step, statistics.median(self._jumps) / MEDIAN_JUMP)
        return DEVIATIONS * of_step * math.sqrt(1 / steps + 1 / len(self._rewards.last))


class _Means:
    """Means of a metric: of its first steps, of its last, and the best of so many in a row."""

    def __init__(self) -> None:
        self.last: deque[float] = deque(maxlen=WINDOW)
        self.first = 0.0
        self.best: dict[int, float] = {}
        """By the number of steps: only the first means are of fewer than all."""

    def add(self, value: float) -> None:
        """Take the value of a step."""
        self.last.append(value)
        steps = len(self.last)
        if steps not in self.best:
            self.first = self.now
        self.best[steps] = max(self.now, self.best.get(steps, -math.inf))

    @property
    def now(self) -> float:
        """The mean of the last steps."""
        return sum(self.last) / len(self.last)
