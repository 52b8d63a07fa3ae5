"""Which checkpoint a run goes on from."""

from __future__ import annotations

from pathlib import Path

import pytest
from wander.errors import RunError
from wander.train.records.checkpoints import (
    checkpoint_to_resume,
    give_up_later,
    list_checkpoints,
    list_sealed_steps,
    read_saved,
    seal_checkpoint,
    write_saved,
)
from wander.wire.postings import Checkpoint


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


def test_the_newest_whole_one_is_taken_or_the_one_asked_for(run: Path) -> None:
    found = checkpoint_to_resume(run)
    assert found is not None
    assert found.seal is not None
    assert (found.step, found.seal.step, found.seal.rollouts_bytes) == (10, 10, 1000)
    assert sorted(found.seal.files) == [
        *("inner/state.json", "model.safetensors", "optimizer.pt", "trainer_state.json"),
    ]
    assert (chosen(run, 2), chosen(run, 0)) == (2, None)
    written(run, 11)
    assert chosen(run) == 10, "that of step 11 was being written when the run was killed"
    (run / "checkpoints" / "checkpoint-last").mkdir()
    assert chosen(run) == 10


def test_a_run_that_was_stopped_before_its_first_begins_again(tmp_path: Path) -> None:
    assert chosen(tmp_path) is None
    written(tmp_path, 1)
    assert chosen(tmp_path) is None


def test_weights_kept_elsewhere_are_no_missing_checkpoint(run: Path) -> None:
    write_saved(run, [Checkpoint(step=12, weights_sha256="a" * 64)])
    assert chosen(run) == 10


@pytest.mark.parametrize("name", ["optimizer.pt", "inner/state.json"])
def test_a_damaged_one_is_refused_and_the_newest_sound_one_offered(run: Path, name: str) -> None:
    file = run / "checkpoints" / "checkpoint-10" / name
    file.write_text(file.read_text()[:-1])
    with pytest.raises(RunError, match=f"step 10 cannot be used: .*{name}` is damaged") as refused:
        checkpoint_to_resume(run)
    assert refused.value.hint == f"`wander train --resume {run} --checkpoint 9` goes on from that of step 9"
    file.unlink()
    with pytest.raises(RunError, match=f"{name}` is missing"):
        checkpoint_to_resume(run)
    (run / "checkpoints" / "checkpoint-9" / "seal.json").write_text("{")
    with pytest.raises(RunError) as refused:
        checkpoint_to_resume(run)
    assert "--checkpoint 2`" in str(refused.value.hint)
    with pytest.raises(RunError, match=r"seal\.json` is damaged"):
        checkpoint_to_resume(run, 9)


def test_one_that_is_gone_is_noticed(run: Path) -> None:
    place = run / "checkpoints"
    (place / "checkpoint-10").rename(run / "elsewhere")
    with pytest.raises(RunError, match="has no checkpoint of step 10: it was removed") as refused:
        checkpoint_to_resume(run)
    assert "--checkpoint 9`" in str(refused.value.hint)
    place.rename(run / "gone")
    with pytest.raises(RunError) as refused:
        checkpoint_to_resume(run)
    assert "--checkpoint 0` begins again" in str(refused.value.hint)
    with pytest.raises(RunError, match="no checkpoint of step 5"):
        checkpoint_to_resume(run, 5)


def test_going_on_from_an_older_one_gives_the_later_ones_up(run: Path) -> None:
    write_saved(run, [Checkpoint(step=step, weights_sha256=f"{step:064}") for step in (2, 9, 10)])
    written(run, 11)
    give_up_later(run, 9)
    assert [one.step for one in list_checkpoints(run)] == [2, 9]
    assert [one.step for one in read_saved(run)] == list_sealed_steps(run) == [2, 9]
    assert not (run / "checkpoints" / "checkpoint-11").exists()
    assert chosen(run) == 9


def test_runs_of_before_there_were_seals_go_on(tmp_path: Path) -> None:
    written(tmp_path, 3)
    assert checkpoint_to_resume(tmp_path) is None
    found = checkpoint_to_resume(tmp_path, sealed=False)
    assert found is not None
    assert (found.step, found.seal) == (3, None)
