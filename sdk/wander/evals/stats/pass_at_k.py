"""pass@k and pass^k: the probability that at least one of k rollouts passes, and that all of them pass.

If c of the n scored rollouts of an example passed, both have an unbiased estimate: the share of the
subsets of k rollouts that contain at least one pass, or only passes.

- pass@k = 1 - C(n - c, k) / C(n, k) (Chen et al. 2021, "Evaluating Large Language Models Trained on Code",
  arXiv:2107.03374, equation 1);
- pass^k = C(c, k) / C(n, k) (Yao et al. 2024, "tau-bench", arXiv:2406.12045, section 3).

Plugging the share c / n into 1 - (1 - p)^k or p^k instead is biased: downwards for the first, upwards for the
second. A run's value is the mean over examples, with the interval of 0/1 rewards clustered by example. This
is safe, because each example contributes a value in [0, 1] whose variance is at most that of a 0/1 reward.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import comb

from wander.evals.stats.intervals import clustered_wilson_interval
from wander.wire.run_record import PassRate


def pass_at_k(n: int, passed: int, k: int) -> float:
    """Return the unbiased estimate that at least one of `k` rollouts passes, if `passed` of `n` did."""
    _check(n, passed, k)
    return (comb(n, k) - comb(n - passed, k)) / comb(n, k)


def pass_hat_k(n: int, passed: int, k: int) -> float:
    """Return the unbiased estimate that all of `k` rollouts pass, if `passed` of `n` did."""
    _check(n, passed, k)
    return comb(passed, k) / comb(n, k)


def pass_rates(counts: Iterable[tuple[int, int]]) -> list[PassRate]:
    """Return both rates for k = 1, 2, 4... and the largest k, from (scored, passed) counts of each example.

    An example needs k scored rollouts for an unbiased estimate; otherwise it is left out of the row for k.
    """
    present = sorted((n, passed) for n, passed in counts if n)
    most = present[-1][0] if present else 0
    if most < 2:
        return []  # the rates of a single rollout are the mean itself
    powers = [1 << place for place in range(most.bit_length()) if 1 << place < most]
    return [_rate([example for example in present if example[0] >= k], k) for k in (*powers, most)]


def _rate(counts: Sequence[tuple[int, int]], k: int) -> PassRate:
    rollouts = sum(n for n, _ in counts)
    any_pass = [pass_at_k(n, passed, k) for n, passed in counts]
    all_pass = [pass_hat_k(n, passed, k) for n, passed in counts]
    any_low, any_high = clustered_wilson_interval(any_pass, rollouts // k)
    all_low, all_high = clustered_wilson_interval(all_pass, rollouts // k)
    return PassRate(
        k=k,
        examples=len(counts),
        pass_at_k=sum(any_pass) / len(any_pass),
        pass_at_k_low=any_low,
        pass_at_k_high=any_high,
        pass_hat_k=sum(all_pass) / len(all_pass),
        pass_hat_k_low=all_low,
        pass_hat_k_high=all_high,
    )


def _check(n: int, passed: int, k: int) -> None:
    if not 0 <= passed <= n or not 1 <= k <= n:
        raise ValueError(f"cannot estimate {passed} passes of {n} rollouts for k = {k}")
