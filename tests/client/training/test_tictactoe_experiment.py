"""The experiment of `experiments/tictactoe` with every size cut down: its settings, steps and table."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest
import torch
from command_line import Wander
from experiment_runner import experiment_runner, in_process

SMALL = (
    "phases.teacher.environment.arguments={num_examples=24}",
    "phases.teacher.rollouts.examples=24",
    "phases.new.tiny={hidden=32,layers=1,vocabulary=330}",
    "phases.warm-up.batch.rows=4",
    "phases.warm-up.schedule={steps=2,warmup_steps=0}",
    *("batch.rollouts=8", "batch.group_size=4", "batch.rows_at_once=8"),
    "sampling.max_tokens=6",
    "evaluation.every=2",
    "phases.rl.schedule.steps=2",
)


def test_the_settings_of_a_pretrained_model_are_complete_and_seeded(
    wander: Wander, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = experiment_runner(monkeypatch)
    options = script.arguments(
        ["tictactoe", "--local", "--settings", "smollm2.toml", "--set", "model.device=cpu"]
    )
    place = in_process(script, wander, tmp_path / "out")
    experiment = script.Experiment(options.plan, place, options)
    monkeypatch.setattr(experiment, "once", lambda line, *_: place.typed.append(line))
    experiment.train(3)
    line = place.typed[0]
    assert "phases.teacher.rollouts.seed=3" in line
    assert "phases.new" not in line, "there is no such phase"
    planned = wander(*shlex.split(line)[1:], "--dry-run")
    assert planned.status == 0, planned.err
    assert "rl-1" in planned.out


@pytest.mark.full
def test_the_experiment_runs_to_its_table_and_resumes(
    wander: Wander, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.set_num_threads(1)
    script = experiment_runner(monkeypatch)
    small = [part for each in SMALL for part in ("--set", each)]
    options = script.arguments(["tictactoe", "--local", "--seeds", "3", "--games", "2", *small])
    place = in_process(script, wander, tmp_path / "out")
    experiment = script.Experiment(options.plan, place, options)
    experiment.train(3)
    stages = experiment.stages(3)
    assert list(stages) == ["teacher", "warm-up", "rl"]
    assert stages["rl"] == str(tmp_path / "out/seed-3/training/4-rl/model")
    assert (Path(stages["rl"]) / "config.json").is_file()

    again = script.Experiment(options.plan, place, options)
    table = script.run(again)
    assert [line for line in place.typed if " train " in line] == place.typed[:1], "trained once"
    assert "phases.new.tiny.seed=3" in place.typed[0]
    assert len(place.typed) == 1 + 3 * 2 + 2
    assert "-a min_random_move_prob=1.0 -a max_random_move_prob=1.0 --out" in place.typed[1]
    assert sum("--set exhaustive=true" in line for line in place.typed) == 1
    for stage in ("teacher", "warm-up", "rl"):
        assert f"| {stage}, seed-3 | 1 x 2 |" in table
    results = json.loads((tmp_path / "out/results.json").read_text())["seed-3"]
    assert results["stages"]["teacher"]["optimal"]["won"]["mean"] == 0.0
    assert results["stages"]["teacher"]["optimal"]["invalid"] == 0.0
    lines = results["lines"]
    assert lines["lines"] == sum(lines[end] for end in ("won", "drawn", "lost", "unfinished")) > 0
    assert f" {lines['lost'] + lines['unfinished']} of {lines['lines']} | {lines['invalid_moves']} |" in table
    assert (tmp_path / "out/table.md").read_text() == table

    script.run(script.Experiment(options.plan, place, options))
    assert len(place.typed) == 10, "nothing is left to do"
