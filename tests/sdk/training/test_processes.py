"""Training in two processes that share a step, over gloo."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from wander.errors import ConfigError
from wander.evals.store import RunFolder
from wander.models.loading import load_model, weights_digest
from wander.train.config import GRPOSettings
from wander.train.grpo import train_grpo
from wander.train.processes import (
    PeerFailed,
    World,
    own_folder,
    require_divisible,
    rows_and_accumulation,
)
from wander.train.records.record import read_metrics

from .conftest import bandit, opener_of

PROCESS = Path(__file__).resolve().parents[2] / "harness" / "process_of_a_run.py"
ALIKE = ("loss", "reward", "rewards/payoff", "turns", "tokens", "rollouts", "entropy", "grad_norm")


def settings_for(start: Path, **sections: Any) -> dict[str, Any]:
    data: dict[str, Any] = {
        "model": {"path": str(start), "device": "cpu"},
        "batch": {"rollouts": 32, "group_size": 8, "rows_at_once": 8},
        "sampling": {"max_tokens": 6},
        "schedule": {"steps": 2, "learning_rate": 5e-3},
        "output": {"rollouts_every": 1},
    }
    return data | {name: data.get(name, {}) | fields for name, fields in sections.items()}


def launch(jobs: list[dict[str, Any]], folder: Path, **environment: str) -> None:
    """Do the jobs in two processes, one after the other."""
    work = folder / "work.json"
    work.write_text(json.dumps(jobs))
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    done = subprocess.run(
        [*command, str(PROCESS), str(work)],
        env={**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", **environment},
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-6000:]


def outcome(job: dict[str, Any], rank: int) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(Path(f"{job['folder']}.{rank}.json").read_text())
    return found


def assert_alike(one: Path, other: Path) -> None:
    """Assert that two runs learnt the same, but for the order in which gradients were summed."""
    for first, second in zip(read_metrics(one), read_metrics(other), strict=True):
        for name in ALIKE:
            assert first[name] == pytest.approx(second[name], rel=1e-4, abs=1e-5), name
    theirs = dict(load_model(other / "model", device="cpu").model.named_parameters())
    for name, weight in load_model(one / "model", device="cpu").model.named_parameters():
        assert torch.allclose(weight, theirs[name], rtol=0, atol=1e-4), name


@pytest.mark.timeout(1200)
def test_two_processes_learn_what_one_learns(puller: Path, tmp_path: Path) -> None:
    settings = settings_for(puller)
    pair: list[dict[str, Any]] = [
        {"settings": settings, "folder": str(tmp_path / name)} for name in ("two", "again")
    ]
    fails = {"settings": settings, "folder": str(tmp_path / "fails"), "broken_rank": 1}
    whole = settings_for(puller, output={"checkpoint_every": 1})
    kept = {"settings": whole, "folder": str(tmp_path / "kept")}
    shard = {"shard": str(puller), "folder": str(tmp_path / "shard")}
    half = {"settings": settings, "folder": str(tmp_path / "half"), "even_rank": 0}
    launch([*pair, fails, kept, shard, half], tmp_path)
    train_grpo(opener_of(bandit), GRPOSettings.model_validate(settings), tmp_path / "one")

    assert [outcome(pair[0], rank) for rank in (0, 1)] == [
        {"steps": 2, "interrupted": False, "seen": [1, 2]},
        {"steps": 2, "interrupted": False, "seen": []},
    ]
    assert_alike(tmp_path / "two", tmp_path / "one")
    digests = {weights_digest(tmp_path / name / "model") for name in ("two", "again", "kept")}
    assert len(digests) == 1
    assert digests != {weights_digest(puller)}
    # The folder is that of one run: every rollout of the sample once, and each step once.
    rollouts = [list(RunFolder.open(tmp_path / name).rollouts()) for name in ("two", "one")]
    assert [(r.example_id, r.index) for r in rollouts[0]] == [(r.example_id, r.index) for r in rollouts[1]]
    assert [r.completion for r in rollouts[0]] == [r.completion for r in rollouts[1]]

    assert outcome(half, 0)["steps"] == 2, "one process may have no row with an advantage"
    assert weights_digest(tmp_path / "half" / "model") not in {*digests, weights_digest(puller)}

    failed, told = outcome(fails, 1), outcome(fails, 0)
    assert failed["error"] == "RunError"
    assert "nothing works here" in failed["message"]
    assert told["error"] == "PeerFailed"
    assert "process 1 of 2 failed: RunError: all 16 rollouts of a step failed" in told["message"]
    assert sorted(
        path.name for path in (tmp_path / "kept" / "checkpoints" / "checkpoint-2").glob("rng*")
    ) == [
        "rng_state_0.pth",
        "rng_state_1.pth",
    ]

    for rank in (0, 1):
        gathered = outcome(shard, rank)
        assert gathered.pop("weights") > 10
        assert gathered == {"sharded": True, "same": True}


def test_groups_must_be_shared_out_evenly(puller: Path) -> None:
    settings = GRPOSettings.model_validate(settings_for(puller))
    require_divisible(settings, World(0, 4))
    with pytest.raises(ConfigError, match="4 groups a step cannot be shared by 3 processes") as caught:
        require_divisible(settings, World(0, 3))
    assert "multiple of 24" in str(caught.value.hint)


@pytest.mark.parametrize(
    ("rollouts", "at_once", "size", "expected"),
    [(32, 8, 1, (8, 4)), (32, 8, 2, (8, 2)), (32, 64, 4, (8, 1)), (48, 16, 2, (12, 2))],
)
def test_rows_of_a_process_cover_its_share(
    puller: Path, rollouts: int, at_once: int, size: int, expected: tuple[int, int]
) -> None:
    batch = {"rollouts": rollouts, "group_size": 4, "rows_at_once": at_once}
    settings = GRPOSettings.model_validate(settings_for(puller, batch=batch))
    assert rows_and_accumulation(settings, size) == expected


def test_other_processes_write_beside_the_run(tmp_path: Path) -> None:
    run = tmp_path / "run"
    run.mkdir()
    (run / "metrics.jsonl").write_text('{"step": 1}\n')
    (run / "run.json").write_text("{}")
    with own_folder(run, World(0, 2)) as own:
        assert own == run
    with own_folder(run, World(1, 2)) as own:
        assert own != run
        assert [file.name for file in own.iterdir()] == ["metrics.jsonl"]
    assert not own.exists()


def test_a_process_alone_agrees_with_itself() -> None:
    world = World()
    assert world.exchange([1, 2]) == [1, 2]
    assert world.from_main(lambda: "made") == "made"
    assert not world.any(False)
    with pytest.raises(OSError, match="no"):
        world.together(lambda: (_ for _ in ()).throw(OSError("no")))
    assert issubclass(PeerFailed, Exception)
