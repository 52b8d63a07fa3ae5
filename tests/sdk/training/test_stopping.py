"""What the metrics of the steps say of a collapse, and what an evaluation says of a target."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from wander.errors import ConfigError
from wander.train.config import GRPOSettings, StoppingSection
from wander.train.records.files import EVALUATION, BestCheckpoint, CellEvaluation, pick_value, values_of
from wander.train.records.record import TrainingRecord
from wander.train.watch.watch import Rules, Watch


def steps(**columns: list[float]) -> list[dict[str, Any]]:
    count = len(next(iter(columns.values())))
    entries = [{name: values[i] for name, values in columns.items()} for i in range(count)]
    return [{"step": i + 1, "reward": 0.5, **entry} for i, entry in enumerate(entries)]


def settings_of(section: StoppingSection) -> GRPOSettings:
    cells = [{"name": "optimal"}, {"name": "random"}]
    return GRPOSettings.model_validate(
        {
            "model": {"path": "tiny"},
            "evaluation": {"every": 1, "cells": cells},
            "stopping": section.model_dump(),
        }
    )


def first_stop(section: StoppingSection, entries: list[dict[str, Any]]) -> Any:
    rules = Rules(settings_of(section), dict)
    return next((found for entry in entries if (found := rules.read(entry)[1]) is not None), None)


def test_a_collapse_stops_the_run_by_default() -> None:
    gone = steps(reward=[0.8] * 8 + [0.0] * 4)
    assert first_stop(StoppingSection(collapse=False), gone) is None
    found = first_stop(StoppingSection(), gone)
    assert (found.kind, found.step, found.collapsed) == ("collapse", 10, True)
    assert found.reason == "the policy has collapsed: the reward fell to 0.48, and was 0.8 at its best"


@pytest.mark.parametrize(
    ("metrics", "suspect"),
    [
        ({"grad_norm": [1.0] * 6 + [9.0] * 6, "learning_rate": [0.1] * 12}, "the gradient norm rose to 9"),
        ({"grad_norm": [1.0] * 12, "learning_rate": [0.1] * 12}, "`schedule.learning_rate` is 0.1"),
    ],
)
def test_a_collapse_names_its_first_suspect(metrics: dict[str, Any], suspect: str) -> None:
    found = first_stop(StoppingSection(), steps(reward=[0.8] * 8 + [0.0] * 4, **metrics))
    assert suspect in found.reason


def test_falling_entropy_with_rising_reward_is_not_a_collapse() -> None:
    falling = {"entropy": [0.6, 0.5, 0.4, 0.3, 0.2] + [0.02] * 5, "rewards/reward/std": [0.4] * 10}
    learns = [0.77, 0.8, 0.83, 0.87, 0.9, 0.92, 0.94, 0.95, 0.97, 0.97]  # it cannot be more than 1
    assert first_stop(StoppingSection(), steps(reward=learns, **falling)) is None
    found = first_stop(StoppingSection(), steps(reward=[0.77] * 10, **falling))
    assert "repeats itself" in found.reason


def test_steps_without_a_value_are_skipped() -> None:
    assert first_stop(StoppingSection(collapse=True), [{"step": 1, "reward": None, "entropy": None}]) is None


def cell(name: str, reward: float | None, step: int = 1, **metrics: float) -> CellEvaluation:
    return CellEvaluation(
        step=step,
        cell=name,
        split="eval",
        task_set_sha256="0" * 64,
        examples=10,
        reward=reward,
        metrics=metrics,
    )


def stop_with(target: dict[str, float | str], *cells: CellEvaluation) -> Any:
    """Return how a run ends at a step with these evaluations."""
    values = {f"{EVALUATION}{name}": value for name, value in values_of(cells).items()}
    return first_stop(StoppingSection(target=target), [{"step": 1, "reward": 0.5}, {"step": 2, **values}])


def test_a_target_requires_all_of_its_bounds() -> None:
    target: dict[str, float | str] = {"optimal/drawn": 0.97, "random/lost": "<= 0"}
    good = [cell("optimal", 0.5, drawn=0.98), cell("random", 0.9, lost=0.0)]
    found = stop_with(target, *good)
    assert (found.kind, found.step, found.collapsed) == ("target", 2, False)
    assert found.reason == "the target is reached: `optimal/drawn` is 0.98, `random/lost` is 0"
    assert stop_with(target, good[0], cell("random", 0.9, lost=0.1)) is None
    assert stop_with(target, good[0], cell("random", None)) is None, "a cell that failed meets nothing"
    assert stop_with({}, *good) is None
    assert stop_with(target) is None, "a step without an evaluation"
    with pytest.raises(ConfigError, match="no evaluation has `optimal/drwn`"):
        stop_with({"optimal/drwn": 0.9}, *good)


def test_an_evaluation_gives_its_reward_and_metrics_by_cell() -> None:
    values = values_of([cell("a", 0.25, drawn=1.0)])
    assert pick_value(values, "a/reward") == 0.25
    assert pick_value(values, "a/drawn") == 1.0


def test_the_first_of_equal_values_stays_the_best() -> None:
    best = BestCheckpoint(metric="a/reward", mode="max", value=0.5, step=3)
    assert best.is_beaten_by(0.6)
    assert not best.is_beaten_by(0.5)
    assert best.model_copy(update={"mode": "min"}).is_beaten_by(0.4)


def logged(watch: Watch, entry: dict[str, Any]) -> bool:
    """Log a step as the trainer does, and return whether it then stops."""
    control = SimpleNamespace(should_training_stop=False, should_save=False)
    state = SimpleNamespace(global_step=entry["step"], max_steps=100)
    logs = {"loss": 0.1, **{name: value for name, value in entry.items() if name != "step"}}
    watch.record.on_log(None, state, control, logs=logs)
    watch.on_log(None, state, control, logs=logs)
    return control.should_training_stop


def test_a_gradient_that_is_not_finite_stops_without_an_update(tmp_path: Any) -> None:
    watch = Watch(settings_of(StoppingSection()), TrainingRecord(tmp_path))
    model = torch.nn.Linear(2, 1)
    before = [parameter.detach().clone() for parameter in model.parameters()]
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    model(torch.tensor([[math.inf, 1.0]])).sum().backward()
    watch.on_pre_optimizer_step(None, None, None, model=model)
    optimizer.step()
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))
    assert logged(watch, {"step": 7, "reward": 0.1, "grad_norm": math.nan})
    assert watch.stopped is not None
    assert (watch.stopped.kind, watch.stopped.step) == ("gradient", 7)

    model(torch.tensor([[1.0, 1.0]])).sum().backward()
    watch.on_pre_optimizer_step(None, None, None, model=model)
    optimizer.step()
    assert not all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))


def test_a_resumed_run_restores_its_watch(tmp_path: Any) -> None:
    section = StoppingSection(collapse=True)
    first = Watch(settings_of(section), TrainingRecord(tmp_path))
    assert not any(logged(first, entry) for entry in steps(reward=[0.8] * 8 + [0.0]))
    resumed = TrainingRecord(tmp_path, covered=9)
    assert logged(Watch(settings_of(section), resumed), {"step": 10, "reward": 0.0})
