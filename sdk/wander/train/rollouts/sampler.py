"""The choice of the example for each group: in the dataset's order or shuffled, evenly by strata, or by
difficulty.

Several environments share a step in proportion to their weights (`TrainingMixture`). The choice depends only
on the settings, the seed, and the earlier draws and rewards. This state is a small JSON value, so a resumed
run draws the same examples.

A position in the training order is `epoch * length + row`, so an example gets different random numbers in
each epoch.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from wander.evals.store import jsonl
from wander.seeding import derived_rng
from wander.train.config import POOL_WEIGHTS, DataSection, Pool


@dataclass
class _Seen:
    """The history of an example that was played under a curriculum."""

    visits: int = 0
    last: int = -1
    """Number of the draw that chose this example most recently."""
    pool: Pool = "normal"


class ExampleSampler:
    """Draws the examples of an environment, group by group.

    `length` is the number of training rows. It is None for an endless dataset, whose rows are drawn in order.
    `strata` has the stratum of every row. Strata take turns, so any number of consecutive draws contains each
    stratum as evenly as possible.
    """

    def __init__(
        self, settings: DataSection, *, length: int | None, strata: Sequence[int | None] = (), seed: int = 0
    ) -> None:
        self.settings = settings
        self.length = length
        self.seed = seed
        self._lanes = _lanes(length, strata)
        self._drawn = [0] * len(self._lanes)
        """Number of draws in the order of each stratum."""
        self._draws = 0
        self._seen: dict[int, _Seen] = {}
        self._busy: set[int] = set()
        """Rows that are being played. A row is drawn twice in a step only if no other row is available."""

    @property
    def adapts(self) -> bool:
        """Whether earlier rewards influence the draws."""
        return self.settings.curriculum and self.length is not None

    def draw(self) -> int:
        """Return the next position in the training order."""
        lane = self._draws % len(self._lanes)
        self._draws += 1
        if not self.adapts:
            epoch, row = self._walk(lane)
            return epoch * (self.length or 0) + row
        row = self._row_by_difficulty(lane)
        seen = self._seen.setdefault(row, _Seen())
        place = seen.visits * (self.length or 0) + row
        seen.visits, seen.last = seen.visits + 1, self._draws
        self._busy.add(row)
        return place

    def observe(self, place: int, rewards: Sequence[float]) -> None:
        """Note the rewards of a group's rollouts; a group without a scored rollout is ignored."""
        if self.adapts and self.length and rewards:
            self._seen[place % self.length].pool = pool_of(rewards, self.settings)

    def end_step(self) -> None:
        """Allow the examples of this step to be drawn again."""
        self._busy.clear()

    def state(self) -> dict[str, Any]:
        """Return the state for `restore`, as JSON."""
        rows = {str(row): [seen.visits, seen.last, seen.pool] for row, seen in self._seen.items()}
        return {"draws": self._draws, "drawn": list(self._drawn), "examples": rows}

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from the point where `state` was called."""
        self._draws, self._drawn = state["draws"], list(state["drawn"])
        self._seen = {int(row): _Seen(*values) for row, values in state["examples"].items()}
        self._busy.clear()

    def _walk(self, lane: int) -> tuple[int, int]:
        """Return the next epoch and row of a stratum, and advance past them."""
        number = self._drawn[lane]
        self._drawn[lane] += 1
        rows = self._lanes[lane]
        if rows is None:
            return 0, number
        epoch, place = divmod(number, len(rows))
        if self.settings.order == "shuffled":
            place = _shuffle(self.seed, lane, epoch, len(rows))[place]
        return epoch, rows[place]

    def _row_by_difficulty(self, lane: int) -> int:
        """Return an unplayed example, or the example of a drawn pool that was not played for the longest
        time."""
        rng = derived_rng(self.seed, "pool", self._draws)
        rows = self._lanes[lane] or ()
        known = [row for row in rows if row in self._seen and row not in self._busy]
        unseen = self._drawn[lane] < len(rows)
        if not known or (unseen and rng.random() < self.settings.unseen_share):
            return self._walk(lane)[1]
        pools: dict[Pool, list[int]] = {}
        for row in known:
            pools.setdefault(self._seen[row].pool, []).append(row)
        names = sorted(pools)
        weights = [self.settings.pool_weights.get(name, POOL_WEIGHTS[name]) for name in names]
        if not any(weights):
            return self._walk(lane)[1]
        chosen = pools[rng.choices(names, weights)[0]]
        return min(chosen, key=lambda row: (self._seen[row].last, row))


def pool_of(rewards: Sequence[float], settings: DataSection) -> Pool:
    """Return the pool of an example, given the rewards of its last group.

    If all rollouts earned the same reward and it is not low, there is nothing left to learn: `solved`.
    """
    mean = sum(rewards) / len(rewards)
    if mean < settings.hard_below:
        return "hard"
    if not has_signal(rewards):
        return "solved"
    return "easy" if mean >= settings.easy_from else "normal"


def has_signal(rewards: Sequence[float]) -> bool:
    """Return whether a group's rewards differ; if not, every advantage is zero."""
    return len(set(rewards)) > 1


def _lanes(length: int | None, strata: Sequence[int | None]) -> list[Sequence[int] | None]:
    """Return the rows of each stratum, with strata in the order of their first row."""
    if length is None:
        return [None]
    rows: dict[int | None, list[int]] = {}
    for row, stratum in enumerate(strata):
        rows.setdefault(stratum, []).append(row)
    return list(rows.values()) if len(rows) > 1 else [range(length)]


@lru_cache(maxsize=64)
def _shuffle(seed: int, lane: int, epoch: int, count: int) -> list[int]:
    order = list(range(count))
    derived_rng(seed, "order", lane, epoch).shuffle(order)
    return order


@dataclass(frozen=True)
class Pick:
    """The example of a group."""

    environment: int
    """Number of the environment in the mixture."""
    position: int
    """Position in its training order."""


SAMPLER = "sampler.json"
"""File in a checkpoint with the state that determines the next examples."""


class TrainingMixture:
    """Draws the examples of the groups in a step.

    Environments take turns by weight, without randomness, so every step contains each of them as evenly as
    its number of groups allows.
    """

    def __init__(self, samplers: Sequence[ExampleSampler], weights: Sequence[float] = (1.0,)) -> None:
        self.samplers = list(samplers)
        self.weights = [weight / sum(weights) for weight in weights]
        self._taken = [0] * len(self.samplers)

    def draw(self, groups: int) -> list[Pick]:
        """Return the examples for the groups of a new step."""
        for sampler in self.samplers:
            sampler.end_step()
        picks = []
        for _ in range(groups):
            # The environment that is furthest behind its share is next.
            total = sum(self._taken) + 1
            behind = [share * total - taken for share, taken in zip(self.weights, self._taken, strict=True)]
            number = behind.index(max(behind))
            self._taken[number] += 1
            picks.append(Pick(number, self.samplers[number].draw()))
        return picks

    def refill(self, environments: Sequence[int]) -> list[Pick]:
        """Return examples for additional groups of this step, one for each named environment."""
        return [Pick(number, self.samplers[number].draw()) for number in environments]

    def observe(self, pick: Pick, rewards: Sequence[float]) -> None:
        """Note the rewards of a group's scored rollouts."""
        self.samplers[pick.environment].observe(pick.position, rewards)

    def state(self) -> dict[str, Any]:
        """Return the state for `restore`, as JSON."""
        return {"taken": list(self._taken), "samplers": [sampler.state() for sampler in self.samplers]}

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from the point where `state` was called."""
        self._taken = list(state["taken"])
        for sampler, inner in zip(self.samplers, state["samplers"], strict=True):
            sampler.restore(inner)

    def load(self, checkpoint: Path) -> None:
        """Continue from the state in a checkpoint."""
        self.restore(json.loads((checkpoint / SAMPLER).read_bytes()))

    def save(self, checkpoint: Path) -> None:
        """Write the state that determines the next examples into a checkpoint."""
        jsonl.write_whole(checkpoint / SAMPLER, (json.dumps(self.state()) + "\n").encode())
