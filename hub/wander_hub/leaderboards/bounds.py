"""Ranks among many intervals in logarithmic time: both ends of all of them, each sorted, kept as bytes."""

from __future__ import annotations

import math
from array import array
from bisect import bisect_left, bisect_right, insort

Interval = tuple[float | None, float | None]
"""Low and high; both None for a run that is too small for an interval."""


class Bounds:
    """The intervals of the runs that count on a board."""

    def __init__(self, lows: bytes = b"", highs: bytes = b"") -> None:
        self._lows, self._highs = array("d", lows), array("d", highs)

    def dump(self) -> tuple[bytes, bytes]:
        """Return what the constructor takes."""
        return self._lows.tobytes(), self._highs.tobytes()

    def __len__(self) -> int:
        return len(self._lows)

    def add(self, interval: Interval) -> None:
        """Count the interval of a row."""
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

    def ranks(self, interval: Interval, own: Interval | None) -> tuple[int, int]:
        """Return the lowest and highest rank of a run among the other rows.

        `own` is the interval of the run that counts of its model and account, None where none does. The
        lowest is one more than the rows that are surely better, the highest is the number of rows, with its
        own, less those that are surely worse.
        """
        low, high = _ends(interval)
        better, worse = len(self._lows) - bisect_right(self._lows, high), bisect_left(self._highs, low)
        if own is None:
            return 1 + better, 1 + len(self._lows) - worse
        own_low, own_high = _ends(own)
        return 1 + better - (own_low > high), len(self._lows) - worse + (own_high < low)


def _ends(interval: Interval) -> tuple[float, float]:
    """A run that is too small for an interval overlaps everything."""
    low, high = interval
    return (-math.inf, math.inf) if low is None or high is None else (low, high)
