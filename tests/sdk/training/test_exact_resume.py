"""A run that was stopped, however hard, ends with the bits of one that was not."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from wander.evals.store.folder import RunFolder
from wander.models.loading import weights_digest
from wander.train.config import GRPOSettings
from wander.train.grpo import train_grpo
from wander.train.records.checkpoints import read_saved
from wander.train.records.files import read_metrics
from wander.train.records.step_hash import STEPS, read_steps

from .conftest import bandit, opener_of

STEPS_IN_ALL = 4
TIMES = ("seconds", "step_time", "tokens_per_second")
"""Prefixes of metrics that depend on the clock."""


def settings_for(start: Path, **sections: Any) -> GRPOSettings:
    data: dict[str, Any] = {
        "model": {"path": str(start), "device": "cpu"},
        "batch": {"rollouts": 16, "group_size": 4, "rows_at_once": 8},
        "sampling": {"max_tokens": 6},
        "schedule": {"steps": STEPS_IN_ALL, "learning_rate": 5e-3, "decay": "cosine", "warmup_steps": 1},
        "output": {"rollouts_every": 1, "checkpoint_every": 2},
    }
    for name, fields in sections.items():
        data[name] = {**data.get(name, {}), **fields} if isinstance(fields, dict) else fields
    return GRPOSettings.model_validate(data)


def left_behind(folder: Path) -> dict[str, Any]:
    """Everything in a run's folder that must not depend on whether the run was stopped."""
    last = folder / "checkpoints" / f"checkpoint-{STEPS_IN_ALL}"
    optimizer = torch.load(last / "optimizer.pt", weights_only=True)
    state = json.loads((last / "trainer_state.json").read_text())
    return {
        "model": weights_digest(folder / "model"),
        "checkpoints": [one for one in read_saved(folder) if one.step == STEPS_IN_ALL],
        "optimizer": {
            (number, name): value.numpy().tobytes() if torch.is_tensor(value) else value
            for number, slots in optimizer["state"].items()
            for name, value in slots.items()
        },
        "metrics": [
            {name: value for name, value in entry.items() if not name.startswith(TIMES)}
            for entry in read_metrics(folder)
        ],
        "steps": [
            (line.step, line.rollouts, line.rewards, line.update) for line in read_steps(folder / STEPS)
        ],
        "rollouts": [timeless(rollout.model_dump()) for rollout in RunFolder.open(folder).rollouts()],
        "random numbers": torch.load(last / "rng_state.pth", weights_only=False)["cpu"].numpy().tobytes(),
        "sampler": (last / "sampler.json").read_text(),
        "trained": (state["global_step"], state["max_steps"]),
    }


def timeless(value: Any) -> Any:
    """A value without what a clock told."""
    if isinstance(value, dict):
        return {
            name: timeless(inner)
            for name, inner in value.items()
            if not name.endswith("seconds") and name != "started_at"
        }
    return [timeless(inner) for inner in value] if isinstance(value, list) else value


ADAPTED = {"model": {"lora_rank": 4}}
REFERRED = {**ADAPTED, "algorithm": {"kl": 0.05}}
REPEATED = {"algorithm": {"num_iterations": 3}}
DRAWN = {"data": {"refill_rounds": 2, "curriculum": True, "order": "shuffled", "unseen_share": 0.5}}
MIXED = {"environments": [{"weight": 1, "label": "one"}, {"weight": 2, "label": "two"}]}


@pytest.mark.parametrize(
    "sections",
    [
        {},
        *(pytest.param(each, marks=pytest.mark.full) for each in (REPEATED, ADAPTED, REFERRED, DRAWN, MIXED)),
    ],
    ids=[
        *("accumulation", "between updates on the same rollouts"),
        *("adapters", "adapters and their reference", "curriculum", "mixture"),
    ],
)
def test_a_resumed_run_equals_an_uninterrupted_run(
    puller: Path, tmp_path: Path, sections: dict[str, Any]
) -> None:
    settings = settings_for(puller, **sections)
    train_grpo(opener_of(bandit), settings, tmp_path / "whole")

    def interrupt(entry: dict[str, Any]) -> None:
        if entry["step"] == 2:
            os.kill(os.getpid(), signal.SIGINT)

    part = train_grpo(opener_of(bandit), settings, tmp_path / "part", progress=interrupt)
    assert part.interrupted
    torch.manual_seed(99)  # what the process drew in between must not matter
    resumed = train_grpo(opener_of(bandit), settings, tmp_path / "part", resume=True)
    assert (resumed.steps, resumed.interrupted) == (STEPS_IN_ALL, False)
    whole, part_of = left_behind(tmp_path / "whole"), left_behind(tmp_path / "part")
    for name, value in whole.items():
        assert part_of[name] == value, name
    folders = [path for path in (tmp_path / "part/checkpoints").glob("*/*") if path.is_dir()]
    assert folders == [], "a second set of adapters would double a checkpoint"
    assert len(whole["steps"]) == len(whole["metrics"]) == STEPS_IN_ALL
    assert len(whole["rollouts"]) >= 4


KILLED = """
import importlib.util, os, signal, sys
from pathlib import Path
import torch
from wander.train.records import grpo_record
from wander.train.config import GRPOSettings
from wander.train.grpo import train_grpo

conftest, folder, settings, when = sys.argv[1:]
spec = importlib.util.spec_from_file_location("bandits", conftest)
bandits = importlib.util.module_from_spec(spec)
spec.loader.exec_module(bandits)
torch.set_num_threads(1)
die = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
if when == "sealing":
    grpo_record.seal_checkpoint = die
train_grpo(
    bandits.opener_of(bandits.bandit),
    GRPOSettings.model_validate_json(settings),
    Path(folder),
    resume=when == "sealing",
    progress=lambda entry: die() if when == str(entry["step"]) else None,
)
"""


def killed(folder: Path, settings: GRPOSettings, when: str) -> None:
    """Train in a process of its own, which is killed after a step or while it seals a checkpoint."""
    conftest = Path(__file__).with_name("conftest.py")
    done = subprocess.run(
        [sys.executable, "-c", KILLED, str(conftest), str(folder), settings.model_dump_json(), when],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == -signal.SIGKILL, done.stderr


@pytest.mark.full
def test_a_run_killed_between_steps_or_while_saving_resumes_exactly(puller: Path, tmp_path: Path) -> None:
    settings = settings_for(puller, **DRAWN)
    train_grpo(opener_of(bandit), settings, tmp_path / "whole")

    run = tmp_path / "killed"
    killed(run, settings, "3")
    assert [entry["step"] for entry in read_metrics(run)] == [1, 2, 3]
    assert not (run / "model").exists()
    killed(run, settings, "sealing")
    assert (run / "checkpoints" / "checkpoint-4" / "model.safetensors").is_file()
    assert [one.step for one in read_saved(run)] == [2], "a checkpoint counts when it is sealed"
    resumed = train_grpo(opener_of(bandit), settings, run, resume=True)
    assert (resumed.steps, resumed.interrupted) == (STEPS_IN_ALL, False)
    whole, part = left_behind(tmp_path / "whole"), left_behind(run)
    for name, value in whole.items():
        assert part[name] == value, name


@pytest.mark.full
def test_a_run_killed_before_its_first_checkpoint_starts_again(puller: Path, tmp_path: Path) -> None:
    settings = settings_for(puller, output={"checkpoint_every": 4})

    class Killed(Exception):
        pass

    def die(entry: dict[str, Any]) -> None:
        if entry["step"] == 2:
            raise Killed

    with pytest.raises(Killed):
        train_grpo(opener_of(bandit), settings, tmp_path / "run", progress=die)
    assert len(list(RunFolder.open(tmp_path / "run").rollouts())) == 8
    train_grpo(opener_of(bandit), settings, tmp_path / "run", resume=True)
    train_grpo(opener_of(bandit), settings, tmp_path / "whole")
    assert left_behind(tmp_path / "run") == left_behind(tmp_path / "whole")
