"""What goes wrong in a training run, told from its metrics while it runs: lines of `alerts.jsonl`.

A rule fires once when its condition begins to hold, and again only after it did not hold for as many steps
as it takes to fire on a condition that lasts (`alerts.steps`): a share that swings around its limit is told
once. The alerts are a function of the metrics alone, so a resumed run tells the same ones.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from wander.evals.store import jsonl
from wander.train.config import GRPOSettings
from wander.train.evaluation.collapse import CollapseWatch, number
from wander.train.records.outcome import BestCheckpoint
from wander.types import Record

ALERTS = "alerts.jsonl"

Rule = Literal[
    "collapse",
    "reward_not_finite",
    "entropy_low",
    "no_variance",
    "truncated",
    "environment_errors",
    "evaluation_flat",
    "best_at_start",
]

FLAT_EVALUATIONS = 3
"""Evaluations in a row that stay where they are, as greedy ones do whose first words never change; also, how
many must be no better than the one before the first step."""
FLAT_SHARE = 0.05
"""How much of what the sampled reward moved evaluations may move and still count as flat."""
MOVED_SHARE = 0.1
"""How much the sampled reward has to move meanwhile, as a share of the larger of its two means."""


class Alert(Record):
    """One alert, at the step that raised it."""

    step: int
    rule: Rule
    message: str


class AlertWatch:
    """Reads the metrics of one step after the other and tells which alerts they raise."""

    def __init__(self, settings: GRPOSettings, begun_with: Callable[[], Mapping[str, float | None]]) -> None:
        """`begun_with` gives what the evaluation before the first step measured, by `CELL/METRIC`."""
        self.section = settings.alerts
        self.output = settings.output
        self._compares = settings.algorithm.loss != "distill" and settings.algorithm.baseline == "group"
        self._begun_with = begun_with
        self._collapse = CollapseWatch(settings)
        self._evaluated = 0
        """Evaluations that told of `output.keep_best`, none of them better than the first weights."""
        self._first_entropies: list[float] = []
        self._held: dict[Rule, int] = {}
        """Steps in a row for which the condition of a rule has held."""
        self._quiet: dict[Rule, int] = {}
        """Steps in a row for which it has not, since it fired; absent means that it may fire."""
        self._rewards: list[float] = []
        """Of the steps since the last evaluation."""
        self._spans: dict[str, list[tuple[float, float]]] = {}
        """For each cell the last evaluations, each with the mean reward of the steps before it."""

    def read(self, entry: Mapping[str, Any]) -> list[Alert]:
        """Return the alerts that a line of `metrics.jsonl` raises."""
        section, lasting = self.section, self.section.steps
        alerts: list[tuple[Rule, str]] = []
        collapsed = self._collapse.read(entry)
        if self._fires("collapse", collapsed is not None, 1):
            alerts.append(("collapse", f"the policy has collapsed: {collapsed}"))
        if self._fires("reward_not_finite", "reward" in entry and entry["reward"] is None, 1):
            alerts.append(("reward_not_finite", "the mean reward of the step is no finite number"))
        entropy, usual = number(entry, "entropy"), None
        if len(first := self._first_entropies) >= section.entropy_first_steps:
            usual = sum(first) / len(first)
        elif entropy is not None:
            first.append(entropy)
        low = entropy is not None and usual is not None and entropy < section.entropy_share * usual
        if self._fires("entropy_low", low, lasting):
            text = (
                f"entropy {entropy:.3g} is below {section.entropy_share:.0%} of the {usual:.3g} it began with"
            )
            alerts.append(("entropy_low", f"{text}, for {lasting} steps"))
        flat = number(entry, "groups_without_variance") if self._compares else None
        if flat is not None and self._fires("no_variance", flat > section.without_variance, lasting):
            text = f"{flat:.0%} of the groups have rewards without variance and teach nothing"
            alerts.append(("no_variance", f"{text}, over {section.without_variance:.0%} for {lasting} steps"))
        cut = number(entry, "truncated")
        if cut is not None and self._fires("truncated", cut > section.truncated, 1):
            alerts.append(("truncated", f"{cut:.0%} of the rollouts were cut short by a limit"))
        errors = environment_errors(entry)
        too_many = errors is not None and errors > section.environment_errors
        if errors is not None and self._fires("environment_errors", too_many, 1):
            alerts.append(("environment_errors", f"{errors:.0%} of the rollouts failed in the environment"))
        if flat_cell := self._find_flat(entry):
            text = (
                f"the evaluation of `{flat_cell}` has not changed {FLAT_EVALUATIONS} times in a row, while "
            )
            alerts.append(("evaluation_flat", f"{text}the sampled reward has: is it greedy, or too small?"))
        if self._never_better(entry):
            text = f"no evaluation has a better `{self.output.keep_best}` than the one before the first step"
            alerts.append(("best_at_start", f"{text}: `best` holds the weights that training began with"))
        return [Alert(step=entry["step"], rule=rule, message=text) for rule, text in alerts]

    def _find_flat(self, entry: Mapping[str, Any]) -> str | None:
        """Return the cell whose evaluations stay the same while the reward of the steps moves."""
        if (reward := number(entry, "reward")) is not None:
            self._rewards.append(reward)
        values = {
            name.split("/")[1]: value
            for name in entry
            if name.startswith("evaluation/") and name.endswith("/reward") and name.count("/") == 2
            if (value := number(entry, name)) is not None
        }
        if not values or not self._rewards:
            return None
        mean = sum(self._rewards) / len(self._rewards)
        self._rewards = []
        flat = None
        for cell, value in values.items():
            spans = self._spans.setdefault(cell, [])
            spans[:] = [*spans, (value, mean)][-FLAT_EVALUATIONS:]
            if len(spans) == FLAT_EVALUATIONS and flat is None and _stays_behind(spans):
                flat = cell
        return flat if self._fires("evaluation_flat", flat is not None, 1) else None

    def _never_better(self, entry: Mapping[str, Any]) -> bool:
        """Tell whether this evaluation is one too many, or the last, that does not beat the first weights."""
        name, mode = self.output.keep_best, self.output.best_mode
        value = number(entry, f"evaluation/{name}")
        if name is None or value is None or self._evaluated < 0:
            return False
        first = self._begun_with().get(name)
        if first is None or BestCheckpoint(metric=name, mode=mode, value=first, step=0).is_beaten_by(value):
            self._evaluated = -1
            return False
        self._evaluated += 1
        last = entry["step"] == entry.get("steps") and self._evaluated < FLAT_EVALUATIONS
        return last or self._evaluated == FLAT_EVALUATIONS

    def _fires(self, rule: Rule, holds: bool, steps: int) -> bool:
        """Count a step for a rule and tell whether it fires now."""
        self._held[rule] = self._held.get(rule, 0) + 1 if holds else 0
        if rule in self._quiet:
            self._quiet[rule] = 0 if holds else self._quiet[rule] + 1
            if self._quiet[rule] < self.section.steps:
                return False
            del self._quiet[rule]
        if self._held[rule] < steps:
            return False
        self._quiet[rule] = 0
        return True


def _stays_behind(spans: Sequence[tuple[float, float]]) -> bool:
    """Tell whether evaluations stay while the sampled reward moves on, and away from them.

    A reward that comes closer to them is no sign: sampling learns what greedy play did before.
    """
    values = [value for value, _ in spans]
    first, last = spans[0][1], spans[-1][1]
    moved = abs(last - first)
    flat = max(values) - min(values) <= FLAT_SHARE * moved
    away = abs(last - values[-1]) > abs(first - values[-1])
    return flat and away and moved > MOVED_SHARE * max(abs(last), abs(first))


def environment_errors(entry: Mapping[str, Any]) -> float | None:
    """Return the share of the step's rollouts that the environment failed; None where it is not known."""
    failed, rollouts = number(entry, "failed/environment"), number(entry, "rollouts")
    return None if failed is None or not rollouts else failed / rollouts


def read_alerts(folder: Path) -> list[Alert]:
    """Return the alerts of a training run, in the order in which they were raised."""
    return jsonl.read_records(folder / ALERTS, Alert)


def write_alerts(folder: Path, alerts: Sequence[Alert]) -> None:
    """Write all alerts anew, whole or not at all; no file for none."""
    if not alerts:
        (folder / ALERTS).unlink(missing_ok=True)
        return
    jsonl.write_records(folder / ALERTS, alerts)
