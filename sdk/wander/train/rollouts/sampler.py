"""Which example each group plays: in the dataset's order or shuffled, strata evenly, by difficulty.

Several environments share a step in the proportion of their weights (`Mixture`). Everything is a function of
the settings, the seed and what was drawn and observed before, and that is a small JSON value: a resumed run
draws what it would have drawn.

A place in the training order is `epoch * length + row`, so an example that comes again meets new chances.
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
    """What is known of an example that was played under a curriculum."""

    visits: int = 0
    last: int = -1
    """Number of the draw in which it was last taken."""
    pool: Pool = "normal"


class ExampleSampler:
    """Draws the examples of one environment, group by group.

    `length` is the number of training rows, None where they are endless: then they come in their order.
    `strata` has the stratum of every row; strata take turns, so that any number of groups drawn one after
    another holds each of them as evenly as that number allows.
    """

    def __init__(
        self, settings: DataSection, *, length: int | None, strata: Sequence[int | None] = (), seed: int = 0
    ) -> None:
        self.settings = settings
        self.length = length
        self.seed = seed
        self._lanes = _lanes(length, strata)
        self._drawn = [0] * len(self._lanes)
        """How far each stratum's order has been walked."""
        self._draws = 0
        self._seen: dict[int, _Seen] = {}
        self._busy: set[int] = set()
        """Rows that are being played: none is drawn twice in a step while another is left."""

    @property
    def adapts(self) -> bool:
        """True when what was observed decides what is drawn."""
        return self.settings.curriculum and self.length is not None

    def draw(self) -> int:
        """Return the next place in the training order."""
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
        """Learn what a group's rollouts earned; a group without a scored rollout tells nothing."""
        if self.adapts and self.length and rewards:
            self._seen[place % self.length].pool = pool_of(rewards, self.settings)

    def end_step(self) -> None:
        """Let the examples of this step be drawn again."""
        self._busy.clear()

    def state(self) -> dict[str, Any]:
        """Return what a later `restore` needs, as JSON."""
        rows = {str(row): [seen.visits, seen.last, seen.pool] for row, seen in self._seen.items()}
        return {"draws": self._draws, "drawn": list(self._drawn), "examples": rows}

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from where `state` was taken."""
        self._draws, self._drawn = state["draws"], list(state["drawn"])
        self._seen = {int(row): _Seen(*values) for row, values in state["examples"].items()}
        self._busy.clear()

    def _walk(self, lane: int) -> tuple[int, int]:
        """Return the next epoch and row of a stratum, and step past them."""
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
        """Return an example never played, or one of a pool: of that, the one not played for longest."""
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
    """Return the pool of an example by what its last group earned.

    Where every rollout earned the same and not little, there is nothing left to learn now: solved.
    """
    mean = sum(rewards) / len(rewards)
    if mean < settings.hard_below:
        return "hard"
    if not has_signal(rewards):
        return "solved"
    return "easy" if mean >= settings.easy_from else "normal"


def has_signal(rewards: Sequence[float]) -> bool:
    """Tell whether a group's rewards differ: otherwise every advantage is zero."""
    return len(set(rewards)) > 1


def _lanes(length: int | None, strata: Sequence[int | None]) -> list[Sequence[int] | None]:
    """Return the rows of each stratum, strata in the order in which the dataset first has them."""
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
    """What one group plays."""

    environment: int
    """Number of the environment in the mixture."""
    position: int
    """Place in its training order."""


SAMPLER = "sampler.json"
"""In a checkpoint: what decides the next examples."""


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
            # The environment that is furthest behind its share has its turn.
            total = sum(self._taken) + 1
            behind = [share * total - taken for share, taken in zip(self.weights, self._taken, strict=True)]
            number = behind.index(max(behind))
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

    def load(self, checkpoint: Path) -> None:
        """Continue from where a checkpoint was saved."""
        self.restore(json.loads((checkpoint / SAMPLER).read_bytes()))

    def save(self, checkpoint: Path) -> None:
        """Write what decides the next examples into a checkpoint."""
        jsonl.write_whole(checkpoint / SAMPLER, (json.dumps(self.state()) + "\n").encode())
