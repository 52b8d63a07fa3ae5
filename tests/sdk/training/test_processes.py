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
from token_server import token_server
from wander.errors import ConfigError
from wander.evals.store.folder import RunFolder
from wander.models.loading import load_model, weights_digest
from wander.train.config import GRPOSettings
from wander.train.distributed import (
    PeerFailed,
    World,
    process_folder,
    rows_and_accumulation,
    shards_policy,
    sharing_work,
)
from wander.train.grpo import train_grpo
from wander.train.records.files import read_evaluations, read_metrics
from wander.train.records.step_hash import read_steps, weights_hash

from .conftest import bandit, opener_of, uneven

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
    """Assert that two runs learned the same, but for the order in which gradients were summed."""
    for first, second in zip(read_metrics(one), read_metrics(other), strict=True):
        for name in ALIKE:
            assert first[name] == pytest.approx(second[name], rel=1e-4, abs=1e-5), name
    theirs = dict(load_model(other / "model", device="cpu").model.named_parameters())
    for name, weight in load_model(one / "model", device="cpu").model.named_parameters():
        assert torch.allclose(weight, theirs[name], rtol=0, atol=1e-4), name


@pytest.mark.full
@pytest.mark.timeout(1200)
def test_two_processes_learn_the_same_as_one(puller: Path, tmp_path: Path) -> None:
    settings = settings_for(puller)
    pair: list[dict[str, Any]] = [
        {"settings": settings, "folder": str(tmp_path / name)} for name in ("two", "again")
    ]
    fails = {"settings": settings, "folder": str(tmp_path / "fails"), "broken_rank": 1}
    whole = settings_for(puller, output={"checkpoint_every": 1})
    kept = {"settings": whole, "folder": str(tmp_path / "kept")}
    half = {"settings": settings, "folder": str(tmp_path / "half"), "even_rank": 0}
    launch([*pair, fails, kept, half], tmp_path)
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
    assert told["hint"] == failed["hint"]
    assert sorted(
        path.name for path in (tmp_path / "kept" / "checkpoints" / "checkpoint-2").glob("rng*")
    ) == [
        "rng_state_0.pth",
        "rng_state_1.pth",
    ]


@pytest.mark.full
@pytest.mark.timeout(1200)
def test_several_processes_prefetch_the_same_as_one(puller: Path, tmp_path: Path) -> None:
    common: dict[str, Any] = {"batch": {"max_staleness": 2}, "schedule": {"steps": 5}}
    settings = settings_for(puller, data={"curriculum": True}, **common)
    jobs: dict[str, dict[str, Any]] = {
        "two": {},
        "again": {},
        "cut": {"interrupt_at": 1},
        "sharded": {"settings": settings | {"parallel": {"policy": "fsdp2"}}},
        "fails": {"broken_rank": 1},
    }
    work = [{"settings": settings, "folder": str(tmp_path / name), **job} for name, job in jobs.items()]
    resumed = {"settings": settings, "folder": str(tmp_path / "cut"), "resume": True}
    with token_server(puller) as server:
        sampling = {"inference": {"engine": "vllm-server", "url": server.url}}
        served = {"settings": settings | sampling, "folder": str(tmp_path / "served")}
        launch([*work, resumed, served], tmp_path)
    assert (len(server.digests), server.disturbed) == (6, 0)
    assert [entry["failed"] for entry in read_metrics(tmp_path / "served")] == [0] * 5
    train_grpo(opener_of(bandit), GRPOSettings.model_validate(settings), tmp_path / "one")

    for name in ("two", "sharded"):
        assert_alike(tmp_path / name, tmp_path / "one")
        assert [entry["staleness"] for entry in read_metrics(tmp_path / name)] == [0, 1, 2, 2, 2]
    rollouts = [list(RunFolder.open(tmp_path / name).rollouts()) for name in ("two", "one")]
    assert [(r.example_id, r.step) for r in rollouts[0]] == [(r.example_id, r.step) for r in rollouts[1]]
    assert [rollout.completion for rollout in rollouts[0]] == [rollout.completion for rollout in rollouts[1]]
    # The same bits each time, also where a checkpoint kept what was played ahead.
    assert len({weights_digest(tmp_path / name / "model") for name in ("two", "again", "cut")}) == 1
    hashes = [read_steps(tmp_path / name / "steps.jsonl") for name in ("two", "cut")]
    assert [line.rollouts for line in hashes[0]] == [line.rollouts for line in hashes[1]]
    assert outcome(work[-1], 1)["error"] == "RunError"
    told = outcome(work[-1], 0)
    assert told["error"] == "PeerFailed"
    assert "process 1 of 2 failed: RunError: all 16 rollouts of a step failed" in told["message"]


@pytest.mark.full
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("loss", ["dapo", pytest.param("grpo", marks=pytest.mark.slow)])
def test_processes_share_rollouts_of_several_sequences(forgetful: Path, tmp_path: Path, loss: str) -> None:
    algorithm = {"loss": loss}
    settings = settings_for(forgetful, algorithm=algorithm)
    sharded = settings_for(forgetful, algorithm=algorithm, parallel={"policy": "fsdp2"})
    jobs = [
        {"settings": each, "folder": str(tmp_path / name), "environment": "uneven", "rows_per_forward": 4}
        for name, each in (("two", settings), ("sharded", sharded))
    ]
    launch(jobs, tmp_path)
    train_grpo(opener_of(uneven), GRPOSettings.model_validate(settings), tmp_path / "one")
    for name in ("two", "sharded"):
        assert_alike(tmp_path / name, tmp_path / "one")
    assert all(1 < entry["sequences"] < 3 for entry in read_metrics(tmp_path / "one"))


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_processes_share_steps_of_rloo_and_distillation(forgetful: Path, tiny: Path, tmp_path: Path) -> None:
    learning: dict[str, dict[str, Any]] = {
        "rloo": {"algorithm": {"loss": "rloo"}},
        "distill": {"algorithm": {"loss": "distill"}, "teacher": {"path": str(tiny)}},
    }
    settings = {name: settings_for(forgetful, **sections) for name, sections in learning.items()}
    jobs = [
        {"settings": each, "folder": str(tmp_path / name), "environment": "uneven"}
        for name, each in settings.items()
    ]
    launch(jobs, tmp_path)
    for name, each in settings.items():
        train_grpo(opener_of(uneven), GRPOSettings.model_validate(each), tmp_path / f"{name}-alone")
        assert_alike(tmp_path / name, tmp_path / f"{name}-alone")


@pytest.mark.full
@pytest.mark.timeout(1200)
def test_a_sharded_policy_learns_the_same_as_a_complete_one(puller: Path, tmp_path: Path) -> None:
    common: dict[str, Any] = {
        "schedule": {"steps": 3},
        "evaluation": {"every": 2, "examples": 7},
        "output": {"keep_best": "eval/payoff", "checkpoint_every": 2},
    }
    settings = settings_for(puller, parallel={"policy": "fsdp2"}, **common)
    sharded = {"settings": settings, "folder": str(tmp_path / "sharded")}
    cut = {"settings": settings, "folder": str(tmp_path / "cut"), "interrupt_at": 1}
    resumed = {"settings": settings, "folder": str(tmp_path / "cut"), "resume": True}
    adapters = settings_for(puller, parallel={"policy": "fsdp2"}, model={"lora_rank": 2})
    refused = {"settings": adapters, "folder": str(tmp_path / "refused")}
    whole = settings_for(puller, **common)
    replicated = {"settings": whole, "folder": str(tmp_path / "replicated")}
    repeated = settings | {"algorithm": {"num_iterations": 3}}
    halfway = {"settings": repeated, "folder": str(tmp_path / "halfway"), "interrupt_at": 1}
    on_the_same = {"settings": repeated, "folder": str(tmp_path / "halfway"), "resume": True}
    launch([refused, sharded, cut, resumed, replicated, halfway, on_the_same], tmp_path)
    train_grpo(opener_of(bandit), GRPOSettings.model_validate(whole), tmp_path / "one")

    assert "adapters" in outcome(refused, 0)["message"]
    assert outcome(sharded, 0) == {"steps": 3, "interrupted": False, "seen": [1, 2, 3]}
    for again in (resumed, on_the_same):
        assert outcome(again, 0) == {"steps": 3, "interrupted": False, "seen": [3]}
    for name in ("sharded", "replicated"):
        assert_alike(tmp_path / name, tmp_path / "one")
        assert untimed(tmp_path / name) == untimed(tmp_path / "one")
    # Stopped and gone on with, it ends with the same bits: the checkpoint has the optimizer's state too.
    for place in ("model", "best"):
        digests = {weights_digest(tmp_path / name / place) for name in ("sharded", "cut")}
        assert len(digests) == 1
    # What a checkpoint keeps is whole, and has the names that everything else loads.
    checkpoint = load_model(tmp_path / "sharded" / "checkpoints" / "checkpoint-3", device="cpu").model
    final = dict(load_model(tmp_path / "sharded" / "model", device="cpu").model.named_parameters())
    assert all(torch.equal(weight, final[name]) for name, weight in checkpoint.named_parameters())
    # Hashed after the first step and the last, of the whole weights.
    hashes = [line.weights for line in read_steps(tmp_path / "sharded" / "steps.jsonl")]
    assert [each is not None for each in hashes] == [True, False, True]
    assert hashes[2] == weights_hash(load_model(tmp_path / "sharded" / "model", device="cpu").model)
    assert hashes == [line.weights for line in read_steps(tmp_path / "cut" / "steps.jsonl")]


def untimed(run: Path) -> list[dict[str, Any]]:
    """Return the evaluations of a run: of a share of the examples each, put together again."""
    return [one.model_dump(exclude={"seconds"}) for one in read_evaluations(run)]


def test_a_policy_is_sharded_only_over_several_processes(puller: Path) -> None:
    settings = GRPOSettings.model_validate(settings_for(puller, parallel={"policy": "fsdp2"}))
    with (
        pytest.raises(ConfigError, match="sharded policy needs several processes") as caught,
        _shared(settings, 1),
    ):
        pass
    assert "torchrun --standalone" in str(caught.value.hint)


def test_distillation_is_not_launched_sharded(puller: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"ACCELERATE_USE_FSDP": "true", "FSDP_VERSION": "2"}.items():
        monkeypatch.setenv(name, value)
    learning = {"algorithm": {"loss": "distill"}, "teacher": {"path": str(puller)}}
    settings = GRPOSettings.model_validate(settings_for(puller, **learning))
    with pytest.raises(ConfigError, match="does not support a sharded policy"), _shared(settings, 2):
        pass


@pytest.mark.parametrize(
    ("variables", "words"),
    [
        ({}, "FSDP1"),
        ({"FSDP_VERSION": "2"}, "could not load the weights"),
        (
            {
                "FSDP_VERSION": "2",
                "FSDP_STATE_DICT_TYPE": "FULL_STATE_DICT",
                "FSDP_ACTIVATION_CHECKPOINTING": "true",
            },
            "fsdp_activation_checkpointing",
        ),
    ],
)
def test_an_unsupported_sharding_of_a_launcher_is_rejected(
    puller: Path, monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], words: str
) -> None:
    for name in ("FSDP_VERSION", "FSDP_STATE_DICT_TYPE", "FSDP_ACTIVATION_CHECKPOINTING"):
        monkeypatch.delenv(name, raising=False)
    for name, value in {"ACCELERATE_USE_FSDP": "true", **variables}.items():
        monkeypatch.setenv(name, value)
    settings = GRPOSettings.model_validate(settings_for(puller))
    assert shards_policy(settings)
    with pytest.raises(ConfigError, match=words), _shared(settings, 2):
        pass


class _Alone(World):
    """One of several processes, which hears nothing of the others."""

    def together(self, work: Any) -> Any:
        return work()


def _shared(settings: GRPOSettings, size: int) -> Any:
    return sharing_work(settings, _Alone(0, size))


def test_groups_must_divide_evenly(puller: Path) -> None:
    settings = GRPOSettings.model_validate(settings_for(puller))
    with _shared(settings, 4):
        pass
    with (
        pytest.raises(ConfigError, match="4 groups per step cannot be shared evenly by 3") as caught,
        _shared(settings, 3),
    ):
        pass
    assert "multiple of 24" in str(caught.value.hint)


@pytest.mark.parametrize(
    ("rollouts", "at_once", "size", "expected"),
    [(32, 8, 1, (8, 4)), (32, 8, 2, (8, 2)), (32, 64, 4, (8, 1)), (48, 16, 2, (12, 2))],
)
def test_rows_of_a_process_are_its_share(
    puller: Path, rollouts: int, at_once: int, size: int, expected: tuple[int, int]
) -> None:
    batch = {"rollouts": rollouts, "group_size": 4, "rows_at_once": at_once}
    settings = GRPOSettings.model_validate(settings_for(puller, batch=batch))
    assert rows_and_accumulation(settings, size) == expected


def test_other_processes_write_outside_of_the_run(tmp_path: Path) -> None:
    run = tmp_path / "run"
    run.mkdir()
    (run / "metrics.jsonl").write_text('{"step": 1}\n')
    (run / "run.json").write_text("{}")
    with process_folder(run, World(0, 2)) as own:
        assert own == run
    with process_folder(run, World(1, 2)) as own:
        assert own != run
        assert [file.name for file in own.iterdir()] == ["metrics.jsonl"]
    assert not own.exists()


def test_a_single_process_always_agrees() -> None:
    world = World()
    assert world.exchange([1, 2]) == [1, 2]
    assert world.from_main(lambda: "made") == "made"
    assert not world.any(False)
    assert not world.wait_for_main_failure()
    with pytest.raises(OSError, match="no"):
        world.together(lambda: (_ for _ in ()).throw(OSError("no")))
    assert issubclass(PeerFailed, Exception)
