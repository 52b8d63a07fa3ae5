"""The experiment of `experiments/tictactoe` with every size cut down: its settings, steps and table."""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from command_line import Wander

ROOT = Path(__file__).parents[2]
SMALL = (
    "phases.teacher.environment.arguments={num_examples=24}",
    "phases.teacher.rollouts.examples=24",
    "phases.new.tiny={hidden=32,layers=1,vocabulary=330}",
    "phases.warm-up.batch.rows=4",
    "phases.warm-up.schedule={steps=2,warmup_steps=0}",
    *("batch.rollouts=8", "batch.group_size=4", "batch.rows_at_once=8"),
    "sampling.max_tokens=6",
    "evaluation.every=0",
    "phases.rl-1.schedule.steps=1",
    "phases.rl-2.schedule.steps=1",
    "phases.rl-3.schedule.steps=2",
)


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """`run.py`, imported as it imports itself: its folder and `scripts` on the path."""
    import importlib.util

    monkeypatch.syspath_prepend(str(ROOT / "experiments/tictactoe"))
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))
    spec = importlib.util.spec_from_file_location(
        "tictactoe_experiment", ROOT / "experiments/tictactoe/run.py"
    )
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "tictactoe_experiment", module)
    spec.loader.exec_module(module)
    return module


def in_process(script: ModuleType, wander: Wander, folder: Path) -> Any:
    """Return a workplace whose commands run in this process; it keeps what was typed."""

    class InProcess(script.Workplace):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__(folder)
            self.typed: list[str] = []

        def type(self, line: str, **options: object) -> str:
            self.typed.append(line)
            name, *rest = shlex.split(line)
            assert name == "wander"
            rest = [str(self.folder / each) if each.startswith("seed-") else each for each in rest]
            done = wander(*rest)
            assert done.status == 0, f"{line}\n{done.err}"
            return str(done.out)

    return InProcess()


def test_the_experiment_goes_from_nothing_to_its_table_and_goes_on_where_it_was(
    script: ModuleType, wander: Wander, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    torch.set_num_threads(1)
    options = script.arguments(
        ["--local", "--seeds", "3", "--games", "2", *(part for each in SMALL for part in ("--set", each))]
    )
    place = in_process(script, wander, tmp_path / "out")
    experiment = script.Experiment(place, options)
    experiment.train(3)
    stages = experiment.stages(3)
    assert list(stages) == ["teacher", "warm-up", "rl-1", "rl-2", "rl-3"]
    assert stages["rl-3"] == str(tmp_path / "out/seed-3/training/6-rl-3/model")
    assert (Path(stages["rl-3"]) / "config.json").is_file()

    again = script.Experiment(place, options)
    table = script.run(again)
    assert [line for line in place.typed if " train " in line] == place.typed[:1], "trained once"
    assert "phases.new.tiny.seed=3" in place.typed[0]
    assert len(place.typed) == 1 + 5 * 2 + 1
    assert sum("--exhaustive" in line for line in place.typed) == 1
    for stage in ("teacher", "warm-up", "rl-1", "rl-2", "rl-3"):
        assert f"| {stage}, seed-3 | 1 x 2 |" in table
    results = json.loads((tmp_path / "out/results.json").read_text())["seed-3"]
    assert results["stages"]["teacher"]["optimal"]["won"]["mean"] == 0.0
    assert results["stages"]["teacher"]["optimal"]["invalid"] == 0.0
    lines = results["lines"]
    assert lines["lines"] == sum(lines[end] for end in ("won", "drawn", "lost", "unfinished")) > 0
    assert f" {lines['lost'] + lines['unfinished']} of {lines['lines']} |" in table
    assert (tmp_path / "out/table.md").read_text() == table

    script.run(script.Experiment(place, options))
    assert len(place.typed) == 12, "nothing is left to do"
