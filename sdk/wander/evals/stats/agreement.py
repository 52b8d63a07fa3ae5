"""Whether a run that repeats another one agrees with it.

Two runs of one model seldom give the same rollouts: sampling is random and kernels differ. So the question is
whether their mean rewards are the same for all that matters. The test is paired by example, as in
`wander.evals.stats.comparison`:

- `agrees`: the 90 % interval of the difference lies within the margin. This is the two one-sided test of
  equivalence at 5 % (Schuirmann 1987, doi:10.1007/BF01068419): a run that is too small shows no agreement.
- `differs`: the 95 % interval of the difference leaves out zero, and equivalence is not shown.
- `inconclusive`: neither; more examples or rollouts would tell.

Where all examples differ by the same, up to one in so many unseen ones may still differ by the whole range
(at 5 % a side), so equal results on a handful of examples show no agreement either.

The margin is a share of what the reward functions can move the reward by: the sum of their absolute weights.
"""

from __future__ import annotations

from collections.abc import Iterable

from wander.errors import ConfigError
from wander.evals.stats.comparison import Comparison, compare_runs
from wander.evals.stats.intervals import standard_error
from wander.evals.stats.student_t import quantile
from wander.types import Rollout
from wander.wire import RunManifest
from wander.wire.verification import Agreement, Verdict

UNCHECKED = ("weights_sha256", "chat_template_sha256")
"""Digests of a model that two runs must share. If only one run states its weights, nobody can tell whether it
is the same model."""
MARGIN = 0.1
"""Share of the rewards' range within which two means count as the same."""


def agreement(
    one: RunManifest,
    before: Iterable[Rollout],
    other: RunManifest,
    after: Iterable[Rollout],
    *,
    margin: float = MARGIN,
) -> Agreement:
    """Test whether a run's repetition agrees with it; raises `RunError` when they share no scored example."""
    if not margin > 0:
        raise ConfigError(f"the margin must be positive, not {margin}")
    found = compare_runs(one, before, other, after)
    weights = [abs(each.weight) for each in one.environment.info.reward_functions]
    span = sum(weights) or 1.0
    width = margin * span
    low, high = _interval(found, span)
    verdict: Verdict = "differs" if found.significant else "inconclusive"
    if low is None or high is None or found.unshared:
        verdict = "inconclusive"
    elif -width < low and high < width:
        verdict = "agrees"
    # What keeps the second run from being one of the same model; the digest of its weights tells most.
    same = one.model.weights_sha256 is not None and one.model.weights_sha256 == other.model.weights_sha256
    names = [] if same else ["name", "weights_sha256", "revision"]
    said = [(name, getattr(one.model, name), getattr(other.model, name)) for name in names]
    models = {f"model.{name}" for name, left, right in said if None not in (left, right) and left != right}
    models |= {f"model.{name}" for name in UNCHECKED if not _is_same_pin(one, other, name)}
    return Agreement(
        run_id=one.run_id,
        rerun_id=other.run_id,
        verdict=verdict,
        before=found.before,
        after=found.after,
        difference=found.difference,
        low=low,
        high=high,
        p_value=found.p_value,
        margin=width,
        examples=found.examples,
        unshared=found.unshared,
        differing=sorted({*found.differing, *models}),
    )


def _is_same_pin(one: RunManifest, other: RunManifest, name: str) -> bool:
    """Tell whether two runs state the same, or neither does; of an unstated template nothing is known."""
    left, right = getattr(one.model, name), getattr(other.model, name)
    return left == right or (name == "chat_template_sha256" and None in (left, right))


def _interval(found: Comparison, span: float) -> tuple[float | None, float | None]:
    """Return the 90 % interval of the paired difference; `span` is how far the reward can move."""
    differences = [pair.difference for pair in found.by_example]
    count, mean = len(differences), found.difference
    if count < 2:
        return None, None
    error = standard_error(differences, mean)
    if error > 1e-12 * max(1.0, span):
        half = quantile(0.95, count - 1) * error
    else:
        half = (1 - 0.05 ** (1 / count)) * span
    return mean - half, mean + half
