"""Records of Every Eval Ever as runs: our own, and those of other converters."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from exported_runs import ConversationRun
from wander.errors import RunError
from wander.evals.export import export_runs
from wander.evals.foreign_run import import_results, read_results

NAME = "0b1f5d3e-1111-4111-8111-111111111111"
AGGREGATE: dict[str, Any] = {
    "schema_version": "0.3.0",
    "evaluation_id": "gsm8k/m_x/1",
    "retrieved_timestamp": "1767323045",
    "eval_library": {"name": "lm_eval", "version": "1"},
    "model_info": {"name": "x", "id": "m/x"},
    "evaluation_results": [
        {"evaluation_name": "gsm8k", "generation_config": {"generation_args": {"temperature": 0.5}}}
    ],
}
LINE: dict[str, Any] = {
    "evaluation_name": "gsm8k",
    "evaluation_result_id": "exact",
    "sample_id": "1",
    "interaction_type": "single_turn",
    "input": {"raw": "2 + 2?", "reference": ["4"]},
    "output": {"raw": ["4"], "reasoning_trace": ["two and two"]},
    "evaluation": {"score": 1.0, "is_correct": True},
    "token_usage": {"input_tokens": 5, "output_tokens": 1, "total_tokens": 6},
}


def records(folder: Path, *lines: Any, aggregate: Any = AGGREGATE) -> Path:
    (folder / f"{NAME}.json").write_text(json.dumps(aggregate))
    path = folder / f"{NAME}_samples.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def test_our_records_are_read_back_as_scored_rollouts(tmp_path: Path) -> None:
    run = ConversationRun()
    for _ in export_runs([run], tmp_path / "out", "every-eval-ever"):
        pass
    again = import_results(tmp_path / "out", tmp_path / "run")
    scored = [rollout for rollout in run.rollouts() if rollout.failure is None]
    found = list(again.rollouts())
    names = ("key", "seed", "reward", "metrics", "stop_reason", "truncated", "usage", "seconds", "started_at")
    assert [[getattr(each, name) for name in names] for each in found] == [
        [getattr(each, name) for name in names] for each in scored
    ]
    assert (found[1].prompt, found[1].completion) == (scored[1].prompt, scored[1].completion)
    assert [turn.context_messages for turn in found[0].turns] == [2, 5, 7]
    assert found[0].completion[0]["tool_calls"][0] == scored[0].completion[0]["tool_calls"][0]
    assert again.manifest.environment.full_name == "alice/cups"
    assert "without failed rollouts" in again.manifest.notes


def test_other_results_of_a_sample_are_its_metrics(tmp_path: Path) -> None:
    second = {**LINE, "evaluation": {"score": 0.0, "is_correct": False}}
    other = {**LINE, "evaluation_result_id": "near", "evaluation": {"score": 0.5, "is_correct": False}}
    failed = {**LINE, "sample_id": "2", "error": "timeout"}
    foreign = read_results(records(tmp_path, LINE, other, second, failed))
    assert [(each.key, each.reward, each.metrics) for each in foreign.rollouts] == [
        (("1", 0), 1.0, {"exact": 1.0, "near": 0.5}),
        (("1", 1), 0.0, {"exact": 0.0}),
        (("2", 0), None, {}),
    ]
    first, _, last = foreign.rollouts
    assert first.completion == [{"role": "assistant", "content": "4", "reasoning_content": "two and two"}]
    assert (first.prompt, first.answer) == ([{"role": "user", "content": "2 + 2?"}], "4")
    assert last.failure is not None
    assert (foreign.environment, foreign.owner, foreign.sampling.temperature) == ("gsm8k", None, 0.5)


@pytest.mark.parametrize(
    ("line", "aggregate"),
    [
        ({}, AGGREGATE),
        ({**LINE, "output": None}, AGGREGATE),
        ({**LINE, "evaluation": {"score": "high"}}, AGGREGATE),
        ({**LINE, "messages": [1]}, AGGREGATE),
        ({**LINE, "metadata": {"prompt_messages": "many"}}, AGGREGATE),
        (LINE, {}),
        (LINE, {"evaluation_results": []}),
        ([], AGGREGATE),
    ],
)
def test_records_with_another_shape_are_rejected(tmp_path: Path, line: Any, aggregate: Any) -> None:
    with pytest.raises(RunError, match=NAME):
        read_results(records(tmp_path, line, aggregate=aggregate))
