"""What a training run says of how it can be repeated, and what keeps it from going on."""

from __future__ import annotations

import hashlib
import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch
from wander.errors import RunError
from wander.evals.store.folder import RunFolder
from wander.train.config import GRPOSettings
from wander.train.grpo import train_grpo
from wander.train.records import reproduction
from wander.train.records.reproduction import (
    CHANGES,
    arithmetic,
    decide_mode,
    reproduction_of,
    this_hardware,
    trainer_digest,
)
from wander.types import EnvironmentInfo
from wander.wire import RunManifest

from .conftest import bandit, opener_of

CPU, GPU = torch.device("cpu"), torch.device("cuda")
EXACT = EnvironmentInfo(name="exact", kind="single_turn")
LIVE = EnvironmentInfo(name="live", kind="single_turn", deterministic=False)


def git(folder: Path, *words: str) -> None:
    identity = ["-c", "user.name=a", "-c", "user.email=a@example.org", "-c", "commit.gpgsign=false"]
    subprocess.run(["git", "-C", str(folder), *identity, *words], check=True, capture_output=True)


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder with a committed file, and a secret that git ignores."""
    folder = tmp_path / "work"
    folder.mkdir()
    git(folder, "init", "-q")
    (folder / "recipe.py").write_text("rate = 1\n")
    (folder / ".gitignore").write_text(".env\n")
    git(folder, "add", ".")
    git(folder, "commit", "-qm", "one", "--no-verify")
    (folder / ".env").write_text("TOKEN=secret\n")
    (folder / "untracked.py").write_text("TOKEN = 'secret'\n")
    monkeypatch.chdir(folder)
    return folder


def settings_for(start: Path, **sections: Any) -> GRPOSettings:
    data: dict[str, Any] = {
        "model": {"path": str(start), "device": "cpu"},
        "batch": {"rollouts": 8, "group_size": 4, "rows_at_once": 8},
        "sampling": {"max_tokens": 6},
        "schedule": {"steps": 2},
        "output": {"checkpoint_every": 1},
    }
    return GRPOSettings.model_validate(data | sections)


def test_the_record_is_written_before_the_first_step(puller: Path, repository: Path, tmp_path: Path) -> None:
    (repository / "recipe.py").write_text("rate = 2\n")
    seen: list[RunManifest] = []

    def look(entry: dict[str, Any]) -> None:
        seen.append(RunFolder.open(tmp_path / "run").manifest)

    train_grpo(opener_of(bandit), settings_for(puller), tmp_path / "run", progress=look)
    made = seen[0].reproduction
    assert made is not None
    assert (made.mode, made.device, made.threads, made.processes) == ("exact", "cpu", 1, 1)
    assert {"python", "torch", "transformers", "trl", "peft", "accelerate"} <= made.libraries.keys()
    assert made.libraries["torch"] == torch.__version__
    assert made.hardware.cores >= 1
    assert made.trainer_sha256 == trainer_digest()
    diff = (tmp_path / "run" / CHANGES).read_bytes()
    assert b"+rate = 2" in diff
    assert b"secret" not in diff
    assert made.changes is not None
    assert (made.changes.sha256, made.changes.size) == (hashlib.sha256(diff).hexdigest(), len(diff))
    assert seen[0].model.chat_template_sha256 is not None


def test_a_large_diff_is_pinned_but_not_kept(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made, diff = reproduction_of([EXACT], CPU)
    assert (made.changes, diff) == (None, b"")
    (repository / "recipe.py").write_text("rate = 3\n" * 50)
    monkeypatch.setattr(reproduction, "MOST_CHANGES", 100)
    made, diff = reproduction_of([EXACT], CPU)
    assert made.changes is not None
    assert (made.changes.file, made.changes.size) == (None, len(diff))
    assert made.changes.sha256 == hashlib.sha256(diff).hexdigest()


def test_the_reproduction_mode_follows_from_the_hardware() -> None:
    assert decide_mode([EXACT], CPU)[0] == "exact"
    assert decide_mode([EXACT], GPU) == (
        "fast",
        "the policy computes on `cuda`, where the order of additions is not fixed",
    )
    assert decide_mode([EXACT, LIVE], CPU, 2) == (
        "fast",
        "2 processes add up the gradient; `live` declares that it is not deterministic",
    )
    assert decide_mode([EXACT], CPU, engine="vllm-server")[0] == "fast"


def test_arithmetic_is_strict_only_inside() -> None:
    before = torch.get_num_threads(), torch.are_deterministic_algorithms_enabled()
    with arithmetic("exact", 2):
        assert (torch.get_num_threads(), torch.are_deterministic_algorithms_enabled()) == (2, True)
        with arithmetic("fast", 1):
            assert torch.get_num_threads() == 1
        assert (torch.get_num_threads(), torch.are_deterministic_algorithms_enabled()) == (2, True)
    assert (torch.get_num_threads(), torch.are_deterministic_algorithms_enabled()) == before
    assert this_hardware(CPU).instructions


@pytest.fixture
def interrupted(puller: Path, tmp_path: Path) -> Path:
    """A run that broke off in its second step."""

    class Broken(Exception):
        pass

    def breaks(entry: dict[str, Any]) -> None:
        if entry["step"] == 2:
            raise Broken

    with pytest.raises(Broken):
        train_grpo(opener_of(bandit), settings_for(puller), tmp_path / "run", progress=breaks)
    return tmp_path / "run"


def edited(run: Path, **values: Any) -> None:
    """Change fields of `reproduction` in the manifest; `libraries` are merged."""
    manifest = json.loads((run / "run.json").read_text())
    manifest["reproduction"]["libraries"] |= values.pop("libraries", {})
    manifest["reproduction"] |= values
    (run / "run.json").write_text(json.dumps(manifest))


def test_all_differences_are_listed(puller: Path, interrupted: Path) -> None:
    edited(interrupted, libraries={"torch": "1.0"}, trainer_sha256="0" * 64)
    other = settings_for(puller, schedule={"steps": 2, "learning_rate": 1.0})
    with pytest.raises(RunError) as refused:
        train_grpo(opener_of(bandit), other, interrupted, resume=True)
    told = str(refused.value).splitlines()
    assert told[0] == f"`{interrupted}` cannot be resumed, because these values changed since it started:"
    assert [line.partition(":")[0].strip() for line in told[1:]] == [
        "reproduction.libraries.torch",
        "reproduction.trainer_sha256",
        "training.schedule.learning_rate",
    ]
    assert "1.0 before" in told[1]
    assert f"--resume {interrupted} --allow-changes" in str(refused.value.hint)
    with pytest.raises(RunError, match=r"environment\.info\.train_examples: 64 before, 60 now"):
        train_grpo(opener_of(lambda: bandit(60)), settings_for(puller), interrupted, resume=True)


@pytest.mark.full
def test_an_allowed_change_is_recorded_once(puller: Path, interrupted: Path) -> None:
    edited(interrupted, libraries={"torch": "1.0"})

    class Broken(Exception):
        pass

    def breaks(entry: dict[str, Any]) -> None:
        raise Broken

    def resume(**given: Any) -> None:
        train_grpo(opener_of(bandit), settings_for(puller), interrupted, resume=True, **given)

    with pytest.raises(Broken):
        resume(allow_changes=True, progress=breaks)
    made = RunFolder.open(interrupted).manifest.reproduction
    assert made is not None
    [change] = made.allowed
    assert (change.field, change.before, change.after, change.step) == (
        *("reproduction.libraries.torch", "1.0", torch.__version__),
        1,
    )
    assert made.libraries["torch"] == "1.0", "what the run began with stays"
    assert made.exact_steps == 1
    later = [change.model_dump(mode="json") | {"after": "9.0"}]
    edited(interrupted, allowed=later)
    with pytest.raises(RunError, match=r"libraries\.torch: 9\.0 before"):
        resume()
    edited(interrupted, allowed=[change.model_dump(mode="json")])
    resume()
    assert RunFolder.open(interrupted).manifest.ended_at is not None


@pytest.mark.full
def test_the_recorded_number_of_threads_is_set(puller: Path, interrupted: Path) -> None:
    edited(interrupted, threads=2)
    used: list[int] = []
    train_grpo(
        opener_of(bandit),
        settings_for(puller),
        interrupted,
        resume=True,
        progress=lambda entry: used.append(torch.get_num_threads()),
    )
    assert used == [2]
    assert torch.get_num_threads() == 1


def test_settings_of_newer_releases_count_as_their_defaults(puller: Path, interrupted: Path) -> None:
    manifest = json.loads((interrupted / "run.json").read_text())
    del manifest["training"]["stopping"]
    (interrupted / "run.json").write_text(json.dumps(manifest))
    train_grpo(opener_of(bandit), settings_for(puller), interrupted, resume=True)


def test_a_record_with_missing_rollouts_is_rejected(puller: Path, interrupted: Path) -> None:
    rollouts = interrupted / "rollouts.jsonl"
    rollouts.write_bytes(rollouts.read_bytes().splitlines(keepends=True)[0])
    with pytest.raises(RunError, match=r"bytes, but had .* at the checkpoint"):
        train_grpo(opener_of(bandit), settings_for(puller), interrupted, resume=True)
