from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from wander.system.folders import replace_folder
from wander.train.records.record import TrainingRecord


def log_step(record: TrainingRecord, step: int, **logs: Any) -> None:
    record.on_log(None, SimpleNamespace(global_step=step, max_steps=3), None, logs={"loss": 0.5, **logs})


def test_every_line_is_json_and_a_mean_over_nothing_is_null(tmp_path: Path) -> None:
    shown: list[dict[str, Any]] = []
    record = TrainingRecord(tmp_path, progress=shown.append)
    record.extra = lambda: {"reward": float("nan"), "turns": 2}
    log_step(record, 1, grad_norm=float("inf"), note="text is left out")
    record.on_log(None, SimpleNamespace(global_step=1, max_steps=3), None, logs={"train_runtime": 3.0})
    lines = (tmp_path / "metrics.jsonl").read_text().splitlines()
    expected = {"step": 1, "steps": 3, "loss": 0.5, "grad_norm": None, "reward": None, "turns": 2}
    assert [json.loads(line, parse_constant=float) for line in lines] == [expected] == shown


def test_a_resumed_record_keeps_the_steps_of_its_checkpoint(tmp_path: Path) -> None:
    record = TrainingRecord(tmp_path)
    for step in (1, 2, 3):
        log_step(record, step)
    resumed = TrainingRecord(tmp_path, covered=2)
    log_step(resumed, 3, reward=1.0)
    entries = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [entry["step"] for entry in entries] == [1, 2, 3]
    assert entries[-1]["reward"] == 1.0
    assert resumed.entries == entries


def test_a_folder_is_replaced_completely_or_not_at_all(tmp_path: Path) -> None:
    for text in ("one", "two"):
        with replace_folder(tmp_path / "model") as made:
            (made / "weights").write_text(text)

    def fail() -> None:
        with replace_folder(tmp_path / "model") as made:
            (made / "weights").write_text("three")
            raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        fail()
    assert (tmp_path / "model" / "weights").read_text() == "two"
    assert [path.name for path in tmp_path.iterdir()] == ["model"]
