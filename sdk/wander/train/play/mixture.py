"""Several environments in one run: each group belongs to one of them, in the proportion of their weights."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from wander.train.play.sampler import ExampleSampler


@dataclass(frozen=True)
class Pick:
    """What one group plays."""

    environment: int
    """Number of the environment in the mixture."""
    position: int
    """Place in its training order."""


class Mixture:
    """Draws what the groups of a step play.

    Environments take turns by weight without chance, so every step holds each as evenly as its number of
    groups allows.
    """

    def __init__(self, samplers: Sequence[ExampleSampler], weights: Sequence[float] = (1.0,)) -> None:
        self.samplers = list(samplers)
        self.weights = [weight / sum(weights) for weight in weights]
        self._taken = [0] * len(self.samplers)

    def draw(self, groups: int) -> list[Pick]:
        """Return what the groups of a new step play."""
        for sampler in self.samplers:
            sampler.end_step()
        picks = []
        for _ in range(groups):
            number = self._whose_turn()
            self._taken[number] += 1
            picks.append(Pick(number, self.samplers[number].draw()))
        return picks

    def refill(self, environments: Sequence[int]) -> list[Pick]:
        """Return what more groups of this step play, one for each environment named."""
        return [Pick(number, self.samplers[number].draw()) for number in environments]

    def observe(self, pick: Pick, rewards: Sequence[float]) -> None:
        """Learn what a group's scored rollouts earned."""
        self.samplers[pick.environment].observe(pick.position, rewards)

    def state(self) -> dict[str, Any]:
        """Return what a later `restore` needs, as JSON."""
        return {"taken": list(self._taken), "samplers": [sampler.state() for sampler in self.samplers]}

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from where `state` was taken."""
        self._taken = list(state["taken"])
        for sampler, inner in zip(self.samplers, state["samplers"], strict=True):
            sampler.restore(inner)

    def _whose_turn(self) -> int:
        """Return the environment that is furthest behind its share."""
        total = sum(self._taken) + 1
        behind = [weight * total - taken for weight, taken in zip(self.weights, self._taken, strict=True)]
        return behind.index(max(behind))
