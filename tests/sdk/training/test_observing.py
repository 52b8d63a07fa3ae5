"""What watches a run changes nothing of it, and survives a resumption."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from wander.models.loading import weights_digest
from wander.train.config import GRPOSettings, SFTSettings
from wander.train.grpo import train_grpo
from wander.train.records.files import read_alerts, read_metrics, read_samples
from wander.train.sft import train_sft

from .conftest import bandit, opener_of


def settings_for(start: Path, **sections: Any) -> GRPOSettings:
    data: dict[str, Any] = {
        "model": {"path": str(start), "device": "cpu"},
        "batch": {"rollouts": 16, "group_size": 4, "rows_at_once": 16},
        "sampling": {"max_tokens": 6},
        "schedule": {"steps": 3, "learning_rate": 5e-3},
        "output": {"rollouts_every": 1, "fixed_prompts": 2, "checkpoint_every": 1},
        "logging": {"trackers": ["tensorboard"]},
    }
    for name, fields in sections.items():
        data[name] = {**data.get(name, {}), **fields}
    return GRPOSettings.model_validate(data)


def steps_of(folder: Path, name: str) -> list[int]:
    found = EventAccumulator(str(folder / "tensorboard"))
    found.Reload()
    return [one.step for one in found.Scalars(name)]


def test_watching_does_not_change_training(puller: Path, tmp_path: Path) -> None:
    watched = train_grpo(opener_of(bandit), settings_for(puller), tmp_path / "watched")
    alone = settings_for(puller, output={"fixed_prompts": 0}, logging={"trackers": []})
    unwatched = train_grpo(opener_of(bandit), alone, tmp_path / "alone")
    assert weights_digest(watched.model) == weights_digest(unwatched.model)

    samples = read_samples(tmp_path / "watched")
    assert [one.step for one in samples] == [0, 0, 1, 1, 2, 2, 3, 3]
    assert len({(one.example_id, one.index, one.seed) for one in samples}) == 2, (
        "the same examples, each time"
    )
    assert not (tmp_path / "alone" / "samples.jsonl").exists()
    assert steps_of(tmp_path / "watched", "train/reward") == [1, 2, 3]
    assert not (tmp_path / "alone" / "tensorboard").exists()


@pytest.mark.full
def test_a_resumed_run_has_all_samples_and_alerts(puller: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    train_grpo(opener_of(bandit), settings_for(puller), folder)
    samples, alerts = read_samples(folder), read_alerts(folder)
    assert {alert.rule for alert in alerts} <= {"no_variance", "truncated"}
    # As if it had been killed after its first step: later files stay, and are made again.
    kept = [json.dumps(entry) for entry in read_metrics(folder)]
    train_grpo(opener_of(bandit), settings_for(puller), folder, resume=True, checkpoint=1)
    again = read_samples(folder)
    assert [(one.step, one.key, one.completion, one.reward) for one in again] == [
        (one.step, one.key, one.completion, one.reward) for one in samples
    ]
    assert read_alerts(folder) == alerts
    assert steps_of(folder, "train/reward") == [1, 2, 3]
    assert len(read_metrics(folder)) == len(kept)


def test_fine_tuning_reports_to_trackers_too(tiny: Path, tmp_path: Path) -> None:
    said = [{"role": "user", "content": "Machine 1."}, {"role": "assistant", "content": "<pull>3</pull>"}]
    settings = SFTSettings.model_validate(
        {
            "model": {"path": str(tiny), "device": "cpu"},
            "batch": {"rows": 4},
            "schedule": {"steps": 2},
            "logging": {"trackers": ["tensorboard"]},
        }
    )
    train_sft(({"messages": said} for _ in range(8)), settings, tmp_path)
    assert steps_of(tmp_path, "train/loss") == [1, 2]
