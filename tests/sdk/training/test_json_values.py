"""Values of numeric libraries become JSON values exactly, or are refused."""

from __future__ import annotations

import dataclasses
import enum
import json
import math
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from fractions import Fraction
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from wander import Rubric, ScriptedClient, SingleTurnEnv, ToolEnv
from wander.envs.tool.results import tool_content
from wander.rollout.json_values import MOST_VALUES, NotExact, as_json, as_number

torch = pytest.importorskip("torch")
pd = pytest.importorskip("pandas")
pa = pytest.importorskip("pyarrow")


@dataclasses.dataclass
class Point:
    at: Any


class Level(enum.Enum):
    HIGH = np.int64(3)


class Elided:
    def __repr__(self) -> str:
        return "Elided([0, 1, ..., 99])"


class Addressed:
    __repr__ = object.__repr__


EXACT: list[tuple[Any, Any]] = [
    (np.int64(5), 5),
    (np.float32(0.5), 0.5),
    (np.bool_(True), True),
    (np.str_("x"), "x"),
    (np.array(5), 5),
    (np.array([[1, 2], [3, 4]]), [[1, 2], [3, 4]]),
    (np.array([1, "a", None], dtype=object), [1, "a", None]),
    (np.array([(1, 2.5)], dtype=[("a", int), ("b", float)]), [{"a": 1, "b": 2.5}]),
    (np.ma.array([1, 2], mask=[0, 1]), [1, None]),
    (np.datetime64("2026-01-02"), "2026-01-02"),
    (np.array(["2026-01-02"], dtype="M8[D]"), ["2026-01-02"]),
    (np.longdouble(1.5), 1.5),
    (torch.tensor([1.5, 2.0]), [1.5, 2.0]),
    (torch.tensor(3), 3),
    (torch.tensor([1.5], dtype=torch.bfloat16, requires_grad=True), [1.5]),
    (torch.tensor([[1, 0]]).to_sparse(), [[1, 0]]),
    (pd.Series([1, 2]), [1, 2]),
    (pd.Series([1, 2], index=["a", "b"]), {"a": 1, "b": 2}),
    (pd.Series([1, 2], index=["a", "a"]), [["a", 1], ["a", 2]]),
    (pd.Series([1, None], dtype="Int64"), [1, None]),
    (pd.DataFrame({"a": [1], "b": ["x"]}), [{"a": 1, "b": "x"}]),
    (pd.DataFrame({"a": [1]}, index=["row"]), [{"index": "row", "a": 1}]),
    (pd.DataFrame([[1, 2]], columns=["a", "a"]), {"columns": ["a", "a"], "rows": [[1, 2]]}),
    (pd.Timestamp("2026-01-02"), "2026-01-02T00:00:00"),
    (pd.NaT, None),
    (pd.NA, None),
    (pd.Categorical(["a"]), ["a"]),
    (pa.table({"a": [1]}), [{"a": 1}]),
    (pa.scalar(5), 5),
    (Decimal("1.50"), 1.5),
    (Decimal("1E+3"), 1000),
    (Fraction(1, 3), "1/3"),
    (Fraction(4, 2), 2),
    (datetime(2026, 1, 2, tzinfo=UTC), "2026-01-02T00:00:00+00:00"),
    (date(2026, 1, 2), "2026-01-02"),
    (timedelta(hours=1), "PT1H"),
    (b"text", "text"),
    ({3, 1, 2}, [1, 2, 3]),
    ({np.int64(1): np.float64(0.5)}, {"1": 0.5}),
    (Point(np.array([1])), {"at": [1]}),
    (SimpleNamespace(x=np.arange(3)), {"x": [0, 1, 2]}),
    (Level.HIGH, 3),
    ((each for each in [np.int64(1)]), [1]),
]


@pytest.mark.parametrize(("value", "expected"), EXACT, ids=[type(value).__name__ for value, _ in EXACT])
def test_every_kind_of_value_is_converted(value: Any, expected: Any) -> None:
    found = as_json(value)
    assert found == expected
    assert json.loads(json.dumps(found)) == expected


@pytest.mark.parametrize(
    "value",
    [
        np.zeros(MOST_VALUES + 1),
        torch.zeros(2, MOST_VALUES),
        pd.DataFrame({"a": range(MOST_VALUES + 1)}),
        Decimal("3.14159265358979323846"),
        np.longdouble("0.1"),
        10**5000,
        b"\xff",
        {1: "a", "1": "b"},
        Elided(),
        Addressed(),
        object(),
    ],
    ids=lambda value: type(value).__name__,
)
def test_values_without_an_exact_form_are_rejected(value: Any) -> None:
    with pytest.raises(NotExact):
        as_json(value)
    with pytest.raises(TypeError, match="`look`"):
        tool_content(value, "look")


@given(
    hnp.arrays(
        hnp.integer_dtypes() | hnp.floating_dtypes(sizes=(16, 32, 64)) | hnp.boolean_dtypes(),
        hnp.array_shapes(max_dims=3, max_side=5, min_side=0),
    )
)
def test_an_array_is_shown_completely(array: Any) -> None:
    found = as_json(array)
    again = np.array(found, dtype=array.dtype).reshape(array.shape)
    assert np.array_equal(again, array, equal_nan=array.dtype.kind == "f")
    text = tool_content(array, "look")
    assert "..." not in text
    assert '"' not in text


def test_a_long_array_is_shown_completely() -> None:
    content = tool_content(np.arange(5000), "look")
    assert json.loads(content) == list(range(5000))


@given(st.floats(allow_nan=False, allow_infinity=False) | st.integers(-(2**53), 2**53))
def test_a_number_of_any_library_is_a_reward(number: float) -> None:
    for value in (number, np.float64(number), np.array(number), np.array([number]), Decimal(number)):
        assert as_number(value) == float(number)
    assert as_number(torch.tensor(number, dtype=torch.float64)) == float(number)
    assert as_number(pd.Series([number])) == float(number)
    assert as_number(np.float32(0.1)) == float(np.float32(0.1))


@pytest.mark.parametrize(
    "value",
    [
        "1.0",
        b"1",
        None,
        [1.0],
        np.array([1.0, 2.0]),
        np.array([]),
        {"a": 1},
        np.datetime64("2026-01-02"),
        pd.NA,
    ],
    ids=str,
)
def test_a_value_that_is_not_one_number_is_not_a_reward(value: Any) -> None:
    with pytest.raises(TypeError):
        as_number(value)


def test_nan_stays_nan() -> None:
    assert math.isnan(as_json(np.float64("nan")))
    assert tool_content(np.array([1.0, np.nan]), "look") == "[1.0, NaN]"


async def test_values_of_other_libraries_in_a_rollout_are_converted() -> None:
    def look() -> Any:
        return np.arange(2000)

    def tensor(completion: Any) -> Any:
        return torch.tensor(0.5)

    def scalar(completion: Any) -> Any:
        return np.bool_(True)

    class Env(ToolEnv):
        def setup_state(self, state: Any) -> None:
            state["public"]["board"] = np.eye(2, dtype=int)

    call = {"id": "a", "type": "function", "function": {"name": "look", "arguments": "{}"}}
    env = Env(eval_dataset=[{"question": "q"}], tools=[look], rubric=Rubric([tensor, scalar]))
    client = ScriptedClient([{"content": "", "tool_calls": [call]}, "done"])
    rollout = await env.rollout(client, env.dataset("eval")[0])
    assert (rollout.failure, rollout.reward) == (None, 1.5)
    assert json.loads(rollout.completion[1]["content"]) == list(range(2000))
    assert rollout.info["board"] == [[1, 0], [0, 1]]


async def test_a_group_may_be_scored_by_an_array() -> None:
    def ranks(completions: Any) -> Any:
        return torch.tensor([0.25 * place for place in range(len(completions))])

    env = SingleTurnEnv(eval_dataset=[{"question": "q"}], rubric=Rubric([ranks]))
    example = env.dataset("eval")[0]
    rollouts = await env.rollout_group(ScriptedClient(["a"]), example, indices=range(3))
    assert [rollout.reward for rollout in rollouts] == [0.0, 0.25, 0.5]
