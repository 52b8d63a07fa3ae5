"""Watches a training run while it learns: raises alerts, and ends the run when it is time."""

from __future__ import annotations

from typing import Any

import torch
from transformers import TrainerCallback

from wander.train.config import GRPOSettings
from wander.train.evaluation.evaluator import read_first_values
from wander.train.records.outcome import Stopped
from wander.train.records.record import TrainingRecord
from wander.train.watch.alerts import Alert, Rules, write_alerts


class Watch(TrainerCallback):  # type: ignore[misc]
    """Reads the metrics of each step; it must be called after the record, which writes them.

    A resumed run begins with the alerts of the steps that its checkpoint covers.
    """

    def __init__(self, settings: GRPOSettings, record: TrainingRecord, *, writes: bool = True) -> None:
        """`writes` is False in all but one of several processes."""
        self.record = record
        self.stopped: Stopped | None = None
        self.alerts: list[Alert] = []
        self._writes = writes
        self._rules = Rules(settings, lambda: read_first_values(record.path))
        for entry in record.entries:
            self.alerts += self._rules.read(entry)[0]

    def on_train_begin(self, args: Any, state: Any, control: Any, **unused: Any) -> None:
        """Write the alerts that a resumed run begins with, without those of steps that are repeated."""
        if self._writes:
            write_alerts(self.record.path, self.alerts)

    def on_pre_optimizer_step(
        self, args: Any, state: Any, control: Any, model: Any = None, **unused: Any
    ) -> None:
        """Keep the weights as they are if a gradient is not finite: such a step would destroy them."""
        parameters = [parameter for parameter in model.parameters() if parameter.grad is not None]
        for gradient in [parameter.grad for parameter in parameters]:
            # Of a sharded gradient, this process's part: a norm that is not finite makes every part so.
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
        self.alerts += raised
        if raised and self._writes:
            write_alerts(self.record.path, self.alerts)
        # All processes end together, whichever of them saw the reason.
        stop = self.record.agree(self.stopped is not None)
        control.should_training_stop = control.should_training_stop or stop
        return control
