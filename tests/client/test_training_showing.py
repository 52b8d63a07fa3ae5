"""`wander runs show` and `wander runs` on a training run: the steps, not the few rollouts that it keeps."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from command_line import HubRoom, Wander
from saved_runs import write_run


def _lines(*entries: dict[str, Any]) -> str:
    return "".join(json.dumps(one) + "\n" for one in entries)


@pytest.fixture
def training(home: Path) -> Path:
    """The folder of a training run, as the trainer leaves it, with weights of one checkpoint."""
    run = write_run(home / "runs" / "grpo", rewards=[0.25, 0.5], model="tiny")
    manifest = json.loads((run / "run.json").read_text())
    (run / "run.json").write_text(json.dumps(manifest | {"kind": "training"}))
    files = {
        "metrics.jsonl": _lines(
            {"step": 1, "steps": 3, "reward": 0.125, "entropy": 2.0, "tokens": 9.5, "rollouts": 32},
            {"step": 2, "steps": 3, "reward": 0.75, "entropy": 1.5, "tokens": 8.0, "rollouts": 32},
        ),
        "evaluations.jsonl": _lines(
            {
                **{"step": 0, "cell": "optimal", "split": "eval", "task_set_sha256": "0" * 64},
                **{"examples": 8, "reward": 0.5, "interval": [0.25, 0.75]},
            }
        ),
        "alerts.jsonl": _lines({"step": 2, "rule": "truncated", "message": "half were cut short"}),
        "checkpoints.jsonl": _lines({"step": 2, "weights_sha256": "1" * 64}),
        "outcome.json": json.dumps({"steps": 2, "finished": False}),
        "checkpoints/checkpoint-2/model.safetensors": "weights",
        "checkpoints/checkpoint-2/optimizer.pt": "moments",
    }
    for name, text in files.items():
        (run / name).parent.mkdir(parents=True, exist_ok=True)
        (run / name).write_text(text)
    return run


def test_show_prints_steps_evaluations_and_alerts(wander: Wander, training: Path) -> None:
    shown = wander("runs", "show", str(training))
    assert shown.status == 0, shown.err
    for words in (
        "training tiny on admin/say-env 0.1.0\n",
        "steps     2 of 3, interrupted\n",
        "reward    0.125 in the first step, 0.75 in the last\n",
        "rollouts  64 played\n",
        "weights   saved after steps 2\n",
        "alert     step 2: half were cut short\n",
        "0\toptimal\t0.5000\t0.2500 to 0.7500\t8\t0\n",
        "checkpoints/checkpoint-2/\t14\t2 files\n",
    ):
        assert words in shown.out
    assert "0.3750" not in shown.out, "the mean of what was kept is no result"
    assert f"wander runs plot {training}" in shown.err


def test_show_as_json_has_every_step_and_file(wander: Wander, training: Path) -> None:
    data = wander("runs", "show", str(training), "--json").data
    assert [one["reward"] for one in data["training"]["steps"]] == [0.125, 0.75]
    assert data["training"]["evaluations"][0]["cell"] == "optimal"
    assert "checkpoints/checkpoint-2/optimizer.pt" in [one["name"] for one in data["files"]]


def test_show_works_for_a_killed_training_run(wander: Wander, training: Path) -> None:
    with (training / "metrics.jsonl").open("a") as file:
        file.write('{"step": 3, "rew')
    for name in ("outcome.json", "evaluations.jsonl", "alerts.jsonl", "checkpoints.jsonl"):
        (training / name).unlink()
    shown = wander("runs", "show", str(training))
    assert shown.status == 0, shown.err
    assert "steps     2 of 3, not finished\n" in shown.out


def test_show_has_no_training_section_for_an_evaluation(wander: Wander, home: Path) -> None:
    run = write_run(home / "runs" / "one", rewards=[1.0, 0.0])
    assert wander("runs", "show", str(run), "--json").data["training"] is None


def test_the_list_distinguishes_training_and_evaluation(wander: Wander, training: Path, home: Path) -> None:
    write_run(home / "runs" / "one", rewards=[1.0, 0.0])
    listed = wander("runs").out
    assert "\ttiny\ttraining\t\t" in listed
    assert "\t2/2\t0.5\t" in listed


def test_training_rejects_the_folder_of_another_run_immediately(wander: Wander, training: Path) -> None:
    (training.parent / "grpo.toml").write_text("[schedule]\nsteps = 1\n")
    words = ("train", "./tictactoe", str(training.parent / "grpo.toml"), "--model", str(training))
    refused = wander(*words, "--out", str(training))
    assert refused.status == 1
    assert f"`{training}` already contains a run" in refused.err
    assert f"wander train --resume {training}" in refused.err
    assert "saving to" not in refused.err


def test_a_missing_settings_file_of_a_training_run_is_named(wander: Wander) -> None:
    refused = wander("train", "acme/wordle", "grpo.tml")
    assert refused.status == 3
    assert "there is no settings file `grpo.tml`" in refused.err
    assert "wander train acme/wordle --dry-run" in refused.err


def test_an_unknown_tracker_gets_a_suggestion(wander: Wander) -> None:
    refused = wander("train", "acme/wordle", "--log", "tensorbord")
    assert (refused.status, "`--log tensorbord` is unknown" in refused.err) == (2, True)
    assert "did you mean `tensorboard`?" in refused.err


def test_posting_a_training_run_prints_no_reward_and_no_leaderboard(
    hub: HubRoom, training: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.publish(training.parent.parent / "say_env-0.1.0-py3-none-any.whl")
    monkeypatch.setenv("WANDER_TOKEN", hub.token)
    done = hub.wander("post", str(training))
    assert done.status == 0, done.err
    assert "reward" not in done.out.splitlines()[0]
    assert "claimed: the trainer reported these metrics" in done.out
    assert "wander leaderboard" not in done.err


@pytest.mark.parametrize(("step", "warned"), [(0, True), (2, False)])
def test_a_best_checkpoint_that_is_the_initial_model_is_reported(
    step: int, warned: bool, home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from wander.train.records.files import BestCheckpoint
    from wander_client.commands.train.train import _report
    from wander_client.context import CommonOptions, Invocation, set_current
    from wander_client.terminal.output import Output

    best = BestCheckpoint(metric="eval/reward", mode="max", value=0.5, step=step)
    result: Any = SimpleNamespace(
        **{"model": home / "model", "steps": 2, "rollouts": 4, "seconds": 1.0, "stopped": None},
        **{"first_reward": 0.1, "final_reward": 0.4, "averaged_steps": 1, "best": best},
    )
    set_current(Invocation(CommonOptions(), Output("plain", environ={})))
    try:
        _report(result, home, [], "acme/wordle")
    finally:
        set_current(None)
    shown = capsys.readouterr()
    assert ("no evaluation was better than the one before training" in shown.err) is warned
    assert ": mean reward 0.100 in the first step, 0.400 in the last step, 2 steps, 4 rollouts" in shown.out


@pytest.mark.parametrize(
    ("steps", "averaged", "text"),
    [
        (0, 1, "no step was finished"),
        (1, 1, "mean reward 0.400"),
        (19, 1, "mean reward 0.100 in the first step, 0.400 in the last step"),
        (40, 4, "mean reward 0.100 in the first 4 steps, 0.400 in the last 4 steps"),
    ],
)
def test_final_rewards_name_the_steps_they_average(steps: int, averaged: int, text: str) -> None:
    from wander_client.training.text import describe_reward

    fields = {"steps": steps, "averaged_steps": averaged, "first_reward": 0.1, "final_reward": 0.4}
    assert describe_reward(SimpleNamespace(**fields)) == text


def test_alerts_are_repeated_once_each_at_the_end(tmp_path: Path) -> None:
    from wander_client.terminal.output import Output
    from wander_client.training.text import has_collapsed, repeat_alerts

    cut = [{"step": step, "rule": "truncated", "message": f"cut at {step}"} for step in (2, 9)]
    (tmp_path / "alerts.jsonl").write_text(_lines(*cut))
    output = Output("json")
    repeat_alerts(tmp_path, output)
    (warning,) = output.warnings
    assert "`truncated` (2 times, first at step 2): cut at 2" in warning
    assert not has_collapsed(tmp_path)
    (tmp_path / "alerts.jsonl").write_text(_lines({"step": 3, "rule": "collapse", "message": "gone"}))
    assert has_collapsed(tmp_path)
