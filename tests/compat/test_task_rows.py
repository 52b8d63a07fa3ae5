"""Tasks of `verifiers.v1` as examples, without the library: they are objects, not rows."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from wander_compat.tasksets.environment import TaskRows


class Data(SimpleNamespace):
    """What a task holds, as the library's model of it."""

    def model_dump(self, **options: Any) -> dict[str, Any]:
        return dict(vars(self))


def make_rows(*ids: int | None) -> TaskRows:
    """Return the rows of a set whose tasks have these ids."""
    made = [
        SimpleNamespace(data=Data(idx=each, system_prompt="Add.", prompt=f"{place} + 1", answer=place + 1))
        for place, each in enumerate(ids)
    ]
    return TaskRows(SimpleNamespace(INFINITE=False, load=lambda: made, config=SimpleNamespace(id="sums")))


@pytest.mark.parametrize(
    ("ids", "shown"),
    [((7, 3), ["7", "3"]), ((None, None), ["0", "1"]), ((5, 5), ["0", "1"])],
    ids=["named", "nameless", "named alike"],
)
def test_tasks_become_examples_with_their_own_ids(ids, shown):
    rows = make_rows(*ids)
    examples = rows.examples()
    assert [each.example_id for each in examples] == shown
    assert [each["content"] for each in examples[1].prompt] == ["Add.", "1 + 1"]
    assert [rows.task(each).data.answer for each in examples] == [each.answer for each in examples] == [1, 2]
