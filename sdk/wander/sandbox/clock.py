"""How long the environment's own code takes over a rollout, by a clock that it cannot reach."""

from __future__ import annotations

from collections.abc import Mapping


class OwnTime:
    """Adds up, tick by tick, the time in which a request waits for the worker and not for the model."""

    def __init__(self, limit: float) -> None:
        """`limit`: seconds that one rollout may take of its own."""
        self._limit = limit
        self._spent: dict[int, float] = {}
        self.tick = min(1.0, limit / 4)
        """Seconds between two looks. A look that comes late counts as one: this process was held up then."""

    def late(self, working: Mapping[int, int]) -> set[int]:
        """Return which of the requests took longer than they may; called once a tick.

        `working`: of each request that the worker works on, how many rollouts it is for.
        """
        for number in working:
            self._spent[number] = self._spent.get(number, 0.0) + self.tick
        return {number for number, count in working.items() if self._spent[number] > self._limit * count}
