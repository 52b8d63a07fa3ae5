"""`wander train` as it is started on several processes: the whole command under `torchrun`, over gloo."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from command_line import Wander
from wander.models.loading import load_model, weights_digest
from wander.train.records.files import read_evaluations, read_metrics

ENVIRONMENT = """
from wander import Messages, Rubric, SingleTurnEnv, State


def varied(completion: Messages) -> float:
    return sum(map(ord, completion[-1]["content"])) % 7 / 7


class Sayings(SingleTurnEnv):
    broken_from = 99

    def setup_state(self, state: State) -> None:
        if int(state["answer"]) >= self.broken_from:
            raise OSError("nothing works here")


def load_environment(broken_from: int = 99) -> Sayings:
    rows = [{"question": f"say {n}", "answer": str(n)} for n in range(16)]
    made = Sayings(dataset=rows, eval_dataset=rows, rubric=Rubric([varied]), summary="Say something.")
    made.broken_from = broken_from
    return made
"""
SETTINGS = """
[model]
path = "tiny"
device = "cpu"

[batch]
rollouts = 16
group_size = 4
rows_at_once = 4

[sampling]
max_tokens = 6

[schedule]
steps = 2
learning_rate = 1e-3

[evaluation]
every = 2
examples = 5

[output]
checkpoint_every = 1
"""


@pytest.fixture
def sayings(wander: Wander, home: Path) -> Path:
    """A folder with an environment, the settings of a run and a tiny policy."""
    place = home / "sayings"
    place.mkdir()
    (place / "sayings.py").write_text(ENVIRONMENT)
    (place / "pyproject.toml").write_text(
        '[project]\nname = "sayings"\nversion = "0.1.0"\ndependencies = ["wander-sdk"]\n'
        '[project.entry-points."wander.environments"]\nsayings = "sayings:load_environment"\n'
    )
    (home / "grpo.toml").write_text(SETTINGS)
    torch.set_num_threads(1)
    made = wander(
        *("model", "new", "tiny", "--environment", str(place), "--out", "tiny", "--episodes", "12"),
        *("--hidden", "32", "--layers", "1"),
    )
    assert made.status == 0, made.err
    return place


def launched(home: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run `wander train` in two processes."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    return subprocess.run(
        [*command, "-m", "wander_client", "train", *words],
        cwd=home,
        env={**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )


@pytest.mark.full
@pytest.mark.timeout(1800)
def test_two_processes_are_one_run_and_fail_as_one(wander: Wander, sayings: Path, home: Path) -> None:
    begun = launched(home, str(sayings), "grpo.toml", "--out", "two", "--json")
    assert begun.returncode == 0, begun.stdout + begun.stderr[-6000:]
    data = json.loads(begun.stdout)["data"]
    assert data["run_dir"] == str(home / "two")
    assert (data["steps"], data["rollouts"]) == (2, 32)

    alone = wander("train", str(sayings), "grpo.toml", "--out", "one", "--json")
    assert alone.status == 0, alone.err
    steps = read_metrics(home / "two")
    for ours, theirs in zip(steps, read_metrics(home / "one"), strict=True):
        for name in ("loss", "reward", "tokens", "rollouts", "entropy", "grad_norm"):
            assert ours[name] == pytest.approx(theirs[name], rel=1e-4, abs=1e-5), name
    evaluations = [
        [each.model_dump(exclude={"seconds"}) for each in read_evaluations(home / name)]
        for name in ("two", "one")
    ]
    assert evaluations[0] == evaluations[1]
    theirs = dict(load_model(home / "one" / "model", device="cpu").model.named_parameters())
    for name, weight in load_model(home / "two" / "model", device="cpu").model.named_parameters():
        assert torch.allclose(weight, theirs[name], rtol=0, atol=1e-4), name
    assert {path.name for path in (home / "two").iterdir()} == {
        path.name for path in (home / "one").iterdir()
    }

    digest = weights_digest(home / "two" / "model")
    resumed = launched(home, "--resume", "two", "--checkpoint", "1", "--json")
    assert resumed.returncode == 0, resumed.stdout + resumed.stderr[-6000:]
    assert json.loads(resumed.stdout)["data"]["steps"] == 2
    assert weights_digest(home / "two" / "model") == digest
    again = read_metrics(home / "two")
    assert [entry["step"] for entry in again] == [1, 2]
    assert [entry["loss"] for entry in again] == [entry["loss"] for entry in steps]

    # Of the four examples of a step the second process plays the last two.
    fails = launched(home, str(sayings), "grpo.toml", "--out", "fails", "-a", "broken_from=2")
    assert fails.returncode == 1
    assert fails.stdout == ""
    errors = [line for line in fails.stderr.splitlines() if line.startswith("error: ")]
    assert len(errors) == 1, fails.stderr[-6000:]
    assert "process 1 of 2 failed: RunError: all 8 rollouts of a step failed" in errors[0]
    assert "nothing works here" in errors[0]
    assert "hint: run `wander eval`" in fails.stderr
