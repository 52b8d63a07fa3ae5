"""Results for Hugging Face, whose package reads them in `tests/plugins`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml
from exported_runs import ConversationRun
from wander.errors import ConfigError, RunError
from wander.evals.export import export_runs


def exported(path: Path, *runs: ConversationRun) -> Path:
    list(export_runs(runs, path, "eval-results"))
    return path


def test_an_entry_has_the_mean_reward_and_its_interval(tmp_path: Path) -> None:
    run = ConversationRun()
    name = 'cups: "odd" #1\n- x'
    run.manifest.environment.owner, run.manifest.environment.name = None, name
    (entry,) = yaml.safe_load(exported(tmp_path / "new" / "out.yaml", run).read_text())
    assert entry["dataset"] == {"id": name, "task_id": "default"}
    assert entry["value"] == run.summary.reward_mean
    assert "2 examples x 3 rollouts" in entry["notes"]
    assert "2 failed rollouts" in entry["notes"]


def test_a_folder_also_has_the_metadata_of_a_card(tmp_path: Path) -> None:
    folder = exported(tmp_path / "out", ConversationRun(), ConversationRun(3))
    entries = yaml.safe_load((folder / ".eval_results" / "wander.yaml").read_text())
    assert [entry["dataset"]["id"] for entry in entries] == ["alice/cups"] * 2
    ((index,),) = yaml.safe_load((folder / "model-index.yaml").read_text()).values()
    assert index["name"] == "org/model-1"
    metrics = [metric["type"] for metric in index["results"][0]["metrics"]]
    assert metrics == ["reward", "metric.of/odd name", "metric.won"]
    json.loads((folder / "model-index.yaml").read_text().partition(":")[2])


def test_results_of_several_models_or_without_rewards_are_rejected(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="several models"):
        exported(tmp_path / "out", ConversationRun(), ConversationRun(model="other"))
    run = ConversationRun()
    run.summary = run.summary.model_copy(update={"reward_mean": None})
    with pytest.raises(RunError, match="was scored"):
        exported(tmp_path / "out", run)
    assert not list(tmp_path.iterdir())
