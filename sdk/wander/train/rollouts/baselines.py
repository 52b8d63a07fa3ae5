"""What the policy usually earns as each of the players that it plays (role-conditioned advantages, SPIRAL).

Where two players of one policy earn unlike on average, the mean of a group says little about either. A moving
mean of what was earned before, one for each player of each environment, is what a rollout is compared with.
"""

from __future__ import annotations

import json
from pathlib import Path

from wander.evals.store import jsonl
from wander.train.rollouts.step import PlayedStep

STATE = "baselines.json"
"""In a checkpoint: the means as they are then."""
DECAY = 0.95
"""How much of a mean stays at each reward: it looks back about 20 of them."""


class RoleBaselines:
    """Compares rewards with the means of the steps before, which are in every checkpoint."""

    def __init__(self, labels: list[str]) -> None:
        self.labels = labels
        """Of the environments."""
        self.means: dict[str, float] = {}

    def compare(self, step: PlayedStep) -> list[float]:
        """Return the advantage of each row of a step, 0 where nothing was earned; then move the means.

        A mean begins at 0 and keeps `DECAY` of itself at each reward.
        """
        before, rows, advantages = dict(self.means), iter(step.rows), []
        for group in step.groups:
            label = self.labels[group.pick.environment]
            role = f"{label}/{group.learner}" if group.learner else label
            for row in (next(rows) for _ in group.rows):
                if row.reward is None:
                    advantages.append(0.0)
                    continue
                advantages.append(row.reward - before.get(role, 0.0))
                self.means[role] = DECAY * self.means.get(role, 0.0) + (1 - DECAY) * row.reward
        return advantages

    def load(self, checkpoint: Path) -> None:
        """Continue from the means of a checkpoint."""
        self.means = json.loads((checkpoint / STATE).read_bytes())

    def save(self, checkpoint: Path) -> None:
        """Write the means into a checkpoint."""
        jsonl.write_whole(checkpoint / STATE, (json.dumps(self.means) + "\n").encode())
