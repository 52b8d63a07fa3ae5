"""A run that 0.1.0 recorded, before the trainer was rearranged: the trainer of today makes the same steps."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from wander import Messages, Rubric, SingleTurnEnv
from wander.models.loading import load_model
from wander.models.policy import PolicyClient
from wander.train.verify import verify_training

from .conftest import opener_of

RECORDED = Path(__file__).parent / "recorded_run"
CODE = ("reproduction.trainer_sha256", "reproduction.libraries.python")
"""What differs without changing a bit: the trainer's own code, which is tested here, and Python's version."""


def vowels_in(completion: Messages) -> float:
    """Share of vowels: even an untrained policy earns something different each time."""
    text = str(completion[-1]["content"])
    return sum(letter in "aeiou" for letter in text) / max(1, len(text))


def vowels() -> SingleTurnEnv:
    rows = [{"question": f"Machine {i}.", "answer": ""} for i in range(4)]
    return SingleTurnEnv(rows, rubric=Rubric([vowels_in]))


def test_a_run_recorded_before_comes_out_the_same(tiny: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(RECORDED, run)
    manifest = json.loads((run / "run.json").read_text())
    manifest["training"]["model"]["path"] = str(tiny)
    # The template of tiny models has learned of tools since: conversations without any have the same tokens.
    loaded = load_model(str(tiny), device="cpu")
    described = PolicyClient(loaded.model, loaded.tokenizer).describe()
    manifest["model"]["chat_template_sha256"] = described["chat_template_sha256"]
    (run / "run.json").write_text(json.dumps(manifest))

    report = verify_training(run, opener_of(vowels), steps=3)

    assert report.refused is None
    # Other processors and libraries may round differently: then the report names them, and steps may differ.
    elsewhere = [change for change in report.changed if not change.startswith(CODE)]
    assert report.same or elsewhere, report
    assert report.compared == 3 or elsewhere
