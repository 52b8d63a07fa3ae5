"""Measures the effect of repeated posting: the coverage of a row's interval, and how often it beats an equal
model.

    python benchmarks/repeated_posting.py      2,000 boards per row; prints the table of docs/statistics.md
    python benchmarks/repeated_posting.py --quick    200

Two equally good models are on a board with 100 examples and one rollout each. One is posted once. The other
is posted up to 1, 5, 20 and 100 times, by somebody who sees the board. A rule decides what its row shows: the
first run (the hub's rule); the first run that the hub can verify, if it cannot verify every second run; the
best run; or the mean of all. In the last case, the submitter stops as soon as the row is clearly better. A
submitter whose other runs all fail gets the row "best", like a submitter who posts only the best
run. The results do not depend on the machine.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Callable, Sequence
from statistics import fmean

from wander.evals.stats.intervals import clustered_wilson_interval, mean_interval

POSTS = (1, 5, 20, 100)
EXAMPLES = 100
TRUTH = 0.5

Run = list[float]
"""Reward of each example."""
Interval = tuple[float | None, float | None]


def _ones(draw: random.Random) -> Run:
    return [float(draw.getrandbits(1)) for _ in range(EXAMPLES)]


def _graded(draw: random.Random) -> Run:
    return [draw.betavariate(0.5, 0.5) for _ in range(EXAMPLES)]


def _wilson(means: Sequence[float], runs: int) -> Interval:
    return clustered_wilson_interval(means, EXAMPLES * runs)


def _gaffke(means: Sequence[float], runs: int) -> Interval:
    return mean_interval(means, (0, 1))


CASES: dict[str, tuple[Callable[[random.Random], Run], Callable[[Sequence[float], int], Interval]]] = {
    "0 or 1": (_ones, _wilson),
    "graded": (_graded, _gaffke),
}
RULES = ("first", "first, half fail", "best", "mean of all")


def measure(case: str, rule: str, boards: int) -> list[tuple[float, float]]:
    """Return the coverage and the share of clearly better rows for each number of posts."""
    play, interval = CASES[case]
    held, better = [0] * len(POSTS), [0] * len(POSTS)
    for board in range(boards):
        draw = random.Random(f"{case}/{board}")  # the same draws for every rule
        chance = random.Random(f"{case}/{board}/faults")
        verified = rule != "first, half fail"
        rival = interval(play(draw), 1)
        row, total, count = [0.0], [0.0] * EXAMPLES, 0
        shown: Interval = (None, None)
        for number in range(1, POSTS[-1] + 1):
            if rule == "mean of all" and number > 1 and _is_above(shown, rival):
                pass  # the submitter is satisfied and stops posting
            elif rule == "mean of all":
                total = [one + another for one, another in zip(total, play(draw), strict=True)]
                count += 1
                shown = interval([one / count for one in total], count)
            elif number == 1 or rule == "best" or not verified:
                run, verified = play(draw), verified or chance.random() < 0.5
                # A run that cannot be verified stays only if it is the first, and ranks below all others.
                if number == 1 or (verified and (rule != "best" or fmean(run) > fmean(row))):
                    row, shown = run, interval(run, 1)
            if number in POSTS:
                place = POSTS.index(number)
                low, high = shown
                held[place] += low is not None and high is not None and low <= TRUTH <= high
                better[place] += verified and _is_above(shown, rival)
    return [(one / boards, other / boards) for one, other in zip(held, better, strict=True)]


def _is_above(first: Interval, second: Interval) -> bool:
    return first[0] is not None and second[1] is not None and first[0] > second[1]


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="200 boards per row")
    boards = 200 if parser.parse_args().quick else 2000
    print("| rewards | row | " + " | ".join(f"{posts} post{'s' * (posts > 1)}" for posts in POSTS) + " |")
    print("|---|---|" + "---|" * len(POSTS))
    for case in CASES:
        for rule in RULES:
            cells = measure(case, rule, boards)
            text = " | ".join(f"{held:.3f}, {100 * better:.1f}%" for held, better in cells)
            print(f"| {case} | {rule} | {text} |", flush=True)


if __name__ == "__main__":
    main()
