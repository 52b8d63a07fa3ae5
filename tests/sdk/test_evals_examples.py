"""How examples are packed and found again."""

from __future__ import annotations

import pytest
from wander.evals.store.examples import PackedExamples, RolloutOrder
from wander.types import Example, task_set_digest


def example(number: int) -> Example:
    prompt = [
        {"role": "user", "content": f"line\nbreak ö \ud83d {number}".encode("utf-8", "replace").decode()}
    ]
    columns = {"z": 1.5, "a": [None, {"b": True, "a": -0.0}], "big": 10**30}
    return Example(
        example_id=f"e{number}", index=number, seed=number, prompt=prompt, stratum=number % 3, columns=columns
    )


@pytest.mark.parametrize("count", [0, 1, 511, 512, 1300])
def test_packed_examples_are_unpacked_unchanged(count: int) -> None:
    examples = [example(number) for number in range(count)]
    packed = PackedExamples(examples)
    assert list(packed) == examples
    assert packed[::400] == examples[::400]
    assert [packed[-1]] == examples[-1:] if count else not packed
    assert [each.model_dump_json() for each in packed] == [each.model_dump_json() for each in examples]
    assert packed.task_set_sha256 == task_set_digest(examples)
    assert (packed.ids, packed.strata) == (
        [each.example_id for each in examples],
        [each.stratum for each in examples],
    )


@pytest.mark.parametrize("names", [["0", "1", "2"], ["1", "0", "2"], ["a", "b", "01"]])
def test_positions_match_the_manifest(names: list[str]) -> None:
    order = RolloutOrder(names, 2)
    found = [order.find((name, index)) for name in names for index in range(2)]
    assert found == list(range(6))
    for key in (("3", 0), (names[0], 2), (names[0], -1), ("00", 0), ("²", 0), ("9" * 5000, 0), ("", 0)):
        assert order.find(key) is None
