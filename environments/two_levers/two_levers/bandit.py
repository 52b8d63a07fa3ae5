"""The levers' chances and the exact solution: what perfect play under the known prior earns."""

from __future__ import annotations

from functools import cache
from math import prod

LEVERS = ("left", "right")
GAPS = (0.8, 0.6, 0.4)
"""Differences between the chances of the two levers, the easiest first."""

Counts = tuple[int, int, int, int]
"""Numbers of pulls so far: left paid, left did not pay, right paid, right did not pay."""


def pairs(gap: float) -> list[tuple[float, float]]:
    """Return the chances of the worse and the better lever, 0.1 to 0.9 in tenths, that differ by `gap`."""
    tenths = round(10 * gap)
    return [(low / 10, (low + tenths) / 10) for low in range(1, 10 - tenths)]


class Bandit:
    """So many pulls of levers whose chances are drawn: a gap, then one of its pairs, then which is better."""

    def __init__(self, pulls: int, gaps: tuple[float, ...]) -> None:
        self.pulls = pulls
        self.prior = [
            (1 / len(gaps) / len(pairs(gap)) / 2, chances)
            for gap in gaps
            for pair in pairs(gap)
            for chances in (pair, pair[::-1])
        ]
        self.values = cache(self._values)

    @property
    def optimum(self) -> float:
        """Average reward of a pull under perfect play, if the better lever counts 1 and the worse -1."""
        return max(self.values((0, 0, 0, 0))) / self.pulls

    def _values(self, seen: Counts) -> tuple[float, float]:
        """Return what pulling left, and right, earns from here on average if every later pull is best."""
        if sum(seen) == self.pulls:
            return 0.0, 0.0
        beliefs = [
            (weight * prod(likelihood(chances[lever], *seen[2 * lever :][:2]) for lever in (0, 1)), chances)
            for weight, chances in self.prior
        ]
        total = sum(belief for belief, _ in beliefs)
        ahead = sum(belief if left > right else -belief for belief, (left, right) in beliefs) / total
        earned = []
        for lever, gain in enumerate((ahead, -ahead)):
            pays = sum(belief * chances[lever] for belief, chances in beliefs) / total
            paid, unpaid = (max(self.values(one_more(seen, 2 * lever + miss))) for miss in (0, 1))
            earned.append(gain + pays * paid + (1 - pays) * unpaid)
        return earned[0], earned[1]


def likelihood(chance: float, paid: int, unpaid: int) -> float:
    """Return the probability of these payoffs, in their order, for a lever with that chance."""
    return chance**paid * (1 - chance) ** unpaid


def one_more(seen: Counts, place: int) -> Counts:
    """Return the counts with one more at a place."""
    left_paid, left_not, right_paid, right_not = (
        count + (place == number) for number, count in enumerate(seen)
    )
    return left_paid, left_not, right_paid, right_not


@cache
def solve(pulls: int, gaps: tuple[float, ...]) -> Bandit:
    """Return the bandit; equal ones are solved once."""
    return Bandit(pulls, gaps)
