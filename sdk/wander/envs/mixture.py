"""The order in which a group of environments shows its members' examples."""

from __future__ import annotations

import heapq
import math
from array import array
from collections.abc import Sequence
from fractions import Fraction


class Mixture:
    """Interleaves members so that every beginning of the sequence holds them in proportion to their weights.

    The j-th example of a member stands at the moment (j + 1/2) / weight, and moments are taken in order, the
    earlier member first where two fall together. The sequence ends where an example is due that its member no
    longer has; so the proportions hold to the end, and nothing is shown twice.

    `lengths` are the members' numbers of examples, None for an endless one. Without weights, each member
    weighs as much as it has examples, which shows all of them; or all weigh the same, when one is endless.
    """

    def __init__(self, lengths: Sequence[int | None], weights: Sequence[float] | None = None) -> None:
        if weights is None:
            sizes = [length for length in lengths if length is not None]
            weights = sizes if len(sizes) == len(lengths) else [1.0] * len(lengths)
        self.lengths = list(lengths)
        self.weights = [Fraction(weight) for weight in weights]
        self.length = self._length()
        self._members = array("I")
        self._positions = array("Q")
        self._due = [
            (self._moment(member, 0), member, 0) for member in range(len(lengths)) if self.weights[member]
        ]
        heapq.heapify(self._due)

    def at(self, index: int) -> tuple[int, int]:
        """Return member and position of the example at an index below `length`."""
        while len(self._members) <= index:
            _, member, position = self._due[0]
            heapq.heapreplace(self._due, (self._moment(member, position + 1), member, position + 1))
            self._members.append(member)
            self._positions.append(position)
        return self._members[index], self._positions[index]

    def _moment(self, member: int, position: int) -> Fraction:
        return (2 * position + 1) / (2 * self.weights[member])

    def _length(self) -> int | None:
        """Count the moments before the first that finds nothing; None when there is always something."""
        ends = [
            (self._moment(member, length), member)
            for member, length in enumerate(self.lengths)
            if length is not None and self.weights[member]
        ]
        if not ends:
            return None if any(self.weights) else 0
        return sum(self._before(member, *min(ends)) for member in range(len(self.lengths)))

    def _before(self, member: int, moment: Fraction, last: int) -> int:
        """Count a member's examples that come before what is due for member `last` at a moment."""
        # (2j + 1) / (2w) < moment, or equal to it where this member goes first.
        bound = moment * self.weights[member] - Fraction(1, 2)
        whole = math.ceil(bound)
        return whole + 1 if bound == whole and member < last else whole
