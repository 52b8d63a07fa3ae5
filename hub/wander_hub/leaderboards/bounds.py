"""Ranks among many intervals in logarithmic time, from the sorted lower and upper ends of all intervals.

Rows are grouped into tiers by how far they were proved. A row ranks above all rows of lower tiers, whatever
their rewards are. Intervals only decide within a tier.
"""

from __future__ import annotations

import math
from array import array
from bisect import bisect_left, bisect_right, insort
from collections.abc import Sequence
from typing import NamedTuple


class BoardPlace(NamedTuple):
    """A run's position on a board: its tier (0 is the highest) and its interval."""

    tier: int
    low: float | None
    high: float | None
    """Ends of the interval; both None for a run that is too small for an interval."""

    def ends(self) -> tuple[float, float]:
        """Return the ends of the interval; a missing interval overlaps everything."""
        if self.low is None or self.high is None:
            return -math.inf, math.inf
        return self.low, self.high

    def surely_above(self, other: BoardPlace) -> bool:
        """Return whether this place is clearly better: a higher tier, or an interval above the other's."""
        return (self.tier, -self.ends()[0]) < (other.tier, -other.ends()[1])


class Bounds:
    """Places of the runs that count on a board."""

    def __init__(self, lows: bytes = b"", highs: bytes = b"", tiers: Sequence[int] = ()) -> None:
        """Load the sorted ends tier by tier; `tiers` has the number of rows of each tier."""
        every_low, every_high = array("d", lows), array("d", highs)
        self._tiers: list[tuple[array[float], array[float]]] = []
        start = 0
        for count in tiers:
            end = start + count
            self._tiers.append((every_low[start:end], every_high[start:end]))
            start = end

    def dump(self) -> tuple[bytes, bytes, list[int]]:
        """Return the arguments for the constructor."""
        lows, highs = (b"".join(tier[side].tobytes() for tier in self._tiers) for side in (0, 1))
        tiers = [len(tier_lows) for tier_lows, _ in self._tiers]
        while tiers and not tiers[-1]:
            tiers.pop()
        return lows, highs, tiers

    def __len__(self) -> int:
        return sum(len(lows) for lows, _ in self._tiers)

    def add(self, place: BoardPlace) -> None:
        """Add a row."""
        while len(self._tiers) <= place.tier:
            self._tiers.append((array("d"), array("d")))
        for ends, value in zip(self._tiers[place.tier], place.ends(), strict=True):
            insort(ends, value)

    def remove(self, place: BoardPlace) -> None:
        """Remove a row. Raises `ValueError` if it was not added."""
        tier = self._tiers[place.tier] if place.tier < len(self._tiers) else (array("d"), array("d"))
        for ends, value in zip(tier, place.ends(), strict=True):
            index = bisect_left(ends, value)
            if index == len(ends) or ends[index] != value:
                raise ValueError(f"no interval of tier {place.tier} ends at {value}")
            ends.pop(index)

    def ranks(self, place: BoardPlace, own: BoardPlace | None) -> tuple[int, int]:
        """Return the lowest and highest rank of a run among the other rows.

        `own` is the place of the counting run of the same model and account, or None. The lowest rank is one
        more than the number of clearly better rows. The highest rank is the number of rows, including its
        own, minus the clearly worse rows.
        """
        low, high = place.ends()
        better = sum(len(lows) for lows, _ in self._tiers[: place.tier])
        worse = sum(len(lows) for lows, _ in self._tiers[place.tier + 1 :])
        if place.tier < len(self._tiers):
            lows, highs = self._tiers[place.tier]
            better += len(lows) - bisect_right(lows, high)
            worse += bisect_left(highs, low)
        if own is None:
            return 1 + better, 1 + len(self) - worse
        return 1 + better - own.surely_above(place), len(self) - worse + place.surely_above(own)
