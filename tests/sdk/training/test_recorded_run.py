"""A run that 0.1.0 recorded, before the trainer was rearranged: the trainer of today makes the same steps.

Processors round differently, so there is a recording for each kind of processor, all by the code of commit
76984009. The manifest names the processor.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from wander import Messages, Rubric, SingleTurnEnv
from wander.models.loading import load_model
from wander.models.policy import PolicyClient
from wander.train.records.reproduction import this_hardware
from wander.train.verify import verify_training

from .conftest import opener_of

RECORDED = sorted((Path(__file__).parent / "recorded_run").iterdir())
CODE = ("reproduction.trainer_sha256", "reproduction.libraries.python")
"""What differs without changing a bit: the trainer's own code, which is tested here, and Python's version."""


def vowels_in(completion: Messages) -> float:
    """Share of vowels: even an untrained policy earns something different each time."""
    text = str(completion[-1]["content"])
    return sum(letter in "aeiou" for letter in text) / max(1, len(text))


def vowels() -> SingleTurnEnv:
    rows = [{"question": f"Machine {i}.", "answer": ""} for i in range(4)]
    return SingleTurnEnv(rows, rubric=Rubric([vowels_in]))


def processor_of(run: Path) -> tuple[str | None, str | None]:
    hardware = json.loads((run / "run.json").read_text())["reproduction"]["hardware"]
    return hardware["cpu"], hardware["instructions"]


def find_recording() -> Path:
    """Return the recording for this machine's processor; skip the test if it is missing."""
    here = this_hardware(torch.device("cpu"))
    for run in RECORDED:
        if processor_of(run) == (here.cpu, here.instructions):
            return run
    recorded = ", ".join(f"`{cpu}` with {instructions}" for cpu, instructions in map(processor_of, RECORDED))
    pytest.skip(f"no recording for the processor `{here.cpu}` with {here.instructions}, only for {recorded}")


def test_a_recorded_run_is_reproduced_exactly(tiny: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(find_recording(), run)
    manifest = json.loads((run / "run.json").read_text())
    manifest["training"]["model"]["path"] = str(tiny)
    # The template of tiny models has learned of tools since: conversations without any have the same tokens.
    loaded = load_model(str(tiny), device="cpu")
    described = PolicyClient(loaded.model, loaded.tokenizer).describe()
    manifest["model"]["chat_template_sha256"] = described["chat_template_sha256"]
    (run / "run.json").write_text(json.dumps(manifest))

    report = verify_training(run, opener_of(vowels), steps=3)

    assert report.refused is None
    if libraries := [change for change in report.changed if not change.startswith(CODE)]:
        pytest.skip(f"recorded with other libraries, which may round differently: {'; '.join(libraries)}")
    assert report.same, report
    assert report.compared == 3


def test_every_recording_has_the_same_rewards() -> None:
    """The policies differ in the last bits, and sample the same tokens."""
    rewards = {
        tuple(json.loads(line)["rewards"] for line in (run / "steps.jsonl").read_text().splitlines())
        for run in RECORDED
    }
    assert len(rewards) == 1
    assert len(set(map(processor_of, RECORDED))) == len(RECORDED)
