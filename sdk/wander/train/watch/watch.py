"""The watch of a training run: a table of rules that raise alerts and can end the run early.

A rule reads the lines of `metrics.jsonl` one after another, so a resumed run raises the same alerts as an
uninterrupted run. A rule fires when its condition has held for a number of consecutive steps. It can fire
again only after the condition did not hold for `LASTING` steps, so that a value that oscillates around its
limit raises a single alert.
"""

from __future__ import annotations

import math
import statistics
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from transformers import TrainerCallback

from wander.train.config import GRPOSettings, OutputSection
from wander.train.correction import GAP, NATS, SHARE, is_corrected
from wander.train.data import OPERATORS, Condition
from wander.train.records.files import (
    EVALUATION,
    Alert,
    AlertKind,
    BestCheckpoint,
    StopKind,
    Stopped,
    number,
    pick_value,
    read_alerts,
    read_first_values,
    write_alerts,
)
from wander.train.records.record import TrainingRecord

FLAT_EVALUATIONS = 3
"""Number of consecutive evaluations that do not change, or are not better than the evaluation before the
first step."""
FLAT_SHARE = 0.05
"""Maximum change of flat evaluations, as a share of the change of the sampled reward."""
MOVED_SHARE = 0.1
"""Minimum change of the sampled reward in the same time, as a share of its larger mean."""

FAILED = "failed/"
"""Prefix of the metrics that count failed rollouts by boundary."""
LASTING = 10
"""Number of consecutive steps before a lasting condition raises an alert, and before it can raise another."""
LOW_ENTROPY = 0.2
"""Share of the initial entropy below which the entropy is low."""
FIRST_ENTROPIES = 10
"""Number of steps whose mean is the initial entropy."""
MOST_FLAT = 0.8
"""Largest share of groups without variance."""
MOST_TRUNCATED = 0.3
"""Largest share of rollouts cut short."""
MOST_DIFFERING = 0.05
"""Largest share of tokens with different probabilities in training and in sampling."""
MOST_ROUNDED = 0.2
"""Largest mean distance of log-probabilities in nats that rounding may cause."""
MOST_FAILED = 0.05
"""Largest share of rollouts that failed."""

Entry = Mapping[str, Any]
"""A line of `metrics.jsonl`."""


@dataclass
class WatchRule:
    """A condition and its consequence."""

    holds: Callable[[Entry], str | None]
    """Function that returns a description of the problem; an empty text without a problem, and None if the
    step lacks the metric."""
    alert: AlertKind | None = None
    """Alert to raise."""
    ends: StopKind | None = None
    """Reason for stopping that is recorded if this rule stops the run; None if it only raises an alert."""
    steps: int = 1
    """Number of consecutive steps before the rule fires."""
    held: int = 0
    """Number of consecutive steps, up to now, that met the condition."""
    quiet: int | None = None
    """Number of consecutive steps without the condition since the rule fired; None if it may fire."""

    def read(self, entry: Entry) -> str | None:
        """Return the reason why the rule fires at a step, or None if it does not fire.

        After it has fired, it can fire again only after `LASTING` steps without its condition.
        """
        text = self.holds(entry)
        if text is None:
            return None
        self.held = self.held + 1 if text else 0
        if self.quiet is not None:
            self.quiet = 0 if text else self.quiet + 1
            if self.quiet < LASTING:
                return None
            self.quiet = None
        if not text or self.held < self.steps:
            return None
        self.quiet = 0
        return f"{text}, for {self.steps} steps" if self.steps > 1 else text


class Rules:
    """All rules of a run; a resumed run reads the steps before its checkpoint again."""

    def __init__(
        self, settings: GRPOSettings, read_first_values: Callable[[], Mapping[str, float | None]]
    ) -> None:
        self._rules = make_rules(settings, read_first_values)

    def read(self, entry: Entry) -> tuple[list[Alert], Stopped | None]:
        """Return the alerts of a step, and the reason if the run ends with it."""
        alerts: list[Alert] = []
        stopped: Stopped | None = None
        for rule in self._rules:
            reason = rule.read(entry)
            if reason is None:
                continue
            if rule.alert is not None:
                alerts.append(Alert(step=entry["step"], rule=rule.alert, message=reason))
            if rule.ends is not None and stopped is None:
                stopped = Stopped(kind=rule.ends, step=entry["step"], reason=reason)
        return alerts, stopped


def make_rules(
    settings: GRPOSettings, read_first_values: Callable[[], Mapping[str, float | None]]
) -> list[WatchRule]:
    """Return the rules of a run; if several end it at the same step, the first one counts.

    `read_first_values` returns the results of the evaluation before the first step, by `CELL/METRIC`.
    """
    stopping = settings.stopping
    compares = settings.algorithm.loss != "distill"
    return [
        WatchRule(_gradient_not_finite, ends="gradient"),
        WatchRule(_Target(stopping.target).reached, ends="target"),
        WatchRule(_Collapse(settings).read, alert="collapse", ends="collapse" if stopping.collapse else None),
        WatchRule(_reward_not_finite, alert="reward_not_finite"),
        WatchRule(_LowEntropy().read, alert="entropy_low", steps=LASTING),
        WatchRule(
            _above(
                "groups_without_variance",
                MOST_FLAT if compares else math.inf,
                "{:.0%} of the groups have rewards without variance and teach nothing",
            ),
            alert="no_variance",
            steps=LASTING,
        ),
        WatchRule(
            _above(
                "truncated",
                MOST_TRUNCATED,
                "{:.0%} of the rollouts were cut short by a limit: `sampling.max_tokens`, "
                "`sampling.max_rollout_tokens` or the model's context",
            ),
            alert="truncated",
        ),
        WatchRule(_failures, alert="failures"),
        WatchRule(_differing_logprobs(settings), alert="logprobs_differ"),
        WatchRule(_FlatEvaluations().read, alert="evaluation_flat"),
        WatchRule(_NeverBetter(settings.output, read_first_values).read, alert="best_at_start"),
    ]


def _gradient_not_finite(entry: Entry) -> str:
    if entry.get("grad_norm", 0.0) is not None:
        return ""
    return "the gradient is not finite; the weights are those before this step"


def _reward_not_finite(entry: Entry) -> str:
    return "the mean reward of the step is not finite" if entry.get("reward", 0.0) is None else ""


def _above(name: str, limit: float, text: str) -> Callable[[Entry], str | None]:
    def read(entry: Entry) -> str | None:
        value = number(entry, name)
        return None if value is None else text.format(value) if value > limit else ""

    return read


def _differing_logprobs(settings: GRPOSettings) -> Callable[[Entry], str | None]:
    """Return the condition on probabilities in training and in sampling.

    If gradients are corrected, rounding may make the two differ, but not other weights: a server that kept
    old weights, for example. They differ on purpose if steps are played ahead or if sampling is truncated.
    """
    if not is_corrected(settings):
        return _above(
            SHARE,
            MOST_DIFFERING,
            f"{{:.0%}} of the tokens have different probabilities in training and in sampling "
            f"(by more than {NATS} nats), and `inference.correction` is not active",
        )
    differ = settings.batch.max_staleness > 0 or settings.sampling.is_truncated
    return _above(
        f"{GAP}/mean",
        math.inf if differ else MOST_ROUNDED,
        "the log-probabilities of tokens in training and in sampling differ by {:.2f} nats on average, more "
        "than rounding explains: the engine may sample from other weights than those of its step",
    )


def _failures(entry: Entry) -> str | None:
    failed, rollouts = number(entry, "failed"), number(entry, "rollouts")
    if failed is None or not rollouts:
        return None
    boundaries = {name.partition("/")[2]: number(entry, name) for name in entry if name.startswith(FAILED)}
    where = ", ".join(f"{boundary} {count:.0f}" for boundary, count in boundaries.items() if count)
    share = failed / rollouts
    return f"{share:.0%} of the rollouts failed ({where})" if share > MOST_FAILED else ""


class _LowEntropy:
    """Compares the entropy with a share of the mean of its first steps."""

    def __init__(self) -> None:
        self._first: list[float] = []

    def read(self, entry: Entry) -> str | None:
        value = number(entry, "entropy")
        if value is None:
            return None
        if len(self._first) < FIRST_ENTROPIES:
            self._first.append(value)
            return ""
        usual = sum(self._first) / FIRST_ENTROPIES
        if value >= LOW_ENTROPY * usual:
            return ""
        return f"the entropy is {value:.3g}, but was {usual:.3g} in the first {FIRST_ENTROPIES} steps"


class _Target:
    """Compares the evaluations of a step with bounds that must all be met."""

    def __init__(self, bounds: Mapping[str, float | str]) -> None:
        texts = {name: bound if isinstance(bound, str) else f">={bound}" for name, bound in bounds.items()}
        self._conditions = {name: Condition.parse(f"value{text}") for name, text in texts.items()}

    def reached(self, entry: Entry) -> str | None:
        """Check a step; raises `ConfigError` for a bound on a metric that no evaluation measures."""
        values = _evaluated(entry)
        if not values or not self._conditions:
            return None
        met = []
        for name, condition in self._conditions.items():
            value = pick_value(values, name)
            if value is None or not OPERATORS[condition.sign](value, condition.value):
                return ""
            met.append(f"`{name}` is {value:.4g}")
        return f"the target is reached: {', '.join(met)}"


class _FlatEvaluations:
    """Detects cells whose evaluations stay the same while the reward of the steps changes."""

    def __init__(self) -> None:
        self._rewards: list[float] = []
        """Rewards of the steps since the last evaluation."""
        self._spans: dict[str, list[tuple[float, float]]] = {}
        """Last evaluations of each cell, each with the mean reward of the steps before it."""

    def read(self, entry: Entry) -> str | None:
        if (reward := number(entry, "reward")) is not None:
            self._rewards.append(reward)
        rewards = {
            name.removesuffix("/reward"): value
            for name, value in _evaluated(entry).items()
            if name.endswith("/reward") and name.count("/") == 1 and value is not None
        }
        if not rewards or not self._rewards:
            return None
        mean = sum(self._rewards) / len(self._rewards)
        self._rewards = []
        flat = []
        for cell, value in rewards.items():
            spans = self._spans.setdefault(cell, [])
            spans[:] = [*spans, (value, mean)][-FLAT_EVALUATIONS:]
            if len(spans) == FLAT_EVALUATIONS and _stays_behind(spans):
                flat.append(cell)
        if not flat:
            return ""
        return (
            f"the evaluation of `{flat[0]}` has not changed {FLAT_EVALUATIONS} times in a row, while the "
            "sampled reward has: check whether it is greedy, or has too few examples"
        )


def _stays_behind(spans: Sequence[tuple[float, float]]) -> bool:
    """Return whether evaluations stay the same while the sampled reward moves away from them.

    A reward that moves towards them is not a problem, because sampling then learns what greedy play could do
    before.
    """
    values = [value for value, _ in spans]
    first, last = spans[0][1], spans[-1][1]
    moved = abs(last - first)
    flat = max(values) - min(values) <= FLAT_SHARE * moved
    away = abs(last - values[-1]) > abs(first - values[-1])
    return flat and away and moved > MOVED_SHARE * max(abs(last), abs(first))


class _NeverBetter:
    """Counts the evaluations that do not beat the first weights."""

    def __init__(
        self, output: OutputSection, read_first_values: Callable[[], Mapping[str, float | None]]
    ) -> None:
        self._output = output
        self._read_first_values = read_first_values
        self._worse: int | None = 0
        """Number of evaluations that were not better; None after an evaluation was better."""

    def read(self, entry: Entry) -> str | None:
        name, mode = self._output.keep_best, self._output.best_mode
        value = number(entry, f"{EVALUATION}{name}")
        if name is None or value is None or self._worse is None:
            return None
        first = self._read_first_values().get(name)
        if first is None or BestCheckpoint(metric=name, mode=mode, value=first, step=0).is_beaten_by(value):
            self._worse = None
            return None
        self._worse += 1
        is_last = entry["step"] == entry.get("steps") and self._worse < FLAT_EVALUATIONS
        if not is_last and self._worse != FLAT_EVALUATIONS:
            return ""
        return (
            f"no evaluation has a better `{name}` than the evaluation before the first step: `best` contains "
            "the initial weights"
        )


def _evaluated(entry: Entry) -> dict[str, float | None]:
    """Return the results of a step's evaluations, by `CELL/METRIC`."""
    return {
        name.removeprefix(EVALUATION): number(entry, name) for name in entry if name.startswith(EVALUATION)
    }


REWARD_DROP = 0.3
"""Minimum fall of the reward, as a share of its best value."""
ENTROPY_BURST = 2.0
"""Multiple of the initial entropy above which the entropy has burst."""
WINDOW = 5
"""Number of steps in a mean. It is smaller at the start, because a bad learning rate can destroy a policy in
two steps."""
FEWEST = 3
"""Minimum number of steps before the first judgment."""
SPREADS = 0.5
"""Minimum fall of the reward, in standard deviations of a step's rollouts."""
DEVIATIONS = 4.0
"""Minimum difference of two means, in standard deviations, that is not chance."""
GROWN = 3.0
"""Growth of the gradient's norm, as a multiple of its first values, that may have caused a collapse."""
MEDIAN_JUMP = 0.954
"""Median difference of two steps, in standard deviations, if it is only chance."""


class _Collapse:
    """Compares the last few steps with the first few and the best few of the run.

    There are three ways to collapse:

    - The reward falls far below its best value: by a share of it, by half a standard deviation of the
      rollouts, and by more than chance.
    - The entropy is nearly zero and the reward has not risen: the policy repeats itself.
    - The entropy bursts and the reward has not risen: the policy writes noise.

    If the entropy falls while the reward rises, the policy learns.
    """

    def __init__(self, settings: GRPOSettings) -> None:
        self._groups = settings.batch.groups
        self._rewards = _Means()
        self._entropies = _Means()
        self._jumps: list[float] = []
        """Distances between consecutive rewards."""
        self._spread = 0.0
        """Largest standard deviation of the rewards in a step so far."""
        self._gradients: list[float] = []
        """Norm of the gradient of each step."""
        self._rate: float | None = None
        """Largest learning rate so far."""

    def read(self, entry: Entry) -> str:
        """Return a description of the collapse; an empty text if the policy has not collapsed."""
        reward, entropy = number(entry, "reward"), number(entry, "entropy")
        if reward is not None:
            self._spread = max(self._spread, number(entry, "rewards/reward/std") or 0.0)
            if self._rewards.last:
                self._jumps.append(abs(reward - self._rewards.last[-1]))
            self._rewards.add(reward)
        if entropy is not None:
            self._entropies.add(entropy)
        if (norm := number(entry, "grad_norm")) is not None:
            self._gradients.append(norm)
        if (rate := number(entry, "learning_rate")) is not None:
            self._rate = max(rate, self._rate or 0.0)
        if reward is None or len(self._rewards.last) < FEWEST:
            return ""
        reason = self._judge_reward() or self._judge_entropy()
        return f"the policy has collapsed: {reason}{self._suspect()}" if reason else ""

    def _suspect(self) -> str:
        """Return the likeliest cause: a gradient that grew, otherwise the learning rate."""
        usual = statistics.median(self._gradients[:WINDOW] or [math.inf])
        worst = max(self._gradients[WINDOW:], default=0.0)
        if worst > GROWN * usual:
            return (
                f". First suspect: the gradient norm rose to {worst:.3g} and was {usual:.3g} at first; lower "
                "`schedule.learning_rate` or `schedule.max_grad_norm`"
            )
        return f". First suspect: `schedule.learning_rate` is {self._rate:.2g}" if self._rate else ""

    def _judge_reward(self) -> str:
        now = self._rewards.now
        for steps, best in self._rewards.best.items():
            least = max(REWARD_DROP * abs(best), SPREADS * self._spread, self._chance(steps))
            if best - now > least:
                return f"the reward fell to {now:.3g}, and was {best:.3g} at its best"
        return ""

    def _judge_entropy(self) -> str:
        # A rise of one standard deviation excuses the entropy. Four of them, as for a fall of the reward,
        # stopped a run at a reward of 0.92 that had started at 0.77 and could only reach 1.
        risen = self._rewards.now - self._rewards.first
        if len(self._entropies.last) < FEWEST or risen > self._chance(WINDOW) / DEVIATIONS:
            return ""
        now, before = self._entropies.now, self._entropies.first
        text = f"the entropy is {now:.3g} and was {before:.3g} at first, and the reward is no higher"
        if now < LOW_ENTROPY * before:
            return f"{text}: the policy repeats itself"
        if now > ENTROPY_BURST * before:
            return f"{text}: the policy writes noise"
        return ""

    def _chance(self, steps: int) -> float:
        """Return the distance by which the mean of the last steps and a mean of `steps` steps may differ by
        chance."""
        # Rollouts of a group share an example, so in the worst case they count as one. The median of the
        # distances between steps measures the real variation, and a collapse does not influence it.
        of_step = self._spread / math.sqrt(self._groups)
        if len(self._jumps) >= 2 * WINDOW:
            of_step = min(of_step, statistics.median(self._jumps) / MEDIAN_JUMP)
        return DEVIATIONS * of_step * math.sqrt(1 / steps + 1 / len(self._rewards.last))


class _Means:
    """Means of a metric: of its first steps, of its last steps, and the best mean of each length."""

    def __init__(self) -> None:
        self.last: deque[float] = deque(maxlen=WINDOW)
        self.first = 0.0
        self.best: dict[int, float] = {}
        """Best mean by number of steps; only the first means cover fewer than `WINDOW` steps."""

    def add(self, value: float) -> None:
        """Add the value of a step."""
        self.last.append(value)
        steps = len(self.last)
        if steps not in self.best:
            self.first = self.now
        self.best[steps] = max(self.now, self.best.get(steps, -math.inf))

    @property
    def now(self) -> float:
        """Mean of the last steps."""
        return sum(self.last) / len(self.last)


class Watch(TrainerCallback):  # type: ignore[misc]
    """Reads the metrics of each step, after the record has written them.

    A resumed run starts with the alerts of the steps in its checkpoint.
    """

    def __init__(self, settings: GRPOSettings, record: TrainingRecord, *, writes: bool = True) -> None:
        """Create the watch; `writes` is False in all processes except one."""
        self.record = record
        self.stopped: Stopped | None = None
        self.alerts: list[Alert] = []
        self._writes = writes
        self._rules = Rules(settings, lambda: read_first_values(record.path))
        known = {(alert.step, alert.rule): alert for alert in read_alerts(record.path)}
        for entry in record.entries:
            raised = self._rules.read(entry)[0]
            self.alerts += [known.get((alert.step, alert.rule), alert) for alert in raised]

    def on_train_begin(self, args: Any, state: Any, control: Any, **unused: Any) -> None:
        """Write the alerts that a resumed run starts with, without those of repeated steps."""
        if self._writes:
            write_alerts(self.record.path, self.alerts)

    def _with_example(self, alert: Alert) -> Alert:
        """Add to an alert of failures how the first of them failed: the metrics only count them."""
        if alert.rule != "failures" or self.record.first_failure is None:
            return alert
        return alert.model_copy(update={"message": f"{alert.message}, first: {self.record.first_failure}"})

    def on_pre_optimizer_step(
        self, args: Any, state: Any, control: Any, model: Any = None, **unused: Any
    ) -> None:
        """Discard gradients that are not finite, because such a step would destroy the weights."""
        parameters = [parameter for parameter in model.parameters() if parameter.grad is not None]
        for gradient in [parameter.grad for parameter in parameters]:
            # This is the process's part of a sharded gradient. If the norm is not finite, no part is.
            part = gradient.to_local() if hasattr(gradient, "to_local") else gradient
            if not torch.isfinite(part).all():
                for parameter in parameters:
                    parameter.grad = None
                return

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **unused: Any) -> Any:
        """Raise the alerts of a step, and decide whether the run ends with it."""
        if not logs or "loss" not in logs:
            return control
        raised, self.stopped = self._rules.read(self.record.entries[-1])
        raised = [self._with_example(alert) for alert in raised]
        self.alerts += raised
        if raised and self._writes:
            write_alerts(self.record.path, self.alerts)
        # All processes end together, even if only one of them has the reason.
        stop = self.record.agree(self.stopped is not None)
        control.should_training_stop = control.should_training_stop or stop
        return control
