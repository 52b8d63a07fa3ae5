"""Results of other libraries become runs of ours, with what was recorded and nothing made up."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from wander.errors import RunError, install_command
from wander.evals.foreign_run import import_results
from wander.evals.store.folder import RunFolder

PROMPT = [{"role": "user", "content": "say 1"}]
SAID = [
    {"role": "assistant", "content": "one"},
    {"role": "user", "content": "go on"},
    {"role": "assistant", "content": "1"},
]
EARLIER = {
    "env": "my-env", "model": "m/x", "num_examples": 1, "rollouts_per_example": 2, "date": "2025-09-01",
    "sampling_args": {"temperature": 0.5, "max_completion_tokens": 9, "n": 1, "extra_body": {}},
    "time_ms": 28.3, "avg_reward": 1.0, "avg_right": 1.0, "avg_length": 3.0,
}  # fmt: skip
LATER = {
    "env_id": "my-env", "env_args": {"k": 1}, "model": "m/x", "base_url": "http://m", "num_examples": 1,
    "rollouts_per_example": 2, "sampling_args": {}, "avg_reward": 0.5, "avg_metrics": {"right": 0.5},
    "avg_error": 0.5, "version_info": {"vf_version": "0.1.14", "env_version": "1.2"},
}  # fmt: skip


def folder(tmp_path: Path, metadata: dict, rows: list, name: str = "results.jsonl") -> Path:
    place = tmp_path / "my-env--m--x" / "abcd"
    place.mkdir(parents=True)
    (place / "metadata.json").write_text(json.dumps(metadata))
    (place / name).write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return place


def imported(tmp_path: Path, *given, **options) -> RunFolder:
    import_results(folder(tmp_path, *given, **options), tmp_path / "run")
    return RunFolder.open(tmp_path / "run")


def test_results_in_the_earlier_schema_are_read(tmp_path):
    row = {
        "example_id": 7, "prompt": PROMPT, "completion": json.dumps(SAID), "task": "my-env", "reward": 1.0,
        "generation_ms": 900.0, "scoring_ms": 100.0, "total_ms": 1000.0, "info": '{"a": 1}', "answer": "1",
        "right": 1.0, "length": 3.0,
    }  # fmt: skip
    run = imported(tmp_path, EARLIER, [row, {**row, "reward": 0.0, "right": 0.0}])
    manifest = run.manifest
    assert (manifest.environment.name, manifest.model.name, manifest.model.kind) == (
        "my-env",
        "m/x",
        "imported",
    )
    assert manifest.sampling.given() == {"temperature": 0.5, "max_tokens": 9}
    assert manifest.example_ids == ["7"]
    assert str(manifest.started_at.date()) == "2025-09-01"
    assert manifest.notes == "imported from verifiers before 0.1.8"
    first, second = run.rollouts()
    assert (first.key, second.key) == (("7", 0), ("7", 1))
    assert (first.reward, second.reward) == (1.0, 0.0)
    assert first.metrics == {"length": 3.0, "right": 1.0}
    assert first.completion == SAID
    assert [turn.context_messages for turn in first.turns] == [1, 3]
    assert (first.seconds, first.scoring_seconds) == (1.0, 0.1)
    assert run.summary().reward_mean == 0.5


def test_results_in_the_later_schema_are_read(tmp_path):
    row = {
        "example_id": 0, "prompt": PROMPT, "completion": SAID, "answer": "1", "info": {}, "reward": 1.0,
        "error": None, "timing": {"start_time": 1.7e9, "scoring": {"duration": 0.25}, "total": 2.0},
        "is_truncated": True, "stop_condition": "max_turns_reached", "metrics": {"right": 1.0},
        "token_usage": {"input_tokens": 10.0, "output_tokens": 4.0}, "right": 1.0,
    }  # fmt: skip
    error = {"error": "ModelError", "error_chain_repr": "ModelError('500')", "error_chain_str": "ModelError"}
    failed = {**row, "completion": [], "error": error, "stop_condition": "has_error"}
    run = imported(tmp_path, LATER, [row, failed])
    assert run.manifest.environment.arguments == {"k": 1}
    assert run.manifest.environment.version == "1.2"
    first, second = run.rollouts()
    assert (first.reward, first.truncated, first.stop_reason) == (1.0, True, "max_turns_reached")
    assert (first.usage.prompt_tokens, first.usage.completion_tokens) == (10, 4)
    assert first.started_at.startswith("2023-11-14")
    assert second.reward is None, "the row says 1.0, but the rollout failed"
    assert (second.failure.boundary, second.failure.message) == ("model", "ModelError('500')")
    summary = run.summary()
    assert (summary.failed, summary.reward_mean) == (1, 1.0)


def node(parent, role, content, sampled=False, **more) -> dict:
    return {"parent": parent, "sampled": sampled, "message": {"role": role, "content": content, **more}}


def test_graph_traces_are_read(tmp_path):
    call = {"id": "c", "type": "function", "name": "look", "arguments": "{}"}
    nodes = [
        node(None, "user", "say 1"),
        node(0, "assistant", None, True, tool_calls=[call]),
        node(0, "assistant", "a retry", True),
        {"parent": 1, "message": {"role": "tool", "tool_call_id": "c", "content": "seen"}},
        node(3, "assistant", "1", True),
    ]
    usage = {"prompt_tokens": 5, "completion_tokens": 2}
    trace = {
        "version": 1, "id": "t", "task": {"type": "T", "data": {"idx": 3, "prompt": "say 1", "goal": "x"}},
        "agent": {"name": "agent", "trainable": True}, "nodes": nodes,
        "calls": [{"node": 4, "finish_reason": "stop", "usage": usage}],
        "rewards": {"right": {"score": 1.0, "weight": 0.5}, "style": {"score": 0.5}, "no": None},
        "metrics": {"length": 1.0}, "errors": [], "stop_condition": "done", "is_timeout": False,
        "timing": {"start": 1.7e9, "agent": {"start": 1.0, "end": 3.0}},
    }  # fmt: skip
    judge = {**trace, "agent": {"name": "judge", "trainable": False}}
    broken = {**trace, "errors": [{"type": "ProviderError", "message": "500", "status_code": 500}]}
    rows = [{"id": "e", "traces": [trace, judge]}, broken]
    run = imported(tmp_path, {}, rows, name="traces.jsonl")
    first, second = run.rollouts()
    assert first.example_id == "3"
    assert first.reward == 1.0
    assert first.metrics == {"length": 1.0, "right": 1.0, "style": 0.5}
    assert first.prompt == [{"role": "user", "content": "say 1"}]
    assert [message["role"] for message in first.completion] == ["assistant", "tool", "assistant"]
    assert first.completion[0]["tool_calls"][0]["function"] == {"name": "look", "arguments": "{}"}
    assert first.turns[1].usage.completion_tokens == 2
    assert first.info == {"other_branches": 1}
    assert second.failure.boundary == "model"
    assert second.reward is None


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([{"prompt": PROMPT}], "line 1 of .* has no `completion`"),
        ([], "contains no rollouts"),
        (["text"], "line 1 of .* is not an object"),
        ([{"prompt": [{"content": "x"}], "completion": []}], "needs a `role`"),
    ],
)
def test_an_unreadable_line_is_reported_with_its_number(tmp_path, rows, message):
    with pytest.raises(RunError, match=message):
        import_results(folder(tmp_path, LATER, rows), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_an_incomplete_last_line_is_skipped(tmp_path):
    place = folder(tmp_path, LATER, [{"prompt": PROMPT, "completion": SAID, "reward": 1, "example_id": 0}])
    with (place / "results.jsonl").open("a") as file:
        file.write('{"prompt": [{"ro')
    run = import_results(place, tmp_path / "run")
    assert len(list(run.rollouts())) == 1


def test_a_folder_without_results_is_rejected(tmp_path):
    with pytest.raises(RunError, match="contains none of"):
        import_results(tmp_path, tmp_path / "run")


def test_without_a_reader_the_installation_command_is_printed(tmp_path, monkeypatch):
    place = folder(tmp_path, EARLIER, [])
    monkeypatch.setattr("wander.evals.foreign_run.entry_points", lambda group: [])
    with pytest.raises(RunError, match="contains none of") as caught:
        import_results(place, tmp_path / "run")
    for distribution in ("wander-compat", "wander-integrations"):
        assert install_command(distribution) in str(caught.value.hint)
