"""The experiment of `experiments/reverse_text` with every size cut down, by the runner of all experiments."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from command_line import Wander
from experiment_runner import experiment_runner, in_process

SMALL = (
    "phases.teacher.rollouts.examples=24",
    "phases.new.tiny={hidden=32,layers=1,characters=true}",
    "phases.warm-up.batch.rows=4",
    "phases.warm-up.schedule={steps=2,warmup_steps=0}",
    *("batch.rollouts=8", "batch.group_size=4", "batch.rows_at_once=8"),
    "sampling.max_tokens=6",
    "evaluation.every=0",
    "phases.rl.schedule.steps=2",
)


@pytest.mark.full
def test_another_environment_is_trained_and_measured_by_the_same_runner(
    wander: Wander, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.set_num_threads(1)
    script = experiment_runner(monkeypatch)
    small = [part for each in SMALL for part in ("--set", each)]
    options = script.arguments(["reverse_text", "--local", "--seeds", "2", "--games", "4", *small])
    assert options.out == Path("runs/reverse_text-experiment")
    place = in_process(script, wander, tmp_path / "out")
    table = script.run(script.Experiment(options.plan, place, options))
    assert [line.split()[1] for line in place.typed] == ["train", "eval", "eval", "eval", "runs"]
    for stage in ("teacher", "warm-up", "rl"):
        assert f"| {stage}, seed-2 | 4 | " in table
    results = json.loads((tmp_path / "out/results.json").read_text())["seed-2"]
    teacher = results["stages"]["teacher"]["texts"]
    assert 0 < teacher["reward"]["low"] < teacher["reward"]["mean"] < 100
    assert (tmp_path / "out/learning_curve.svg").read_text().startswith("<svg")
    assert results["lines"] is None, "replies cannot be enumerated"


def test_an_unknown_experiment_lists_the_experiments(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    script = experiment_runner(monkeypatch)
    with pytest.raises(SystemExit):
        script.arguments(["chess"])
    told = (
        "experiment `chess` not found; choose one of: calculator, reverse_text, self_play, shell, tictactoe"
    )
    assert told in capsys.readouterr().err
