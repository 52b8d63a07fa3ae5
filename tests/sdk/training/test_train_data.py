from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from wander.errors import ConfigError
from wander.train.data import Condition, Sourced, normalize, read_rows, select_rows, write_rows
from wander.types import Failure, Rollout, Usage


def rollout(number: int, reward: float | None = 1.0, said: str = "hello", **fields: Any) -> Rollout:
    return Rollout(
        example_id=str(number),
        index=0,
        seed=0,
        prompt=[{"role": "user", "content": "Say hello."}],
        completion=[{"role": "assistant", "content": said}, {"role": "user", "content": "Thanks."}],
        reward=reward,
        **fields,
    )


def test_rows_end_with_the_last_message_of_the_model() -> None:
    rows, report = select_rows([rollout(1)])
    assert [message["role"] for message in rows[0]["messages"]] == ["user", "assistant"]
    assert (rows[0]["example_id"], rows[0]["index"], rows[0]["reward"]) == ("1", 0, 1.0)
    assert report.kept == 1


def test_every_dropped_rollout_is_counted_with_its_reason() -> None:
    rollouts = [
        rollout(1),
        rollout(2),
        rollout(3, reward=0.2, said="no"),
        rollout(4, reward=None, failure=Failure(boundary="model", type="E", message="m")),
        rollout(5, said="hi", metrics={"won": 0.0}),
        rollout(6, said="ho", metrics={"won": 1.0}).model_copy(update={"completion": []}),
        rollout(7, said="hey", metrics={"won": 1.0}),
    ]
    for number in (0, 1, 2):
        rollouts[number].metrics["won"] = 1.0
    rows, report = select_rows(rollouts, min_reward=0.5, conditions=[Condition.parse("won==1")])
    assert [row["example_id"] for row in rows] == ["1", "7"]
    assert report.rollouts == 7
    assert report.dropped == {
        "repeated conversation": 1,
        "reward<0.5": 1,
        "failed": 1,
        "not won==1": 1,
        "no assistant message": 1,
    }
    assert sum(report.dropped.values()) + report.kept == report.rollouts


def test_repeats_can_be_kept() -> None:
    assert len(select_rows([rollout(1), rollout(2)], keep_repeats=True)[0]) == 2


@pytest.mark.parametrize(
    ("text", "reward", "holds"),
    [
        ("reward>=0.5", 0.5, True),
        ("reward>0.5", 0.5, False),
        ("reward<=1", 0.5, True),
        ("reward!=0.5", 0.5, False),
        ("turns<1", 0.5, True),
        ("reward < 0.4", 0.5, False),
    ],
)
def test_conditions_select_rollouts(text: str, reward: float, holds: bool) -> None:
    assert Condition.parse(text).holds(rollout(1, reward=reward)) is holds


@pytest.mark.parametrize("text", ["won", "won=1", "won>=", "won>=one", ">=1", "won>=1>=2"])
def test_an_invalid_condition_is_rejected(text: str) -> None:
    with pytest.raises(ConfigError, match="is not a condition"):
        Condition.parse(text)


def test_an_unknown_metric_lists_the_metrics() -> None:
    with pytest.raises(ConfigError, match="no metric `wun`") as raised:
        select_rows([rollout(1, metrics={"won": 1.0})], conditions=[Condition.parse("wun==1")])
    assert raised.value.hint is not None
    assert "won" in raised.value.hint


def test_rows_come_back_as_written_and_bad_lines_are_named(tmp_path: Path) -> None:
    rows, _ = select_rows([rollout(1), rollout(2, said="Grüße")])
    file = tmp_path / "deep" / "rows.jsonl"
    write_rows(rows, file)
    assert list(read_rows(file)) == rows
    assert [path.name for path in file.parent.iterdir()] == ["rows.jsonl"]
    file.write_text(file.read_text() + '\n{"text": "no messages"}\n')
    with pytest.raises(ConfigError, match="line 4"):
        list(read_rows(file))
    with pytest.raises(ConfigError, match="cannot read"):
        list(read_rows(tmp_path / "none.jsonl"))


def kept(*arguments: Any, **options: Any) -> list[str]:
    return [row["example_id"] for row in select_rows(*arguments, **options)[0]]


def test_near_duplicates_have_the_same_words() -> None:
    said = ["Take the center: 4.", "take   the CENTER 4", "Take the center: 5.", "Take the center: 4."]
    rollouts = [rollout(number, said=text) for number, text in enumerate(said)]
    assert kept(rollouts) == ["0", "1", "2"]
    assert kept(rollouts, near=True) == ["0", "2"]
    _, report = select_rows(rollouts, near=True)
    assert report.dropped == {"repeated conversation": 1, "nearly repeated conversation": 1}
    assert normalize([{"role": "user", "content": "Ａ b"}]) == normalize(
        [{"role": "user", "content": "a B!"}]
    )


def test_length_stop_reason_and_truncation_are_filters() -> None:
    rollouts = [
        rollout(1, said="a" * 10, stop_reason="over", usage=Usage(completion_tokens=3)),
        rollout(2, said="b" * 30, stop_reason="max_turns_reached", usage=Usage(completion_tokens=9)),
        rollout(3, said="c" * 5, stop_reason="over", truncated=True),
    ]
    assert kept(rollouts, conditions=[Condition.parse("characters<=10")]) == ["1", "3"]
    assert kept(rollouts, conditions=[Condition.parse("tokens>=3"), Condition.parse("tokens<9")]) == ["1"]
    assert kept(rollouts, conditions=[Condition.parse("truncated==1")]) == ["3"]
    assert kept(rollouts, stop_reasons=["over"]) == ["1", "3"]
    assert kept(rollouts, whole=True) == ["1", "2"]
    _, report = select_rows(rollouts, stop_reasons=["over"], whole=True)
    assert report.dropped == {"ended by max_turns_reached": 1, "truncated": 1}


def test_the_best_of_each_example_and_stratum_are_kept() -> None:
    sources = [
        Sourced(rollout(1, reward=0.2, said="a"), "one", stratum=0),
        Sourced(rollout(1, reward=0.9, said="b"), "two", stratum=0),
        Sourced(rollout(1, reward=0.9, said="c"), "two", stratum=0),
        Sourced(rollout(2, reward=0.1, said="d"), "one", stratum=0),
        Sourced(rollout(3, reward=0.5, said="e"), "one", stratum=1),
        Sourced(rollout(1, reward=0.3, said="f"), "three", environment="other"),
    ]
    rows, report = select_rows(sources, per_example=1)
    assert [row["messages"][-1]["content"] for row in rows] == ["b", "d", "e", "f"]
    assert report.dropped == {"more than 1 of its example": 2}
    rows, report = select_rows(sources, per_example=1, per_stratum=1)
    assert [row["messages"][-1]["content"] for row in rows] == ["b", "e", "f"]
    assert [row["run_id"] for row in rows] == ["two", "one", "three"]
    assert sum(report.dropped.values()) + report.kept == report.rollouts == 6


def test_samples_of_dropped_rollouts_are_kept_per_reason() -> None:
    rollouts = [rollout(number, reward=0.0, said=f"no {number}") for number in range(5)]
    _, report = select_rows([*rollouts, rollout(9), rollout(9)], min_reward=0.5, samples=2)
    assert [(one.reason, one.example_id, one.said) for one in report.samples] == [
        ("reward<0.5", "0", "no 0"),
        ("reward<0.5", "1", "no 1"),
        ("repeated conversation", "9", "hello"),
    ]
    assert report.dropped["reward<0.5"] == 5


def test_rows_contain_the_offered_tools() -> None:
    tools = [{"type": "function", "function": {"name": "look", "parameters": {}}}]
    rows, _ = select_rows([rollout(1, tools=tools), rollout(2)])
    assert rows[0]["tools"] == tools
    # The same words are another lesson where tools were offered.
    assert len(rows) == 2
    assert "tools" not in rows[1]
    assert "tools" not in rollout(2).model_dump()


def test_a_tools_parameters_keep_their_order(tmp_path: Path) -> None:
    """A chat template shows them in it, so another one would teach another prompt than is played with."""
    properties = {"b": {"type": "string"}, "a": {"type": "integer"}}
    parameters = {"type": "object", "properties": properties, "required": ["b", "a"]}
    tools = [{"type": "function", "function": {"name": "look", "parameters": parameters}}]
    rows, _ = select_rows([rollout(1, tools=tools)])
    write_rows(rows, tmp_path / "rows.jsonl")
    (row,) = read_rows(tmp_path / "rows.jsonl")
    assert json.dumps(row["tools"]) == json.dumps(tools)
