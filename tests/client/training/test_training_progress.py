"""Progress of a training run: its steps, evaluations, alerts and the time left."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from wander.train.records.files import Alert, CellEvaluation, write_alerts, write_evaluations
from wander_client.terminal.output import Output
from wander_client.training.progress import TrainingProgress, evaluation_text


def entry(step: int, **fields: Any) -> dict[str, Any]:
    return {
        "step": step,
        "steps": 40,
        "reward": step / 40,
        "rewards/won": step / 50,
        "rewards/format": 1.0,
        "entropy": 1.5,
        "tokens": 23.25,
        "groups_without_variance": 0.25,
        "truncated": 0.5,
        "failed": 8,
        "rollouts": 32,
        "seconds/step": 10.0,
        "seconds/generation": 6.0,
        "seconds/environment": 1.0,
        "seconds/update": 3.0,
        **fields,
    }


def evaluation(step: int, cell: str, reward: float) -> CellEvaluation:
    return CellEvaluation(
        step=step,
        cell=cell,
        split="eval",
        task_set_sha256="0" * 64,
        examples=50,
        reward=reward,
        interval=(reward - 0.1, reward + 0.1),
    )


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_alerts(tmp_path, [Alert(step=3, rule="truncated", message="50% of the rollouts were cut short")])
    write_evaluations(
        tmp_path, [evaluation(s, c, r) for s, c, r in ((0, "a", 0.3), (0, "b", 0.9), (4, "a", 0.2))]
    )
    (tmp_path / "checkpoints" / "checkpoint-4").mkdir(parents=True)
    return tmp_path


def record(folder: Path, step: int, **fields: Any) -> dict[str, Any]:
    """Write the metrics of a step as the trainer does."""
    made = entry(step, **fields)
    with (folder / "metrics.jsonl").open("a") as file:
        file.write(json.dumps(made) + "\n")
    return made


def test_exhaustive_evaluations_show_the_number_of_bad_lines() -> None:
    every = evaluation(4, "every", 0.9).model_copy(update={"lines": 533, "metrics": {"bad": 3.0}})
    assert evaluation_text(every) == "every 3 of 533 lines bad"


def test_evaluations_make_the_time_left_longer(folder: Path) -> None:
    shown = TrainingProgress("training", folder, Output("quiet"))
    for step in range(1, 6):
        record(folder, step)
    record(folder, 6, **{"seconds/evaluation": 60.0})
    shown.read_steps()
    assert shown.seconds_left == pytest.approx(34 * 20.0)


def test_a_resumed_run_reads_the_steps_before(tmp_path: Path) -> None:
    for step in range(1, 7):
        record(tmp_path, step)
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"step": 7')  # a line that is being written
    shown = TrainingProgress("training", tmp_path, Output("quiet"))
    shown.read_steps()
    assert [one["step"] for one in shown.entries] == [1, 2, 3, 4, 5, 6]
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write(', "steps": 40}\n')
    shown.read_steps()
    assert (len(shown.entries), shown.entries[-1]["step"]) == (7, 7)


def test_each_step_evaluation_and_alert_is_a_line(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with TrainingProgress("training", folder, Output("human", color="never")) as display:
        for step in range(1, 6):
            display.show(record(folder, step))
    told = capsys.readouterr()
    assert told.out == ""
    lines = told.err.splitlines()
    assert "step 4: evaluation a 0.200 [0.10, 0.30]" in lines
    assert "warning: step 3: 50% of the rollouts were cut short" in lines
    (line,) = [line for line in lines if line.startswith("training  4/40 steps (10%)")]
    assert line.startswith("training  4/40 steps (10%)  mean reward 0.100, entropy ")
    assert line.endswith("25% of the groups taught nothing (equal rewards), about 6:00 left")


def test_in_json_and_quiet_mode_nothing_is_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for mode in ("json", "quiet"):
        with TrainingProgress("training", tmp_path, Output(mode)) as display:
            display.show(record(tmp_path, 1))
    told = capsys.readouterr()
    assert (told.out, told.err) == ("", "")


def test_a_long_step_prints_its_progress(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with TrainingProgress("training", folder, Output("plain", environ={})) as shown:
        shown.played(1, 64)
        assert "rollouts" not in capsys.readouterr().err
        monkeypatch.setattr("wander_client.training.progress.STEP_SECONDS", 0.0)
        shown.played(2, 64)
        shown.played(64, 64)
        assert capsys.readouterr().err == "step 1: 2/64 rollouts\nstep 1: learning from 64 rollouts\n"
