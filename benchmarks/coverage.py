"""Measures how often 95% intervals contain the true mean, and how wide they are compared with Student's t.

    python benchmarks/coverage.py            2,000 samples per cell; prints the table of docs/statistics.md
    python benchmarks/coverage.py --quick    200

Rewards are drawn from distributions that occur in evaluations (skewed, mostly zero, two values, rare
disasters), and from some without bounds. The results do not depend on the machine.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Callable
from statistics import fmean

from wander.evals.stats import student_t
from wander.evals.stats.intervals import mean_interval, standard_error

EXAMPLES = (20, 40, 100)

CASES: dict[str, tuple[Callable[[random.Random], float], float, tuple[float, float] | None]] = {
    "uniform": (lambda draw: draw.random(), 0.5, (0, 1)),
    "U-shaped, beta(0.5, 0.5)": (lambda draw: draw.betavariate(0.5, 0.5), 0.5, (0, 1)),
    "skewed, beta(0.1, 1)": (lambda draw: draw.betavariate(0.1, 1.0), 0.1 / 1.1, (0, 1)),
    "9 of 10 zero, else uniform": (lambda draw: draw.random() * (draw.random() < 0.1), 0.05, (0, 1)),
    "0, or -0.1 for 1 of 20": (lambda draw: -0.1 * (draw.random() < 0.05), -0.005, (-0.1, 0)),
    "1.2, or -1 for 1 of 20": (lambda draw: 1.2 if draw.random() < 0.95 else -1.0, 1.09, (-1, 1.2)),
    "exponential, no bounds": (lambda draw: draw.expovariate(1.0), 1.0, None),
    "lognormal, no bounds": (lambda draw: draw.lognormvariate(0, 1), 2.718281828459045**0.5, None),
    "normal, no bounds": (lambda draw: draw.gauss(5, 1), 5.0, None),
}


def measure(case: str, examples: int, samples: int) -> tuple[float, float, float]:
    """Return the coverage of the t interval and of ours, and the ratio of our mean width to that of t."""
    value, mean, bounds = CASES[case]
    draw = random.Random(f"{case}/{examples}")
    held = [0, 0]
    widths = [0.0, 0.0]
    for _ in range(samples):
        values = [value(draw) for _ in range(examples)]
        middle = fmean(values)
        half = student_t.quantile(0.975, examples - 1) * standard_error(values, middle)
        for place, (low, high) in enumerate([(middle - half, middle + half), mean_interval(values, bounds)]):
            if low is not None and high is not None:
                held[place] += low - 1e-12 <= mean <= high + 1e-12
                widths[place] += high - low
    return held[0] / samples, held[1] / samples, widths[1] / widths[0]


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="200 samples per cell")
    samples = 200 if parser.parse_args().quick else 2000
    print("| rewards | " + " | ".join(f"K = {examples}" for examples in EXAMPLES) + " |")
    print("|---|" + "---|" * len(EXAMPLES))
    for case in CASES:
        cells = (measure(case, examples, samples) for examples in EXAMPLES)
        text = " | ".join(f"{student:.3f}, {ours:.3f}, {width:.2f}" for student, ours, width in cells)
        print(f"| {case} | {text} |", flush=True)


if __name__ == "__main__":
    main()
