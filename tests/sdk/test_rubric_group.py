"""Rubrics add up without losing a value: groups of rubrics, and functions that score groups of rollouts."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from wander import LocalEnvironment, Parser, Rubric, ScriptedClient, SingleTurnEnv
from wander.errors import ConfigError, ModelError, RubricError
from wander.rubrics import RubricGroup
from wander.rubrics.reward_function import is_group_function

WEIGHTS = st.floats(-10, 10)
VALUES = st.floats(-100, 100)


def constant(value, name):
    """Return a reward function of that name that gives one value."""

    def function(completion):
        return value

    function.__name__ = name
    return function


def length(completion):
    return len(completion[-1]["content"])


def longest(completions):
    lengths = [len(completion[-1]["content"]) for completion in completions]
    return [float(each == max(lengths)) for each in lengths]


def environment(rubric, rows=None):
    return SingleTurnEnv(rows or [{"question": "q", "answer": "a"}], rubric=rubric)


async def played(rubric, reply="yes"):
    env = environment(rubric)
    return await env.rollout(ScriptedClient([reply]), env.dataset()[0])


async def played_together(rubric, replies, rows=None):
    env = environment(rubric, rows)
    client = ScriptedClient(lambda request: replies[int(request.rollout_id.rpartition("/")[2])])
    return await env.rollout_group(client, env.dataset()[0], indices=range(len(replies)))


@given(st.lists(st.lists(st.tuples(VALUES, WEIGHTS), max_size=3), min_size=1, max_size=4))
async def test_the_reward_of_a_group_is_the_sum_of_its_members(members):
    rubrics = [
        Rubric(
            [constant(value, f"f{place}") for place, (value, _) in enumerate(pairs)],
            [weight for _, weight in pairs],
        )
        for pairs in members
    ]
    rollout = await played(RubricGroup(rubrics))
    alone = [(await played(rubric)).reward for rubric in rubrics]
    assert math.isclose(rollout.reward, sum(alone), abs_tol=1e-9)
    assert len(rollout.metrics) == sum(len(pairs) for pairs in members)
    assert sorted(rollout.metrics.values()) == sorted(value for pairs in members for value, _ in pairs)


async def test_functions_with_equal_names_are_distinguished():
    group = RubricGroup(
        [Rubric([constant(1.0, "exact"), constant(5.0, "alone")]), Rubric([constant(2.0, "exact")], [0.5])]
    )
    rollout = await played(group)
    assert rollout.metrics == {"1.exact": 1.0, "alone": 5.0, "2.exact": 2.0}
    assert rollout.reward == 7.0
    assert [info.name for info in group.describe()] == list(rollout.metrics)
    named = RubricGroup({"style": Rubric([length]), "facts": Rubric([length])})
    assert set((await played(named)).metrics) == {"style.length", "facts.length"}


async def test_groups_nest_and_accept_their_own_functions():
    inner = RubricGroup([Rubric([length]), Rubric([length])])
    group = RubricGroup([inner, RubricGroup([Rubric([length]), Rubric([length])])])
    group.add_reward_func(constant(10.0, "own"), weight=2.0)
    group.add_metric(constant(3.0, "length"))
    rollout = await played(group, "abc")
    assert set(rollout.metrics) == {"1.1.length", "1.2.length", "2.1.length", "2.2.length", "own", "length"}
    assert rollout.reward == 4 * 3 + 20
    assert [info.name for info in group.describe()] == list(rollout.metrics)


async def test_members_keep_their_own_parsers():
    def parsed(completion, parser):
        return float(parser.parse_answer(completion))

    group = RubricGroup(
        {"a": Rubric([parsed], parser=Parser(len)), "b": Rubric([parsed], parser=Parser(int))}
    )
    assert (await played(group, "1234")).metrics == {"a.parsed": 4.0, "b.parsed": 1234.0}


async def test_one_members_error_makes_the_reward_none_and_keeps_the_other_metrics():
    def broken(completion):
        raise ValueError("no")

    rollout = await played(RubricGroup([Rubric([broken]), Rubric([length])]))
    assert rollout.reward is None
    assert rollout.metrics == {"length": 3.0}
    assert (rollout.failure.boundary, rollout.failure.type) == ("rubric", "RubricError")


async def test_a_member_that_overrides_score_is_reported_by_name():
    class Own(Rubric):
        async def score(self, state, parser=None):
            score = await super().score(state, parser)
            score.metrics["length"] = -1.0
            return score

    rollout = await played(RubricGroup([Rubric([length]), Own()]))
    assert rollout.metrics == {"length": 3.0, "2.length": -1.0}


async def test_closing_the_environment_closes_every_member():
    closed = []

    class Closing(Rubric):
        async def close(self):
            closed.append(self)

    members = [Closing(), Closing()]
    await LocalEnvironment(environment(RubricGroup(members))).close()
    assert closed == members


def test_an_empty_group_is_rejected():
    with pytest.raises(ConfigError):
        RubricGroup([])


def scores_list(completion, states) -> list[float]: ...


def takes_answers_column(completion, answers): ...


def plural_only(answers, parser): ...


@pytest.mark.parametrize(
    ("function", "of_group"),
    [
        (longest, True),
        (scores_list, True),
        (takes_answers_column, False),
        (plural_only, True),
        (length, False),
    ],
)
def test_plurals_or_a_list_make_a_group_function(function, of_group):
    assert is_group_function(function) is of_group


async def test_a_group_function_sees_the_whole_group():
    rollouts = await played_together(Rubric([longest, length], [1.0, 0.1]), ["a", "ccc", "bb"])
    assert [rollout.metrics["longest"] for rollout in rollouts] == [0.0, 1.0, 0.0]
    assert [round(rollout.reward, 6) for rollout in rollouts] == [0.1, 1.3, 0.2]
    assert [rollout.index for rollout in rollouts] == [0, 1, 2]


async def test_columns_are_lists_and_the_parser_is_shared():
    seen = {}

    async def compare(states, answers, level, parser, **everything):
        seen.update(answers=answers, level=level, parser=parser, names=set(everything))
        return [0 for _ in states]

    rubric = Rubric([compare], parser=Parser())
    rows = [{"question": "q", "answer": "a", "level": 3}]
    await played_together(rubric, ["x", "y"], rows)
    assert seen["answers"] == ["a", "a"]
    assert seen["level"] == [3, 3]
    assert seen["parser"] is rubric.parser
    assert {"prompts", "completions", "infos", "tasks", "examples"} <= seen["names"]


async def test_a_failed_rollout_is_left_out_of_its_group():
    def best(completions):
        return [1.0 / len(completions)] * len(completions)

    def reply(request):
        if request.rollout_id.endswith("/1"):
            raise ModelError("down")
        return "yes"

    env = environment(Rubric([best]))
    rollouts = await env.rollout_group(ScriptedClient(reply), env.dataset()[0], indices=[0, 1, 2])
    assert [rollout.reward for rollout in rollouts] == [0.5, None, 0.5]
    assert rollouts[1].failure.boundary == "model"


@pytest.mark.parametrize(
    ("result", "said"),
    [
        (lambda n: [1.0] * (n + 1), "for 2 rollouts"),
        (lambda n: 1.0, "not iterable"),
        (lambda n: "ab", "for 2"),
    ],
)
async def test_a_result_of_the_wrong_length_fails_the_whole_group(result, said):
    def compare(states):
        return result(len(states))

    rollouts = await played_together(Rubric([compare]), ["a", "b"])
    assert [rollout.reward for rollout in rollouts] == [None, None]
    assert all(said in rollout.failure.message for rollout in rollouts)


async def test_a_value_that_is_not_a_number_fails_only_its_rollout():
    def compare(states):
        return [1.0, math.nan]

    rollouts = await played_together(Rubric([compare]), ["a", "b"])
    assert [rollout.reward for rollout in rollouts] == [1.0, None]
    assert rollouts[1].failure.boundary == "rubric"


async def test_a_single_rollout_is_not_scored_by_a_group_function():
    rollout = await played(Rubric([longest]))
    assert rollout.reward is None
    assert rollout.failure.boundary == "rubric"
    assert "compares the rollouts of a group" in rollout.failure.message


@given(st.lists(st.text(max_size=5), min_size=1, max_size=5), WEIGHTS)
async def test_without_group_functions_group_scoring_equals_single_scoring(replies, weight):
    rubric = Rubric([length, constant(0.5, "half")], [weight, 1.0])
    together = await played_together(rubric, replies)
    alone = [await played(rubric, reply) for reply in replies]
    assert [each.reward for each in together] == [each.reward for each in alone]
    assert [each.metrics for each in together] == [each.metrics for each in alone]


async def test_a_rubric_group_scores_groups():
    group = RubricGroup([Rubric([longest]), Rubric([longest, length], [0.5, 0.0])])
    assert environment(group).info.group_rewards
    assert not environment(Rubric([length])).info.group_rewards
    rollouts = await played_together(group, ["a", "bb"])
    assert [rollout.reward for rollout in rollouts] == [0.0, 1.5]
    assert set(rollouts[0].metrics) == {"1.longest", "2.longest", "length"}


async def test_exceptions_of_an_overridden_score_group_are_recorded():
    class Own(Rubric):
        async def score_group(self, states, parser=None):
            raise KeyError("lost")

    rollouts = await played_together(Own([longest]), ["a", "b"])
    assert [rollout.failure.type for rollout in rollouts] == [RubricError.__name__] * 2
