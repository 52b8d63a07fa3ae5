"""`wander train --verify`, `--checkpoint` and `--allow-changes`, on an environment in a real process."""

from __future__ import annotations

import json
import os
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from command_line import Wander
from wander_client.training.progress import TrainingProgress

TICTACTOE = Path(__file__).parents[3] / "environments" / "tictactoe"
SETTINGS = """
[environment.arguments]
num_examples = 16

[batch]
rollouts = 8
group_size = 4
rows_at_once = 8

[sampling]
max_tokens = 6

[schedule]
steps = 3
learning_rate = 1e-3

[output]
checkpoint_every = 1
"""


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture
def source(home: Path) -> Path:
    """The environment's folder, to be changed."""
    return Path(shutil.copytree(TICTACTOE, home / "tictactoe", ignore=shutil.ignore_patterns("__pycache__")))


@pytest.fixture
def tiny(wander: Wander, source: Path, home: Path) -> Path:
    made = wander(
        *("model", "new", "tiny", "--environment", str(source), "--out", "tiny", "--episodes", "12"),
        *("--hidden", "32", "--layers", "1"),
    )
    assert made.status == 0, made.err
    (home / "grpo.toml").write_text(SETTINGS)
    return home / "tiny"


@pytest.fixture
def stopped(wander: Wander, source: Path, tiny: Path, home: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run that was stopped after its second step."""
    show = TrainingProgress.show

    def interrupt(lines: TrainingProgress, entry: dict[str, Any]) -> None:
        show(lines, entry)
        if entry["step"] == 1:  # seen at the end of the next one
            os.kill(os.getpid(), signal.SIGINT)

    with monkeypatch.context() as patch:
        patch.setattr(TrainingProgress, "show", interrupt)
        done = wander("train", str(source), "grpo.toml", "--model", str(tiny), "--out", "run")
    assert done.status == 130, done.err
    return home / "run"


@pytest.mark.full
def test_a_run_is_verified_unless_its_environment_changed(
    wander: Wander, stopped: Path, source: Path
) -> None:
    same = wander("train", "--verify", "run", "--steps", "2", "--json")
    assert same.status == 0, same.out + same.err
    assert (same.data["same"], same.data["compared"], same.data["difference"]) == (True, 2, None)
    fewer = wander("train", "--verify", "run", "--steps", "3")
    assert fewer.status == 6, fewer.err
    assert "ended        the run has only 2 steps" in fewer.out

    code = source / "tictactoe" / "__init__.py"
    code.write_text(code.read_text() + "\n# changed\n")
    refused = wander("train", "--verify", "run", "--steps", "1")
    assert refused.status == 1
    assert "environment.source_sha256" in refused.out
    assert wander("train", "--verify", "run", "--out", "other").status == 2

    kept = wander("train", "--resume", "run")
    assert kept.status == 1
    assert "environment.source_sha256" in kept.err
    assert "wander train --resume run --allow-changes" in kept.err
    allowed = wander("train", "--resume", "run", "--allow-changes", "--json")
    assert allowed.status == 0, allowed.err
    [change] = json.loads((stopped / "run.json").read_text())["reproduction"]["allowed"]
    assert (change["field"], change["step"]) == ("environment.source_sha256", 2)


@pytest.mark.full
def test_a_damaged_checkpoint_is_rejected_and_an_older_one_is_used(wander: Wander, stopped: Path) -> None:
    optimizer = stopped / "checkpoints" / "checkpoint-2" / "optimizer.pt"
    optimizer.write_bytes(optimizer.read_bytes()[:-1] + b"?")
    refused = wander("train", "--resume", "run")
    assert refused.status == 1
    assert "optimizer.pt` is damaged" in refused.err
    assert "wander train --resume run --checkpoint 1" in refused.err
    done = wander("train", "--resume", "run", "--checkpoint", "1", "--json")
    assert done.status == 0, done.err
    assert done.data["steps"] == 3
    assert wander("train", "x", "grpo.toml", "--checkpoint", "1").status == 2


@pytest.mark.full
def test_how_exactly_a_run_can_be_repeated_is_shown(
    wander: Wander, stopped: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown = wander("runs", "show", "run")
    assert shown.status == 0, shown.err
    assert "exact: one process on a CPU" in shown.out
    assert "torch" in shown.out
    monkeypatch.setenv("WANDER_OUTPUT", "human")
    viewed = wander("view", "run")
    assert viewed.status == 0, viewed.err
    assert "mode    exact: one process on a CPU" in viewed.out
