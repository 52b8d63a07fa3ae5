"""pass@k and pass^k: whether one of k rollouts passes, and whether all of them do.

Of an example with n scored rollouts of which c passed, both have an unbiased estimate, the share of the
subsets of k rollouts that hold a pass, or nothing else:

- pass@k = 1 - C(n - c, k) / C(n, k) (Chen et al. 2021, "Evaluating Large Language Models Trained on Code",
  arXiv:2107.03374, equation 1);
- pass^k = C(c, k) / C(n, k) (Yao et al. 2024, "tau-bench", arXiv:2406.12045, section 3).

Plugging the share c / n into 1 - (1 - p)^k or p^k instead is biased: downwards for the first, upwards for the
second. A run's value is the mean over examples, with the interval of 0/1 rewards clustered by example: what
an example contributes lies in [0, 1], and its variance is at most that of a 0/1 reward.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import comb

from wander.evals.stats.intervals import clustered_wilson_interval
from wander.wire.run_record import PassRate


def pass_at_k(n: int, passed: int, k: int) -> float:
    """Return the unbiased estimate that at least one of `k` rollouts passes, when `passed` of `n` did."""
    _check(n, passed, k)
    return (comb(n, k) - comb(n - passed, k)) / comb(n, k)


def pass_hat_k(n: int, passed: int, k: int) -> float:
    """Return the unbiased estimate that all of `k` rollouts pass, when `passed` of `n` did."""
    _check(n, passed, k)
    return comb(passed, k) / comb(n, k)


def pass_rates(counts: Iterable[tuple[int, int]]) -> list[PassRate]:
    """Return both rates for k = 1, 2, 4... and the greatest k, of (scored, passed) rollouts of each example.

    An example with fewer scored rollouts than k has no unbiased estimate and is left out of that row.
    """
    present = sorted((n, passed) for n, passed in counts if n)
    most = present[-1][0] if present else 0
    if most < 2:
        return []  # the rates of a single rollout are the mean itself
    powers = [1 << place for place in range(most.bit_length()) if 1 << place < most]
    return [_rate([example for example in present if example[0] >= k], k) for k in (*powers, most)]


def _rate(counts: Sequence[tuple[int, int]], k: int) -> PassRate:
    rollouts = sum(n for n, _ in counts)
    some = [pass_at_k(n, passed, k) for n, passed in counts]
    whole = [pass_hat_k(n, passed, k) for n, passed in counts]
    some_low, some_high = clustered_wilson_interval(some, rollouts // k)
    whole_low, whole_high = clustered_wilson_interval(whole, rollouts // k)
    return PassRate(
        k=k,
        examples=len(counts),
        pass_at_k=sum(some) / len(some),
        pass_at_k_low=some_low,
        pass_at_k_high=some_high,
        pass_hat_k=sum(whole) / len(whole),
        pass_hat_k_low=whole_low,
        pass_hat_k_high=whole_high,
    )


def _check(n: int, passed: int, k: int) -> None:
    if not 0 <= passed <= n or not 1 <= k <= n:
        raise ValueError(f"there is no estimate for {passed} passes of {n} rollouts and k = {k}")
