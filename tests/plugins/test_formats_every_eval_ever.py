"""Runs as records of Every Eval Ever, which its validator reads in `tests/plugins`."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest
from exported_runs import ConversationRun
from wander.errors import ConfigError, RunError
from wander.evals.export import export_runs


def exported(path: Path, *runs: ConversationRun) -> tuple[dict, list[dict]]:
    """Return the aggregate and the lines of the first run."""
    for _ in export_runs(runs or (ConversationRun(),), path, "every-eval-ever"):
        pass
    samples = min(path.rglob("*_samples.jsonl"))
    aggregate = json.loads(samples.with_name(samples.name.replace("_samples.jsonl", ".json")).read_text())
    details = aggregate["detailed_evaluation_results"]
    assert details["file_path"] == samples.relative_to(path).as_posix()
    assert details["checksum"] == hashlib.sha256(samples.read_bytes()).hexdigest()
    return aggregate, [json.loads(line) for line in samples.read_text().splitlines()]


def test_aggregates_have_intervals_and_lines_have_transcripts(tmp_path: Path) -> None:
    aggregate, lines = exported(tmp_path / "out")
    results = {result["evaluation_result_id"]: result for result in aggregate["evaluation_results"]}
    assert list(results)[:3] == ["reward", "metric.of/odd name", "metric.won"]
    assert results["reward"]["score_details"]["score"] == ConversationRun().summary.reward_mean
    assert results["metric.of/odd name"]["metric_config"]["max_score"] == "Infinity"
    assert aggregate["detailed_evaluation_results"]["additional_details"] == {
        "failed_rollouts": "2",
        "cost_usd": "0.0012",
    }
    assert lines[0]["token_usage"] == {
        **{"input_tokens": 10, "input_tokens_cache_read": 20},
        **{"output_tokens": 9, "reasoning_tokens": 6, "total_tokens": 39},
    }
    assert float(lines[0]["performance"]["additional_details"]["cost_usd"]) == 0.0003
    kinds = [(line["interaction_type"], line["evaluation"]["is_correct"]) for line in lines]
    assert kinds == [("agentic", False), ("single_turn", True)] * 2
    assert lines[0]["messages"][2]["tool_calls"][0] == {
        "id": "c1",
        "name": "look",
        "arguments": {"at": '"it"'},
    }
    assert lines[0]["messages"][5]["reasoning_trace"] == "it has a handle"
    assert lines[0]["metadata"]["metric.of/odd name"] == "1.0"
    assert lines[1]["output"] == {"raw": ["4"]}
    assert {line["evaluation_id"] for line in lines} == {aggregate["evaluation_id"]}


@pytest.mark.parametrize(
    ("model", "folder"),
    [
        ("hf:org/model-1", "org/model-1"),
        ("gpt-5", "undeclared/gpt-5"),
        ("hub:a/b@3:x", "a/b@3_x"),
        ("../../..", "undeclared/.._"),
    ],
)
def test_names_of_models_become_folders(tmp_path: Path, model: str, folder: str) -> None:
    exported(tmp_path / "out", ConversationRun(model=model))
    (place,) = (tmp_path / "out/data/alice_cups").glob("*/*")
    assert place.relative_to(tmp_path / "out/data/alice_cups").as_posix() == folder


def test_a_run_without_results_or_with_tokens_is_rejected(tmp_path: Path) -> None:
    run = ConversationRun()
    with pytest.raises(ConfigError, match="token ids"):
        list(export_runs([run], tmp_path / "out", "every-eval-ever", tokens=True))
    run.summary = run.summary.model_copy(update={"reward_mean": None})
    with pytest.raises(RunError, match="was scored"):
        exported(tmp_path / "out", run)
    assert not list(tmp_path.iterdir())
