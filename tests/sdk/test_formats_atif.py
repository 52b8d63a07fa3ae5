"""Runs as ATIF trajectories. In `tests/plugins/test_formats_by_their_tools.py`, Harbor's models read them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from exported_runs import ConversationRun
from wander.errors import ConfigError
from wander.evals.export import export_runs


def exported(path: Path, **options: bool) -> int:
    return list(export_runs([ConversationRun()], path, "atif", **options))[-1]


def test_results_of_tools_belong_to_the_step_of_the_call(tmp_path: Path) -> None:
    assert exported(tmp_path / "out.jsonl", tokens=True) == 6
    tools, plain, failed, *_ = map(json.loads, (tmp_path / "out.jsonl").read_text().splitlines())
    assert [step["source"] for step in tools["steps"]] == [
        "system",
        "user",
        "agent",
        "agent",
        "user",
        "agent",
    ]
    called = tools["steps"][2]
    assert [call["arguments"] for call in called["tool_calls"]] == [{"at": "it"}, {}]
    assert called["tool_calls"][1]["extra"]["text"] == "{oops"
    assert called["observation"]["results"] == [
        {"content": "a cup", "source_call_id": "c1"},
        {"content": "not JSON", "source_call_id": "c2"},
    ]
    assert called["metrics"]["prompt_token_ids"] == [1, 2]
    assert tools["steps"][3]["reasoning_content"] == "it has a handle"
    assert tools["steps"][1]["message"] == "what is it? ünï"
    assert (tools["extra"]["reward"], plain["extra"]["reward"], failed["extra"]["reward"]) == (0.0, 1.0, None)
    assert failed["extra"]["failure"]["boundary"] == "model"
    assert plain["final_metrics"]["total_prompt_tokens"] == 30


def test_a_folder_has_one_file_for_each_rollout(tmp_path: Path) -> None:
    exported(tmp_path / "out")
    files = sorted((tmp_path / "out").iterdir())
    assert len(files) == 6
    ids = [json.loads(file.read_text())["trajectory_id"].partition("/")[2] for file in files]
    assert ids == [f"cup/{example}/{index}" for example in range(2) for index in range(3)]
    assert "prompt_token_ids" not in files[0].read_text()
    with pytest.raises(ConfigError, match="already exists"):
        exported(tmp_path / "out")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out"]
