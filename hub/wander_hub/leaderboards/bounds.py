"""Ranks among many intervals in logarithmic time: both ends of all of them, each sorted, kept as bytes.

Rows stand in tiers: what is proven of one makes it rank above all rows of the tiers below, whatever they
scored. Intervals decide within a tier alone.
"""

from __future__ import annotations

import math
from array import array
from bisect import bisect_left, bisect_right, insort
from collections.abc import Sequence
from typing import NamedTuple


class Place(NamedTuple):
    """Where a run stands on a board: its tier, 0 the highest, and its interval there."""

    tier: int
    low: float | None
    high: float | None
    """Both None for a run that is too small for an interval."""

    def ends(self) -> tuple[float, float]:
        """Return the interval; that of a run without one overlaps everything."""
        if self.low is None or self.high is None:
            return -math.inf, math.inf
        return self.low, self.high

    def surely_above(self, other: Place) -> bool:
        """Tell whether this is clearly better: of a higher tier, or with an interval above the other's."""
        return (self.tier, -self.ends()[0]) < (other.tier, -other.ends()[1])


class Bounds:
    """The places of the runs that count on a board."""

    def __init__(self, lows: bytes = b"", highs: bytes = b"", tiers: Sequence[int] = ()) -> None:
        """Take the ends tier by tier, and how many each tier has."""
        every_low, every_high = array("d", lows), array("d", highs)
        self._tiers: list[tuple[array[float], array[float]]] = []
        start = 0
        for count in tiers:
            end = start + count
            self._tiers.append((every_low[start:end], every_high[start:end]))
            start = end

    def dump(self) -> tuple[bytes, bytes, list[int]]:
        """Return what the constructor takes."""
        lows, highs = (b"".join(one[side].tobytes() for one in self._tiers) for side in (0, 1))
        tiers = [len(one) for one, _ in self._tiers]
        while tiers and not tiers[-1]:
            tiers.pop()
        return lows, highs, tiers

    def __len__(self) -> int:
        return sum(len(lows) for lows, _ in self._tiers)

    def add(self, place: Place) -> None:
        """Count a row."""
        while len(self._tiers) <= place.tier:
            self._tiers.append((array("d"), array("d")))
        for ends, value in zip(self._tiers[place.tier], place.ends(), strict=True):
            insort(ends, value)

    def remove(self, place: Place) -> None:
        """Count it no more; raises ValueError for one that was not counted."""
        found = self._tiers[place.tier] if place.tier < len(self._tiers) else (array("d"), array("d"))
        for ends, value in zip(found, place.ends(), strict=True):
            at = bisect_left(ends, value)
            if at == len(ends) or ends[at] != value:
                raise ValueError(f"no interval of tier {place.tier} ends at {value}")
            ends.pop(at)

    def ranks(self, place: Place, own: Place | None) -> tuple[int, int]:
        """Return the lowest and highest rank of a run among the other rows.

        `own` is the place of the run that counts of its model and account, None where none does. The
        lowest is one more than the rows that are surely better, the highest is the number of rows, with its
        own, less those that are surely worse.
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
