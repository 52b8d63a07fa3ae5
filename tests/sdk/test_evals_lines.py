"""Which line of a record speaks for a rollout: the last one, and only what failed may be repeated."""

from __future__ import annotations

import pytest
from wander.evals.store.lines import LineRule

GOOD, BAD = False, True


@pytest.mark.parametrize(
    ("groups", "lines", "taken"),
    [
        (False, [(0, GOOD), (1, GOOD)], [True, True]),
        (False, [(0, BAD), (0, GOOD)], [True, True]),
        (False, [(0, BAD), (0, BAD), (0, GOOD)], [True, True, True]),
        (False, [(0, GOOD), (0, GOOD)], [True, False]),
        (False, [(0, GOOD), (0, BAD)], [True, False]),
        (False, [(0, BAD), (1, GOOD), (1, GOOD)], [True, True, False]),
        (True, [(0, GOOD), (1, GOOD), (0, GOOD)], [True, True, False]),
        (True, [(0, GOOD), (1, BAD), (0, GOOD), (1, GOOD)], [True, True, True, True]),
        (True, [(0, GOOD), (1, BAD), (0, GOOD), (1, GOOD), (0, GOOD)], [True, True, True, True, False]),
    ],
)
def test_only_failed_rollouts_are_played_again(
    groups: bool, lines: list[tuple[int, bool]], taken: list[bool]
) -> None:
    rule = LineRule(group_rewards=groups)
    assert [rule.takes(("a", index), failed=failed) for index, failed in lines] == taken


def test_a_failed_example_repeats_no_other_example() -> None:
    rule = LineRule(group_rewards=True)
    assert rule.takes(("a", 0), failed=True)
    assert rule.takes(("b", 0), failed=False)
    assert not rule.takes(("b", 0), failed=False)
