"""Folders of training runs that somebody sent: what their settings ask for is shown, and never obeyed."""

from __future__ import annotations

import json
import os
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest
from command_line import Wander
from received_folders import change_manifest
from saved_runs import write_run
from wander.train.config import GRPOSettings
from wander_client.training.phases import PhasedCommand
from wander_client.training.run import TrainingCommand
from wander_client.training.tuning import FineTuning

TICTACTOE = str(Path(__file__).parents[3] / "environments" / "tictactoe")
SETTINGS = """
[environment.arguments]
num_examples = 8
num_groups = 2
[batch]
rollouts = 4
group_size = 2
[sampling]
max_tokens = 4
[schedule]
steps = 2
[output]
checkpoint_every = 1
"""

SFT = {"model": {"path": "tiny"}}
ASKS: dict[str, dict[str, Any]] = {
    "inference.python": {"inference": {"engine": "vllm", "python": "/evil/python"}},
    "inference.arguments": {"inference": {"engine": "vllm", "arguments": ["--plugin=/evil"]}},
    "environment.workers": {"environment": {"workers": ["tcp://evil:1"], "worker_token_file": "/etc/passwd"}},
    "model.path": {"model": {"path": "/evil/model"}},
    "environment.arguments.judge_base_url": {"environment": {"arguments": {"judge_base_url": "http://evil"}}},
}


def hand_made(home: Path, settings: dict[str, Any], signature: str | None) -> Path:
    """Write the folder of a training run with a record that no key of this machine signed."""
    run = write_run(home / "runs" / "run", rewards=[1.0])
    change_manifest(run, kind="training")
    asked = GRPOSettings.model_validate({"model": {"path": "tiny"}, **settings})
    command = TrainingCommand(environment="/evil/env", label="evil", settings=asked)
    stored = {"command": command.model_dump(mode="json"), "signature": signature}
    (run / "command.json").write_text(json.dumps(stored))
    return run


@pytest.mark.parametrize("option", ["--resume", "--verify"])
@pytest.mark.parametrize("name", ASKS)
def test_settings_of_a_received_training_run_are_shown_but_not_used(
    name: str, option: str, wander: Wander, home: Path
) -> None:
    run = hand_made(home, ASKS[name], "0" * 64)
    before = {path.name: path.read_bytes() for path in run.iterdir()}
    refused = wander("train", option, str(run), "--json")
    assert refused.json["error"]["code"] == "foreign_record"
    assert name in refused.json["error"]["detail"]
    assert "environment=/evil/env" in refused.json["error"]["detail"]
    assert option in refused.json["error"]["hint"]
    assert {path.name: path.read_bytes() for path in run.iterdir()} == before


def test_phases_of_a_received_run_are_shown_but_not_used(wander: Wander, home: Path) -> None:
    run = hand_made(home, {}, None)
    phased = PhasedCommand(environment="/evil/env", label="evil", phases=[])
    (run / "command.json").write_text(
        json.dumps({"command": phased.model_dump(mode="json"), "signature": None})
    )
    refused = wander("train", "--resume", str(run), "--json")
    assert refused.json["error"]["code"] == "foreign_record"


@pytest.mark.parametrize("rows", ["/etc/passwd", "rows.jsonl"])
def test_a_received_fine_tuning_is_not_continued(rows: str, wander: Wander, home: Path) -> None:
    (home / "sft").mkdir()
    asked = FineTuning.model_validate({"rows": rows, "rows_sha256": "0" * 64, "settings": SFT})
    stored = {"command": asked.model_dump(mode="json"), "signature": None}
    (home / "sft" / "sft.json").write_text(json.dumps(stored))
    refused = wander("model", "sft", "--resume", "sft", "--json")
    assert refused.json["error"]["code"] == "foreign_record"
    assert rows in refused.json["error"]["detail"]


@pytest.mark.full
def test_a_received_run_continues_with_typed_settings(
    wander: Wander, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from wander_client.training.progress import TrainingProgress

    show = TrainingProgress.show

    def interrupt(lines: TrainingProgress, entry: dict[str, object]) -> None:
        show(lines, entry)
        os.kill(os.getpid(), signal.SIGINT)

    words = ("model", "new", "tiny", "--environment", TICTACTOE, "--out", "tiny", "--episodes", "12")
    assert wander(*words, "--hidden", "32", "--layers", "1").status == 0
    (home / "grpo.toml").write_text(SETTINGS)
    begin = ("train", TICTACTOE, "grpo.toml", "--model", "tiny")
    with monkeypatch.context() as patch:
        patch.setattr(TrainingProgress, "show", interrupt)
        assert wander(*begin, "--out", "run").status == 130
    shutil.copytree("run", "moved")
    monkeypatch.setenv("WANDER_STATE_DIR", str(home / "of-the-receiver"))
    assert wander("train", "--resume", "moved", "--json").json["error"]["code"] == "foreign_record"
    other = wander(*begin, "--set", "schedule.steps=3", "--resume", "moved", "--json")
    assert other.json["error"]["code"] == "run_error"
    done = wander(*begin, "--resume", "moved", "--json")
    assert done.status == 0, done.out
    assert done.data["steps"] == 2
