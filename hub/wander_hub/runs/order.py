"""The order of a run's rollouts by reward, stored once so that no page has to sort or count a million
rollouts.

The object contains unsigned 32-bit little-endian rollout numbers: first the scored rollouts, highest reward
first, then the failed rollouts, lowest number first.
"""

from __future__ import annotations

import sys
from array import array
from bisect import bisect_left
from collections.abc import Sequence

from wander_hub.storage import Storage

_WIDTH = 4


class OrderWriter:
    """Collects rewards in the order of the rollouts' numbers."""

    def __init__(self) -> None:
        self._rewards = array("d")
        self._scored, self._failed = array("I"), array("I")

    def add(self, reward: float | None) -> None:
        """Add the reward of the next rollout; None for a failed one."""
        number = len(self._scored) + len(self._failed)
        (self._failed if reward is None else self._scored).append(number)
        self._rewards.append(0.0 if reward is None else reward)

    def content(self) -> bytes:
        """Return the content of the object."""
        by_reward = sorted(self._scored, key=self._rewards.__getitem__, reverse=True)
        numbers = array("I", by_reward) + self._failed
        if sys.byteorder == "big":
            numbers.byteswap()
        return numbers.tobytes()


class StoredOrder:
    """Reads the rollout numbers of a page with minimal range reads."""

    def __init__(self, storage: Storage, sha256: str, *, scored: int, failed: int) -> None:
        self._storage, self._sha256 = storage, sha256
        self._scored, self._failed = scored, failed

    def page(self, *, sort: str, only: str, offset: int, limit: int) -> tuple[list[int], int]:
        """Return the rollout numbers of a page, and the total number of matches.

        `sort` is number, reward or -reward; `only` is all, scored or failed.
        """
        total = {"all": self._scored + self._failed, "scored": self._scored, "failed": self._failed}[only]
        stop = min(offset + limit, total)
        places = range(min(offset, stop), stop)
        if only == "failed":
            return self._read(self._scored + places.start, len(places)), total
        if sort == "number":
            return list(places) if only == "all" else self._find_scored(places), total
        if sort == "-reward" or not places:
            return self._read(places.start, len(places)), total
        return self._lowest_first(places), total

    def _lowest_first(self, places: range) -> list[int]:
        """Return scored rollouts in reverse order, then failed ones."""
        scored = range(places.start, min(places.stop, self._scored))
        numbers = self._read(self._scored - scored.stop, len(scored))[::-1] if scored else []
        failed = range(max(places.start, self._scored), places.stop)
        return numbers + (self._read(failed.start, len(failed)) if failed else [])

    def _find_scored(self, places: Sequence[int]) -> list[int]:
        """Return the numbers at these positions after leaving out the failed rollouts."""
        failed = self._read(self._scored, self._failed)
        # `failed[i] - i` scored rollouts come before the failed rollout i.
        before = [number - index for index, number in enumerate(failed)]
        return [place + bisect_left(before, place + 1) for place in places]

    def _read(self, start: int, count: int) -> list[int]:
        if count <= 0:
            return []
        numbers = array("I")
        numbers.frombytes(self._storage.read(self._sha256, start * _WIDTH, count * _WIDTH))
        if sys.byteorder == "big":
            numbers.byteswap()
        return numbers.tolist()
