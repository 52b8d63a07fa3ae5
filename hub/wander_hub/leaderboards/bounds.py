"""Ranks among many intervals in logarithmic time: both ends of all of them, each sorted, kept as bytes."""

from __future__ import annotations

import math
from array import array
from bisect import bisect_left, bisect_right, insort

Interval = tuple[float | None, float | None]
"""Low and high; both None for a run that is too small for an interval."""


class Bounds:
    """The intervals of a board's models."""

    def __init__(self, lows: bytes = b"", highs: bytes = b"") -> None:
        self._lows, self._highs = array("d", lows), array("d", highs)

    def dump(self) -> tuple[bytes, bytes]:
        """Return what the constructor takes."""
        return self._lows.tobytes(), self._highs.tobytes()

    def add(self, interval: Interval) -> None:
        """Count a model's interval."""
        low, high = _ends(interval)
        insort(self._lows, low)
        insort(self._highs, high)

    def remove(self, interval: Interval) -> None:
        """Count it no more; raises ValueError for one that was not counted."""
        for ends, value in zip((self._lows, self._highs), _ends(interval), strict=True):
            place = bisect_left(ends, value)
            if place == len(ends) or ends[place] != value:
                raise ValueError(f"no interval ends at {value}")
            ends.pop(place)

    def ranks(self, interval: Interval, own: Interval) -> tuple[int, int]:
        """Return the lowest and highest rank of a run among the other models.

        `own` is the interval of its model's best run. The lowest is one more than the models whose best is
        surely better, the highest is the number of models less those whose best is surely worse.
        """
        low, high = _ends(interval)
        own_low, own_high = _ends(own)
        better = len(self._lows) - bisect_right(self._lows, high) - (own_low > high)
        worse = bisect_left(self._highs, low) - (own_high < low)
        return 1 + better, len(self._lows) - worse


def _ends(interval: Interval) -> tuple[float, float]:
    """A run that is too small for an interval overlaps everything."""
    low, high = interval
    return (-math.inf, math.inf) if low is None or high is None else (low, high)
