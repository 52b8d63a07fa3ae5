"""Which checkpoints a run keeps, and which one it goes on from."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from wander.errors import RunError
from wander.train.config import GRPOSettings
from wander.train.grpo import train_grpo
from wander.train.hugging_face_trainer import checkpoint_arguments
from wander.train.records.checkpoints import (
    checkpoint_to_resume,
    give_up_later,
    list_checkpoints,
    list_sealed_steps,
    read_saved,
    read_seal,
    seal_checkpoint,
    write_saved,
)
from wander.train.step_trainer import CHECKPOINT_STEPS
from wander.wire.postings import Checkpoint

from .conftest import bandit, opener_of


def written(run: Path, step: int) -> Path:
    """A checkpoint that is not sealed yet."""
    folder = run / "checkpoints" / f"checkpoint-{step}"
    (folder / "inner").mkdir(parents=True)
    for name in ("model.safetensors", "optimizer.pt", "trainer_state.json", "inner/state.json"):
        (folder / name).write_text(f"{name} {step}")
    return folder


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run with whole checkpoints of steps 2, 9 and 10."""
    for step in (2, 9, 10):
        written(tmp_path, step)
        assert seal_checkpoint(tmp_path, step, rollouts_bytes=step * 100).name == f"checkpoint-{step}"
    return tmp_path


def chosen(run: Path, at: int | None = None) -> int | None:
    found = checkpoint_to_resume(run, at)
    return found.step if found else None


def test_the_newest_complete_or_the_requested_checkpoint_is_used(run: Path) -> None:
    found = checkpoint_to_resume(run)
    assert found is not None
    seal = read_seal(found.path)
    assert (found.step, seal.step, seal.rollouts_bytes) == (10, 10, 1000)
    assert sorted(seal.files) == [
        *("inner/state.json", "model.safetensors", "optimizer.pt", "trainer_state.json"),
    ]
    assert (chosen(run, 2), chosen(run, 0)) == (2, None)
    written(run, 11)
    assert chosen(run) == 10, "that of step 11 was being written when the run was killed"
    (run / "checkpoints" / "checkpoint-last").mkdir()
    assert chosen(run) == 10


def test_a_run_stopped_before_its_first_checkpoint_starts_again(tmp_path: Path) -> None:
    assert chosen(tmp_path) is None
    written(tmp_path, 1)
    assert chosen(tmp_path) is None


def test_weights_stored_elsewhere_are_not_a_missing_checkpoint(run: Path) -> None:
    write_saved(run, [Checkpoint(step=12, weights_sha256="a" * 64)])
    assert chosen(run) == 10


@pytest.mark.parametrize("name", ["optimizer.pt", "inner/state.json"])
def test_a_damaged_checkpoint_is_rejected_and_an_intact_one_is_suggested(run: Path, name: str) -> None:
    file = run / "checkpoints" / "checkpoint-10" / name
    file.write_text(file.read_text()[:-1])
    with pytest.raises(
        RunError, match=f"cannot use the checkpoint of step 10: .*{name}` is damaged"
    ) as refused:
        checkpoint_to_resume(run)
    assert f"`wander train --resume {run} --checkpoint 9`" in str(refused.value.hint)
    file.unlink()
    with pytest.raises(RunError, match=f"{name}` is missing"):
        checkpoint_to_resume(run)
    (run / "checkpoints" / "checkpoint-9" / "seal.json").write_text("{")
    with pytest.raises(RunError) as refused:
        checkpoint_to_resume(run)
    assert "--checkpoint 2`" in str(refused.value.hint)
    with pytest.raises(RunError, match=r"seal\.json` is damaged"):
        checkpoint_to_resume(run, 9)


def test_a_missing_checkpoint_is_detected(run: Path) -> None:
    place = run / "checkpoints"
    (place / "checkpoint-10").rename(run / "elsewhere")
    with pytest.raises(RunError, match=r"checkpoint of step 10 .* was removed") as refused:
        checkpoint_to_resume(run)
    assert "--checkpoint 9`" in str(refused.value.hint)
    place.rename(run / "gone")
    with pytest.raises(RunError) as refused:
        checkpoint_to_resume(run)
    assert "--checkpoint 0`" in str(refused.value.hint)
    with pytest.raises(RunError, match=r"checkpoint of step 5 .* was removed"):
        checkpoint_to_resume(run, 5)


def test_resuming_from_an_older_checkpoint_discards_later_ones(run: Path) -> None:
    write_saved(run, [Checkpoint(step=step, weights_sha256=f"{step:064}") for step in (2, 9, 10)])
    written(run, 11)
    give_up_later(run, 9)
    assert [one.step for one in list_checkpoints(run)] == [2, 9]
    assert [one.step for one in read_saved(run)] == list_sealed_steps(run) == [2, 9]
    assert not (run / "checkpoints" / "checkpoint-11").exists()
    assert chosen(run) == 9


def steps_kept(run: Path) -> list[int]:
    return [one.step for one in list_checkpoints(run)]


class Killed(Exception):
    pass


def bandit_settings(start: Path, steps: int, **output: Any) -> GRPOSettings:
    return GRPOSettings.model_validate(
        {
            "model": {"path": str(start), "device": "cpu"},
            "batch": {"rollouts": 4, "group_size": 2, "rows_at_once": 4},
            "sampling": {"max_tokens": 2},
            "schedule": {"steps": steps},
            "output": {"rollouts_every": 0, **output},
        }
    )


def test_the_default_checkpoints_lose_few_steps_and_little_disk(puller: Path, tmp_path: Path) -> None:
    steps = 2 * CHECKPOINT_STEPS + 3
    settings, run = bandit_settings(puller, steps), tmp_path / "run"

    def die(entry: dict[str, Any]) -> None:
        if entry["step"] == steps - 1:
            raise Killed

    with pytest.raises(Killed):
        train_grpo(opener_of(bandit), settings, run, progress=die)
    assert steps_kept(run) == [CHECKPOINT_STEPS, 2 * CHECKPOINT_STEPS]
    seen: list[int] = []
    train_grpo(
        opener_of(bandit), settings, run, resume=True, progress=lambda entry: seen.append(entry["step"])
    )
    assert seen == [steps - 2, steps - 1, steps]
    assert not (run / "checkpoints").exists(), "the model of the end is all that stays"


def test_all_or_the_newest_checkpoints_are_kept(puller: Path, tmp_path: Path) -> None:
    train_grpo(opener_of(bandit), bandit_settings(puller, 4, checkpoint_every=1), tmp_path / "all")
    assert steps_kept(tmp_path / "all") == [1, 2, 3, 4]
    settings = bandit_settings(puller, 4, checkpoint_every=1, checkpoints_kept=3)
    train_grpo(opener_of(bandit), settings, tmp_path / "newest")
    assert steps_kept(tmp_path / "newest") == [2, 3, 4]
    assert checkpoint_arguments(5, usual=20, kept=1)["save_total_limit"] == 2, "one may be damaged"
    assert checkpoint_arguments(0, usual=20, kept=0)["save_strategy"] == "no"
