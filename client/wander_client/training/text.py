"""A training run as text: its steps, evaluations and alerts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from wander.train.grpo import GRPOResult
    from wander.train.records.files import Alert, Outcome
    from wander.wire import RunManifest

    from wander_client.terminal.output import Output

_LABEL = 10
"""Width of labels, the same as in the report of an evaluation."""


def read_facts(folder: Path) -> dict[str, Any]:
    """Return the record of a training run without its rollouts, read without importing the trainer."""
    from wander.train.records.checkpoints import read_saved
    from wander.train.records.files import METRICS, read_alerts, read_entries, read_evaluations, read_outcome

    outcome = read_outcome(folder)
    try:
        steps = read_entries(folder / METRICS)
    except FileNotFoundError:
        steps = []
    return {
        "steps": [
            {name: value for name, value in step.items() if value is None or isinstance(value, int | float)}
            for step in steps
        ],
        "outcome": outcome.model_dump(mode="json") if outcome else None,
        "checkpoints": [line.model_dump(mode="json") for line in read_saved(folder)],
        "evaluations": [line.model_dump(mode="json") for line in read_evaluations(folder)],
        "alerts": [line.model_dump(mode="json") for line in read_alerts(folder)],
    }


def format_facts(manifest: RunManifest, facts: dict[str, Any]) -> Iterator[str]:
    """Yield the lines that describe a training run."""
    from wander.train.records.files import Outcome

    pin = manifest.environment
    yield f"training {manifest.model.name} on {pin.full_name} {pin.version or ''}".rstrip()
    steps = facts["steps"]
    outcome = Outcome.model_validate(facts["outcome"]) if facts["outcome"] else None
    yield _line("steps", f"{len(steps)}{_describe_end(outcome, steps)}")
    for name, unit in (("reward", ""), ("entropy", ""), ("tokens", " a rollout")):
        values = [step[name] for step in steps if step.get(name) is not None]
        if values:
            yield _line(name, f"{values[0]:.4g}{unit} in the first step, {values[-1]:.4g} in the last")
    if rollouts := sum(step.get("rollouts") or 0 for step in steps):
        yield _line("rollouts", f"{rollouts:,.0f} played")
    if facts["checkpoints"]:
        kept = ", ".join(str(line["step"]) for line in facts["checkpoints"])
        yield _line("weights", f"saved after steps {kept}")
    if outcome is not None and outcome.best is not None:
        best = outcome.best
        yield _line("best", f"{best.metric} {best.value:.4g} after step {best.step}")
    for alert in facts["alerts"]:
        yield _line("alert", f"step {alert['step']}: {alert['message']}")
    yield _line("run", manifest.run_id)


def describe_reward(result: GRPOResult) -> str:
    """Return the mean rewards at the start and at the end of a run, and the steps that they are means of."""
    first, final, steps = f"{result.first_reward:.3f}", f"{result.final_reward:.3f}", result.averaged_steps
    if result.steps == 0:
        return "no step was finished"
    if result.steps == 1:
        return f"mean reward {final}"
    if steps == 1:
        return f"mean reward {first} in the first step, {final} in the last step"
    return f"mean reward {first} in the first {steps} steps, {final} in the last {steps} steps"


def repeat_alerts(folder: Path, output: Output) -> None:
    """Print the alerts of a run again, each kind once."""
    from wander.train.records.files import read_alerts

    kinds: dict[str, list[Alert]] = {}
    for alert in read_alerts(folder):
        kinds.setdefault(alert.rule, []).append(alert)
    for rule, alerts in kinds.items():
        first = alerts[0]
        times = f"{len(alerts)} times, " if len(alerts) > 1 else ""
        output.warn(f"alert `{rule}` ({times}first at step {first.step}): {first.message}")


def has_collapsed(folder: Path) -> bool:
    """Return whether a run raised the alert `collapse`."""
    from wander.train.records.files import read_alerts

    return any(alert.rule == "collapse" for alert in read_alerts(folder))


def evaluation_rows(facts: dict[str, Any]) -> tuple[Sequence[str], list[list[str]]]:
    """Return the heading and the rows of the evaluations on held-out examples."""
    from wander.evals.report.document import interval_text
    from wander.train.records.files import CellEvaluation

    rows = []
    for evaluation in map(CellEvaluation.model_validate, facts["evaluations"]):
        reward = "" if evaluation.reward is None else f"{evaluation.reward:.4f}"
        interval = interval_text(*(evaluation.interval or (None, None)))
        if evaluation.lines is not None:
            interval = f"{evaluation.metrics['bad']:.0f} of {evaluation.lines} lines bad"
        rows.append(
            [
                str(evaluation.step),
                evaluation.cell,
                reward,
                interval,
                str(evaluation.examples),
                str(evaluation.failed),
            ]
        )
    return ("step", "cell", "reward", "95% interval", "examples", "failed"), rows


def _describe_end(outcome: Outcome | None, steps: Sequence[dict[str, Any]]) -> str:
    total = next((step["steps"] for step in reversed(steps) if step.get("steps") is not None), None)
    suffix = f" of {total:.0f}" if total is not None else ""
    if outcome is None:
        return f"{suffix}, not finished"
    if outcome.stopped is not None:
        return f"{suffix}, stopped: {outcome.stopped.reason}"
    return suffix if outcome.finished else f"{suffix}, interrupted"


def _line(label: str, text: str) -> str:
    return f"{label:<{_LABEL}}{text}"
