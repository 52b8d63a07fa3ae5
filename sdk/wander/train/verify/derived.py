"""What a run said of its own metrics, derived from them again: its alerts, and why it ended early."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from wander.errors import RunError
from wander.train.config import GRPOSettings
from wander.train.evaluation.evaluator import CellEvaluation, read_evaluations, read_first_values
from wander.train.evaluation.stopping import StoppingWatch, stopped_by_gradient, stopped_by_target
from wander.train.metrics import read_metrics
from wander.train.records.outcome import OUTCOME, Stopped, read_outcome
from wander.train.records.reproduction import trainer_digest
from wander.train.verify.findings import RecordCheck
from wander.train.watch.alerts import ALERTS, AlertWatch, read_alerts
from wander.wire import RunManifest


def check_derived(check: RecordCheck, run: Path, manifest: RunManifest) -> None:
    """Add to the check of the metrics where alerts and the reason of an early end are not those they give."""
    if check.differences:
        check.unchecked.append(f"`{ALERTS}`, and why the run ended: the metrics are not what was written")
        return
    kept = manifest.reproduction
    if kept is None or kept.trainer_sha256 != trainer_digest():
        check.unchecked.append(f"`{ALERTS}`, and why the run ended: another version of the trainer told it")
        return
    try:
        alerts = read_alerts(run)
    except RunError as error:
        check.differ(ALERTS, str(error))
        return
    try:
        settings = GRPOSettings.model_validate(manifest.training)
        entries, evaluations, outcome = read_metrics(run), read_evaluations(run), read_outcome(run)
        watch = AlertWatch(settings, lambda: read_first_values(run))
    except (RunError, ValidationError):  # another check names the file
        return
    made = [alert for entry in entries for alert in watch.read(entry)]
    told = [alert for alert in alerts if alert.rule != "tracker"]
    for alert in (one for one in made if one not in told):
        if outcome is None and alert.step == entries[-1]["step"]:  # metrics are written first
            check.unchecked.append(f"`{ALERTS}` of step {alert.step}: the run ended while it wrote them")
            continue
        check.differ(ALERTS, "the metrics raise another, or it is not here", step=alert.step, key=alert.rule)
    for alert in (one for one in told if one not in made):
        check.differ(ALERTS, "the metrics do not raise it", step=alert.step, key=alert.rule)
    stopped = outcome.stopped if outcome is not None else None
    if stopped is None or not entries or stopped.step != entries[-1]["step"]:
        return  # another check compares the steps
    if stopped not in _ends(settings, entries, evaluations):
        check.differ(OUTCOME, f"`{stopped.reason}` is not what ended it", step=stopped.step, key="stopped")


def _ends(
    settings: GRPOSettings, entries: Sequence[dict[str, Any]], evaluations: Sequence[CellEvaluation]
) -> list[Stopped | None]:
    """Return all that may have ended a run after its last step."""
    step, watch = entries[-1]["step"], StoppingWatch(settings)
    *_, collapsed = (watch.add(entry) for entry in entries)
    there = [line for line in evaluations if line.step == step]
    reached = stopped_by_target(settings.stopping.target, step, there) if there else None
    gradient = stopped_by_gradient(step) if entries[-1].get("grad_norm") is None else None
    return [collapsed, reached, gradient]
