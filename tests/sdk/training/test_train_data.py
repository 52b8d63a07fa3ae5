from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from wander.errors import ConfigError
from wander.train.data import Condition, read_rows, select_rows, write_rows
from wander.types import Failure, Rollout


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


def test_rows_end_with_the_models_last_message() -> None:
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
def test_conditions(text: str, reward: float, holds: bool) -> None:
    assert Condition.parse(text).holds(rollout(1, reward=reward)) is holds


@pytest.mark.parametrize("text", ["won", "won=1", "won>=", "won>=one", ">=1", "won>=1>=2"])
def test_a_condition_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="is no condition"):
        Condition.parse(text)


def test_an_unknown_metric_is_named_with_those_there_are() -> None:
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
