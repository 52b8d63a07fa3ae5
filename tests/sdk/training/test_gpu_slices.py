"""What a slice brings back is what the next one needs, and nothing else is gone on from."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import pytest
from gpu_scripts import gpu_script

slices = gpu_script("slices")
IDENTITY = {"experiment": "tictactoe", "settings": "tiny.toml", "options": "--seeds 0"}


def write(path: Path, content: str | bytes = "x") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def make_phase(folder: Path, *, finished: bool, adapters: bool, steps: tuple[int, ...] = (10, 20)) -> None:
    """Write what a phase of training leaves: checkpoints, the model, and maybe how it ended."""
    write(folder / "metrics.jsonl", json.dumps({"step": 3, "steps": 9, "reward": 0.5}) + "\n")
    for step in steps:
        write(folder / f"checkpoints/checkpoint-{step}/optimizer.pt", "moments")
        write(folder / f"checkpoints/checkpoint-{step}/seal.json", "{}")
    write(folder / "model/config.json", "{}")
    write(folder / "model/model.safetensors", "weights")
    if adapters:
        write(folder / "model/adapters/adapter_model.safetensors", "few weights")
    if finished:
        write(folder / "outcome.json", json.dumps({"steps": 9, "finished": True}))


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run of four phases, of which the last was stopped."""
    run = tmp_path / "runs/tictactoe-tiny"
    training = run / "seed-0/training"
    write(run / "done.json", "{}")
    write(training / "command.json", "{}")
    write(training / "model/model.safetensors", "a second name of the last phase's")
    write(training / "1-teacher/rollouts.jsonl", "games\n")
    write(training / "1-teacher/summary.json", "{}")
    write(training / "1-new/model/model.safetensors", "made whole")
    make_phase(training / "2-warm-up", finished=True, adapters=False)
    make_phase(training / "3-rl-1", finished=True, adapters=True)
    make_phase(training / "4-rl-2", finished=False, adapters=True)
    return run


def kept(run: Path, **options: bool) -> set[str]:
    training = run / "seed-0/training"
    found = slices.files_to_keep(run, **options)
    return {file.relative_to(training).as_posix() for file in found if file.is_relative_to(training)}


def test_finished_phases_keep_their_model_and_the_stopped_one_its_newest_checkpoint(run: Path) -> None:
    assert kept(run) == {
        "command.json",
        *("1-teacher/rollouts.jsonl", "1-teacher/summary.json", "1-new/model/model.safetensors"),
        *(f"2-warm-up/{name}" for name in ("metrics.jsonl", "outcome.json")),
        *(f"2-warm-up/model/{name}" for name in ("config.json", "model.safetensors")),
        *(f"3-rl-1/{name}" for name in ("metrics.jsonl", "outcome.json", "model/config.json")),
        "3-rl-1/model/adapters/adapter_model.safetensors",
        *(f"4-rl-2/checkpoints/checkpoint-20/{name}" for name in ("optimizer.pt", "seal.json")),
        "4-rl-2/metrics.jsonl",
    }
    assert "1-teacher/rollouts.jsonl" not in kept(run, bare=True)
    assert [model.parent.name for model in slices.merged_models(run)] == ["3-rl-1"]


def test_the_best_weights_of_an_unfinished_phase_are_kept(run: Path) -> None:
    best = run / "seed-0/training/4-rl-2/best"
    write(best / "model.safetensors", "whole")
    assert "4-rl-2/best/model.safetensors" in kept(run)
    write(best / "adapters/adapter_model.safetensors")
    assert "4-rl-2/best/model.safetensors" not in kept(run)
    assert [model.name for model in slices.merged_models(run)] == ["model", "best"]


@pytest.fixture
def brought(run: Path, tmp_path: Path) -> Path:
    """A slice that was brought back, without models to merge."""
    for file in run.glob("seed-0/training/3-rl-1/model/adapters/*"):
        file.unlink()
    (run / "seed-0/training/3-rl-1/model/adapters").rmdir()
    slices.write_count(run, 1, 400.0)
    slices.bring_back(run, tmp_path / "back", IDENTITY, 1, 400.0)
    return tmp_path / "back"


def test_the_next_slice_finds_files_of_the_previous_one(brought: Path, run: Path, tmp_path: Path) -> None:
    there = tmp_path / "elsewhere" / run.name
    slices.take_over(brought, there, IDENTITY)
    assert kept(there) == kept(run)
    assert slices.read_count(there) == {"slice": 1, "seconds": 400.0}
    assert not list(there.parent.glob(".coming-*"))


def test_the_run_with_more_steps_is_kept(
    brought: Path, run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    slices.take_over(brought, run, IDENTITY)
    assert "continues" in capsys.readouterr().out
    slices.write_count(run, 0, 0.0)
    write(run / "mine.txt", "keep me")
    slices.take_over(brought, run, IDENTITY)
    assert not (run / "mine.txt").exists()
    (before,) = run.parent.glob(f"{run.name}-before-*/{run.name}/mine.txt")
    assert before.read_text() == "keep me", "nothing is thrown away"


def spoil_nothing(back: Path) -> None:
    (back / "state.json").unlink()


def spoil_json(back: Path) -> None:
    (back / "state.json").write_text("{")


def spoil_part(back: Path) -> None:
    content = bytearray((back / "state-1.bin").read_bytes())
    content[20] ^= 1
    (back / "state-1.bin").write_bytes(content)


def lose_part(back: Path) -> None:
    (back / "state-1.bin").unlink()


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (spoil_nothing, "it is not the output of a slice"),
        (spoil_json, r"state\.json` is damaged"),
        (spoil_part, "its digest is wrong"),
        (lose_part, r"state-1\.bin` is missing"),
    ],
)
def test_a_slice_with_a_missing_or_damaged_state_is_rejected(
    brought: Path, run: Path, spoil: Any, said: str
) -> None:
    slices.write_count(run, 0, 0.0)
    before = kept(run)
    spoil(brought)
    with pytest.raises(slices.SliceError, match=said):
        slices.take_over(brought, run, IDENTITY)
    assert kept(run) == before


def test_a_slice_with_other_settings_is_rejected_and_names_them(brought: Path, run: Path) -> None:
    with pytest.raises(slices.SliceError, match="slice of something else") as caught:
        slices.take_over(brought, run, {**IDENTITY, "options": "--seeds 1"})
    assert "options: --seeds 0 before, --seeds 1 now" in str(caught.value)


def test_weights_that_are_not_reproduced_are_rejected(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = run / "seed-0/training/3-rl-1/model"
    write(
        model / "adapters/adapter_config.json", json.dumps({"base_model_name_or_path": "seed-0/training/b"})
    )
    asked = []

    def merge(folder: Path, base: Path) -> str:
        asked.append(base)
        return "others"

    monkeypatch.setattr("wander.train.weights.merge_again", merge)
    with pytest.raises(slices.SliceError, match=r"3-rl-1/model` differ from before"):
        slices.merge_models(run, {"seed-0/training/3-rl-1/model": "these"})
    assert asked == [run / "seed-0/training/b"]


def test_oversized_results_drop_rollouts_first(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import random

    write(run / "seed-0/training/1-teacher/rollouts.jsonl", random.Random(0).randbytes(9_000))
    monkeypatch.setattr(slices, "PART", 2_000)
    assert slices.bring_back(run, tmp_path / "small", IDENTITY, 1, 1.0) < 8_000
    write(run / "seed-0/training/4-rl-2/checkpoints/checkpoint-20/big.pt", random.Random(1).randbytes(9_000))
    with pytest.raises(slices.SliceError, match=r"more than .*checkpoint-20/big\.pt"):
        slices.bring_back(run, tmp_path / "large", IDENTITY, 1, 1.0)


def options_for(tmp_path: Path, *words: str) -> argparse.Namespace:
    options: argparse.Namespace = slices.read_arguments(
        ["tictactoe", "--runs", str(tmp_path / "runs"), *words]
    )
    return options


def test_a_slice_reports_missing_files_before_playing(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slices, "play", lambda *_: pytest.fail("it plays"))
    with pytest.raises(slices.SliceError, match="already exists"):
        slices.play_slice(options_for(tmp_path, "--first"))
    with pytest.raises(slices.SliceError, match="has no run here, and `--back` is missing"):
        slices.play_slice(options_for(tmp_path / "new"))
    with pytest.raises(slices.SliceError, match="it is not the output of a slice"):
        slices.play_slice(options_for(tmp_path / "new", "--back", str(tmp_path)))
    with pytest.raises(slices.SliceError, match=r"there is no `.*huge\.toml`"):
        slices.play_slice(options_for(tmp_path, "--settings", "huge.toml"))


def test_a_slice_returns_its_number_and_failed_results(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(slices, "play", lambda *_: slices.MORE)
    monkeypatch.setattr(slices, "merged_models", lambda _: [])
    out = tmp_path / "out"
    assert slices.play_slice(options_for(tmp_path, "--out", str(out), "--device", "cpu")) == slices.MORE
    said = capsys.readouterr().out
    assert "slice 1: " in said
    assert "seed-0/training/4-rl-2: step 3 of 9, reward 0.500" in said
    assert f"the next slice: `--back {out}`" in said
    state = json.loads((out / "state.json").read_bytes())
    assert state["slice"] == 1
    assert state["identity"]["options"] == "--seeds 0"
    assert state["identity"]["device"] == "cpu"
