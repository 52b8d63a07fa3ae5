"""The first steps of a run, trained again and compared."""

from __future__ import annotations

import json
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from wander.errors import RunError
from wander.evals.store import jsonl
from wander.evals.store.folder import RunFolder
from wander.train.config import GRPOSettings
from wander.train.grpo import train_grpo
from wander.train.records.checkpoints import SAVED, SEAL, read_saved, seal_folder, write_saved
from wander.train.records.files import BestCheckpoint, read_best, read_evaluations, write_best
from wander.train.records.step_hash import STEPS, StepHash, read_steps
from wander.train.rollouts.ahead import AHEAD, KeptStep
from wander.train.rollouts.source import StepRollouts
from wander.train.verify import check_files, verify_training

from .conftest import bandit, opener_of


def settings_for(start: Path, **algorithm: Any) -> GRPOSettings:
    return GRPOSettings.model_validate(
        {
            "model": {"path": str(start), "device": "cpu"},
            "batch": {"rollouts": 16, "group_size": 4, "rows_at_once": 16},
            "sampling": {"max_tokens": 6},
            "schedule": {"steps": 3, "learning_rate": 5e-3, "decay": "linear"},
            "output": {"rollouts_every": 2},
            "algorithm": algorithm,
        }
    )


@pytest.fixture(scope="module")
def trained(puller: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of three steps."""
    folder = tmp_path_factory.mktemp("verified") / "run"
    train_grpo(opener_of(bandit), settings_for(puller), folder)
    return folder


@pytest.fixture
def run(trained: Path, tmp_path: Path) -> Path:
    """A copy of it, to be tampered with."""
    copy = tmp_path / "run"
    copy.mkdir()
    for name in ("run.json", STEPS):
        (copy / name).write_bytes((trained / name).read_bytes())
    return copy


def edit_manifest(run: Path, edit: Callable[[dict[str, Any]], object]) -> None:
    manifest = json.loads((run / "run.json").read_text())
    edit(manifest)
    (run / "run.json").write_text(json.dumps(manifest))


def edit_step(run: Path, step: int, **fields: str | None) -> None:
    lines = [
        line.model_copy(update=fields) if line.step == step else line for line in read_steps(run / STEPS)
    ]
    (run / STEPS).write_text("".join(line.model_dump_json() + "\n" for line in lines))


def test_repeating_the_first_steps_gives_equal_results(run: Path) -> None:
    shown: list[int] = []
    report = verify_training(
        run, opener_of(bandit), steps=2, progress=lambda entry: shown.append(entry["step"])
    )
    assert report.same
    assert (report.compared, report.difference, report.refused, report.changed) == (2, None, None, [])
    assert shown == [1, 2], "it stops there, on the schedule of all three"
    assert report.weights_compared >= 1
    assert read_steps(run / STEPS)[2].weights is not None, "those of the last step are always hashed"


@pytest.mark.full
def test_updates_on_the_same_rollouts_are_equal(puller: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    train_grpo(opener_of(bandit), settings_for(puller, num_iterations=2), folder)
    first, again, other = read_steps(folder / STEPS)
    assert (
        (first.rollouts, first.rewards) == (again.rollouts, again.rewards) != (other.rollouts, other.rewards)
    )
    assert len(RunFolder.open(folder).manifest.example_ids) == 8, "four groups of each of two batches"
    kept = [rollout.step for rollout in RunFolder.open(folder).rollouts()]
    assert sorted(kept) == [0] * 4 + [2] * 4, "the steps 2 and 4 are made of these"
    assert verify_training(folder, opener_of(bandit), steps=3).same


def test_missing_steps_are_not_reported_as_equal(run: Path) -> None:
    report = verify_training(run, opener_of(bandit), steps=5)
    assert (report.compared, report.same, report.refused) == (3, False, "the run has only 3 steps")


@pytest.mark.parametrize("part", ["rollouts", "rewards", "update", "weights"])
def test_the_first_difference_is_reported(run: Path, part: str) -> None:
    recorded = {line.step: line for line in read_steps(run / STEPS)}
    step = 2 if part != "weights" else max(n for n, line in recorded.items() if line.weights)
    edit_step(run, step, **{part: "0" * 64})
    report = verify_training(run, opener_of(bandit), steps=3)
    assert report.difference is not None
    assert (report.difference.step, report.difference.part) == (step, part)
    assert (report.compared, report.same) == (step, False)


def test_another_environment_or_weights_are_rejected(run: Path) -> None:
    report = verify_training(run, opener_of(lambda: bandit(examples=60)), steps=1)
    assert report.refused is not None
    assert "environment.info.train_examples: 64 before, 60 now" in report.refused
    assert (report.compared, report.same) == (0, False)
    edit_manifest(run, lambda manifest: manifest["model"].update(weights_sha256="0" * 64))
    refused = verify_training(run, opener_of(bandit), steps=1).refused
    assert refused is not None
    assert "model.weights_sha256" in refused


def test_another_library_version_is_reported_and_compared(run: Path) -> None:
    edit_manifest(run, lambda manifest: manifest["reproduction"]["libraries"].update(torch="1.0"))
    report = verify_training(run, opener_of(bandit), steps=1)
    assert report.same
    [told] = report.changed
    assert told.startswith("reproduction.libraries.torch: 1.0 before, ")


def test_runs_that_cannot_be_repeated_exactly_are_rejected(run: Path) -> None:
    def refusal() -> str | None:
        return verify_training(run, opener_of(bandit), steps=2).refused

    change = {"field": "reproduction.libraries.torch", "before": "1", "after": "2", "step": 1}
    change["at"] = "2026-01-01T00:00:00Z"
    edit_manifest(run, lambda manifest: manifest["reproduction"]["allowed"].append(change))
    assert refusal() == (
        "after step 1 the run continued with changes that were allowed: reproduction.libraries.torch"
    )
    edit_manifest(
        run, lambda manifest: manifest["reproduction"].update(mode="fast", reason="the policy ran on `cuda`")
    )
    assert refusal() == (
        "the run was trained in fast mode, which gives different bits each time: the policy ran on `cuda`"
    )
    (run / STEPS).unlink()
    edit_manifest(run, lambda manifest: manifest.pop("reproduction"))
    assert refusal() == "the run has no hashes of its steps"
    edit_manifest(run, lambda manifest: manifest.update(kind="evaluation"))
    with pytest.raises(RunError, match="is not a training run"):
        refusal()


def test_an_interrupt_stops_the_verification(run: Path) -> None:
    def interrupt(entry: dict[str, Any]) -> None:
        signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        verify_training(run, opener_of(bandit), steps=3, progress=interrupt)


def test_an_incomplete_line_is_skipped_and_a_damaged_one_is_an_error(tmp_path: Path) -> None:
    line = StepHash(step=1, rollouts="a", rewards="b", update="c").model_dump_json()
    (tmp_path / STEPS).write_text(line + "\n" + line[:20])
    assert [one.step for one in read_steps(tmp_path / STEPS)] == [1]
    (tmp_path / STEPS).write_text(line[:20] + "\n" + line + "\n")
    with pytest.raises(RunError, match="is damaged"):
        read_steps(tmp_path / STEPS)
    assert read_steps(tmp_path / "none.jsonl") == []


def settings_of_evaluated(start: Path) -> GRPOSettings:
    settings = settings_for(start).model_dump()
    settings["evaluation"].update(every=1, examples=6)
    settings["output"].update(checkpoint_every=1, keep_best="eval/payoff")
    return GRPOSettings.model_validate(settings)


@pytest.fixture(scope="module")
def whole(puller: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of three steps, evaluated after each, with its best model and its checkpoints."""
    folder = tmp_path_factory.mktemp("checked") / "run"
    train_grpo(opener_of(bandit), settings_of_evaluated(puller), folder)
    return folder


@pytest.fixture
def evaluated(whole: Path, tmp_path: Path) -> Path:
    """A copy of it, to be tampered with."""
    return Path(shutil.copytree(whole, tmp_path / "evaluated"))


def change_byte(file: Path) -> None:
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)


def test_every_file_of_checkpoints_and_models_is_compared_with_its_digest(evaluated: Path) -> None:
    report = verify_training(evaluated, opener_of(bandit), steps=1)
    folders = [*(evaluated / "checkpoints").glob("checkpoint-*"), evaluated / "model", evaluated / "best"]
    files = [path for each in folders for path in each.rglob("*") if path.is_file()]
    assert (report.same, report.sound, report.damaged) == (True, True, [])
    assert report.files == sum(path.name != SEAL for path in files)


@pytest.mark.parametrize("place", ["checkpoints/checkpoint-1", "checkpoints/checkpoint-3", "model", "best"])
def test_changed_missing_and_exchanged_files_are_named(evaluated: Path, place: str) -> None:
    folder = evaluated / place
    for path in sorted(folder.iterdir()):
        if path.name == SEAL:
            continue
        kept = path.read_bytes()
        change_byte(path)
        assert [one.split(" ")[0] for one in check_files(evaluated)[1]] == [f"{place}/{path.name}"]
        path.unlink()
        assert [one.split(" ")[0] for one in check_files(evaluated)[1]] == [f"{place}/{path.name}"]
        path.write_bytes(kept)
    assert check_files(evaluated)[1] == []


def test_foreign_weights_with_a_seal_are_found(evaluated: Path) -> None:
    change_byte(evaluated / "model" / "model.safetensors")
    seal_folder(evaluated / "model", step=3)
    [damaged] = check_files(evaluated)[1]
    assert damaged.startswith("model: ")
    assert SAVED in damaged
    (evaluated / "checkpoints" / "checkpoint-2" / SEAL).write_text("{")
    assert len(check_files(evaluated)[1]) == 2


def test_the_best_of_a_killed_run_need_not_be_a_checkpoint(evaluated: Path) -> None:
    best = read_best(evaluated)
    assert best is not None
    (evaluated / "outcome.json").unlink()  # it is written at the end, and so is the line of the best
    shutil.rmtree(evaluated / "checkpoints" / f"checkpoint-{best.step}", ignore_errors=True)
    write_saved(
        evaluated, [one for one in read_saved(evaluated) if one.weights_sha256 != best.weights_sha256]
    )
    others = [one for one in check_files(evaluated)[1] if not one.startswith("model")]
    assert others == []


def test_a_best_checkpoint_of_repeated_steps_is_discarded(puller: Path, evaluated: Path) -> None:
    write_best(evaluated, BestCheckpoint(metric="eval/payoff", mode="max", value=9.0, step=3))
    train_grpo(opener_of(bandit), settings_of_evaluated(puller), evaluated, resume=True, checkpoint=1)
    best = read_best(evaluated)
    assert best is not None
    assert best.value == max(one.metrics["payoff"] for one in read_evaluations(evaluated) if one.step > 1)
    assert check_files(evaluated)[1] == []


@pytest.mark.parametrize("kind", ["steps ahead", "a batch"])
def test_kept_rollouts_are_not_gone_on_with_in_another_number_of_processes(
    puller: Path, evaluated: Path, kind: str
) -> None:
    folder = evaluated / "checkpoints" / "checkpoint-3"
    if kind == "a batch":
        for process in range(2):
            (folder / f"batch-{process}.pt").write_bytes(b"")
    else:
        nothing = StepRollouts(rollouts=[])
        kept = [KeptStep(step=3, version=2, picks=[], played=nothing, process=n) for n in range(2)]
        jsonl.write_records(folder / AHEAD, kept)
    with pytest.raises(RunError, match="contains rollouts of 2 processes") as refused:
        train_grpo(
            opener_of(bandit), settings_of_evaluated(puller), evaluated, resume=True, allow_changes=True
        )
    assert "--checkpoint 2 --allow-changes`" in (refused.value.hint or "")
    assert len(read_evaluations(evaluated)) == 4, "nothing was touched"
