"""Groups of environments: every example is played as its own environment plays it."""

from __future__ import annotations

from collections import Counter
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st
from wander.clients.replay import ReplayClient
from wander.clients.scripted import ScriptedClient
from wander.dataset import ProceduralRows
from wander.environment import LocalEnvironment
from wander.envs.group import EnvGroup, Mixture
from wander.envs.multi_turn import MultiTurnEnv
from wander.envs.single_turn import SingleTurnEnv
from wander.errors import ConfigError, DatasetError, EnvironmentFault
from wander.parsers import XMLParser
from wander.rollout.hooks import cleanup, stop, teardown
from wander.rubrics import Rubric
from wander.types import Rollout


def correct(completion, answer, parser) -> float:
    return float(parser.parse_answer(completion) == answer)


def length(completion) -> float:
    return float(len(completion[-1]["content"]))


def rows(prefix, count):
    return [{"question": f"{prefix}{number}", "answer": f"{prefix}{number}"} for number in range(count)]


class Dice(MultiTurnEnv):
    """Rolls a die for the model until it says stop; the die depends on seeds alone."""

    def __init__(self, count=3, **kwargs):
        super().__init__(dataset=rows("dice", count), rubric=Rubric([seen], [2.0]), max_turns=4, **kwargs)
        self.cleaned: list[str] = []
        self.closed = False

    def setup_state(self, state):
        state["example_seen"] = state.example.model_dump()

    def env_response(self, messages, state):
        return [{"role": "user", "content": str(self.rng(state, len(state.turns)).randrange(10**9))}]

    @stop
    def said_stop(self, state):
        return bool(state.completion) and state.completion[-1]["content"] == "stop"

    @cleanup
    def note(self, state):
        self.cleaned.append(state.example.example_id)

    @teardown
    def close(self):
        self.closed = True


def seen(state) -> float:
    state["public"]["example"] = state["example_seen"]
    return 0.5


def qa(count=4, **kwargs):
    kwargs.setdefault("rubric", Rubric([correct, length], [1.0, 0.0]))
    return SingleTurnEnv(dataset=rows("qa", count), **kwargs)


def echo(request):
    question = request.messages[-1]["content"]
    return question if question.startswith("qa") else ["more", "stop"][request.turn]


async def test_every_example_is_played_like_by_its_member():
    dice, answers = Dice(), qa(parser=XMLParser(["answer"]), rubric=Rubric([correct]))
    group = EnvGroup({"dice": dice, "qa": answers})

    def script(request):
        question = request.messages[-1]["content"]
        return f"<answer>{question}</answer>" if question.startswith("qa") else echo(request)

    for example in group.dataset():
        rollout = await group.rollout(ScriptedClient(script), example, run_seed=5)
        name, _, own_id = rollout.example_id.partition("/")
        member = group.members[name]
        own = next(each for each in member.dataset() if each.example_id == own_id)
        alone = await member.rollout(ScriptedClient(script), own, run_seed=5)
        assert rollout.completion == alone.completion
        assert (rollout.reward, rollout.stop_reason, rollout.seed) == (
            alone.reward,
            alone.stop_reason,
            alone.seed,
        )
        assert rollout.metrics == {f"{name}.{metric}": value for metric, value in alone.metrics.items()}
        assert rollout.info == alone.info, "the member knows its example by its own id and position"
        assert rollout.reward == 1.0
    assert dice.cleaned.count("0") == 2, "the member's hooks ran, in the group and alone"


async def test_mixing_changes_no_seed():
    alone = {f"dice/{example.example_id}": example.seed for example in Dice().dataset()}
    for members in ({"dice": Dice(), "qa": qa()}, {"qa": qa(9), "dice": Dice()}):
        group = EnvGroup(members)
        seeds = {example.example_id: example.seed for example in group.dataset()}
        assert alone.items() <= seeds.items()


async def test_examples_with_equal_ids_go_to_their_own_members():
    group = EnvGroup([qa(2), qa(2, rubric=Rubric([length]))], ["first", "second"])
    ids = [example.example_id for example in group.dataset()]
    assert sorted(ids) == ["first/0", "first/1", "second/0", "second/1"]
    local = LocalEnvironment(group)
    for example in await local.examples("train"):
        rollout = await local.rollout(ScriptedClient(echo), example)
        owner = example.example_id.partition("/")[0]
        assert {metric.partition(".")[0] for metric in rollout.metrics} == {owner}
        assert rollout.reward == (1.0 if owner == "first" else 3.0)


def test_the_group_describes_its_members():
    group = EnvGroup(
        {"dice": Dice(), "qa": qa(rubric=Rubric([correct, length], [1.0, -0.5]))}, summary="both"
    )
    info = group.info
    assert info.kind == "group"
    assert [each.name for each in info.reward_functions] == ["dice.seen", "qa.correct", "qa.length"]
    assert [each.weight for each in info.reward_functions] == [2.0, 1.0, -0.5]
    assert (info.max_turns, info.deterministic, info.train_examples, info.summary) == (4, True, 7, "both")
    assert group.reward_bounds == (-0.5, 2.0)
    assert not EnvGroup({"a": qa(deterministic=False), "b": qa()}).info.deterministic
    assert EnvGroup({"a": MultiTurnEnv_(), "b": qa()}).info.max_turns is None


class MultiTurnEnv_(MultiTurnEnv):
    def __init__(self):
        super().__init__(dataset=rows("x", 1))

    def env_response(self, messages, state):
        return []


async def test_splits_are_those_of_the_members():
    both = SingleTurnEnv(dataset=rows("train", 2), eval_dataset=rows("eval", 3))
    group = EnvGroup({"both": both, "only": qa(2)})
    train = [example.example_id for example in group.dataset("train")]
    evaluation = list(group.dataset("eval"))
    assert Counter(each.partition("/")[0] for each in train) == {"both": 2, "only": 2}
    assert Counter(each.example_id.partition("/")[0] for each in evaluation) == {"both": 3, "only": 2}
    assert {each.split for each in evaluation} == {"eval"}
    assert (group.info.train_examples, group.info.eval_examples) == (4, 5)
    rollout = await group.rollout(ScriptedClient(["x"]), evaluation[0])
    assert rollout.failure is None


def test_examples_survive_the_wire():
    group = EnvGroup({"dice": Dice(), "qa": qa()})
    for example in group.dataset():
        assert type(example).model_validate_json(example.model_dump_json()) == example
    assert [e.digest() for e in group.dataset()] == [
        e.digest() for e in EnvGroup({"dice": Dice(), "qa": qa()}).dataset()
    ]


async def test_groups_can_be_nested():
    inner = EnvGroup({"dice": Dice(2), "qa": qa(2)})
    outer = EnvGroup({"inner": inner, "more": qa(1)})
    examples = {example.example_id: example for example in outer.dataset()}
    assert set(examples) == {"inner/dice/0", "inner/dice/1", "inner/qa/0", "inner/qa/1", "more/0"}
    rollout = await outer.rollout(ScriptedClient(echo), examples["inner/dice/1"])
    assert rollout.metrics == {"inner.dice.seen": 0.5}
    assert rollout.info["example"] == Dice(2).dataset()[1].model_dump()
    assert rollout.example_id == "inner/dice/1"


async def test_rollouts_are_replayed_by_the_groups_ids():
    group = EnvGroup({"dice": Dice(), "qa": qa()})
    examples = list(group.dataset())
    played = [await group.rollout(ScriptedClient(echo), example, index=1) for example in examples]
    client = ReplayClient([Rollout.model_validate_json(each.model_dump_json()) for each in played])
    for example, first in zip(examples, played, strict=True):
        again = await group.rollout(client, example, index=1)
        assert (again.completion, again.reward, again.metrics) == (
            first.completion,
            first.reward,
            first.metrics,
        )


async def test_a_failing_member_fails_its_own_rollouts():
    class Broken(Dice):
        def setup_state(self, state):
            raise RuntimeError("hook broke")

    group = EnvGroup({"broken": Broken(1), "qa": qa(1)})
    failed, fine = [await group.rollout(ScriptedClient(echo), example) for example in group.dataset()]
    assert failed.failure.boundary == "environment"
    assert failed.example_id == "broken/0"
    assert (fine.failure, fine.reward) == (None, 1.0)


async def test_members_score_their_groups_together():
    def best(completions) -> list[float]:
        lengths = [len(completion[-1]["content"]) for completion in completions]
        return [float(length == max(lengths)) for length in lengths]

    group = EnvGroup({"best": qa(1, rubric=Rubric([best])), "qa": qa(1)})
    assert group.info.group_rewards
    compared, single = list(group.dataset())
    script = ScriptedClient(lambda request: "qa0" * (1 + int(request.rollout_id[-1])))
    rollouts = await group.rollout_group(script, compared, indices=[0, 1])
    assert [(each.reward, each.metrics, each.index) for each in rollouts] == [
        (0.0, {"best.best": 0.0}, 0),
        (1.0, {"best.best": 1.0}, 1),
    ]
    rollouts = await group.rollout_group(script, single, indices=[0, 1])
    assert [each.metrics["qa.correct"] for each in rollouts] == [1.0, 0.0]


async def test_the_groups_rubric_scores_states_by_itself():
    group = EnvGroup({"dice": Dice(1), "qa": qa(1)})
    example = next(each for each in group.dataset() if each.example_id == "qa/0")
    states = [group.init_state(example, index=index) for index in range(2)]
    for state, text in zip(states, ["qa0", "no"], strict=True):
        state["completion"] = [{"role": "assistant", "content": text}]
    score = await group.rubric.score(states[0])
    assert (score.reward, score.metrics) == (1.0, {"qa.correct": 1.0, "qa.length": 3.0})
    assert [each.reward for each in await group.rubric.score_group(states)] == [1.0, 0.0]
    assert await group.rubric.score_group([]) == []


async def test_every_member_is_torn_down():
    class Stuck(Dice):
        @teardown
        def close(self):
            raise RuntimeError("stuck")

    first, last = Dice(), Dice()
    group = EnvGroup({"first": first, "stuck": Stuck(), "last": last})
    with pytest.raises(EnvironmentFault, match="stuck"):
        await group.teardown()
    assert first.closed
    assert last.closed


def test_gold_answers_are_the_members():
    class Gold(Dice):
        def gold(self, example):
            return f"gold of {example.example_id}"

    group = EnvGroup({"gold": Gold(1), "qa": qa(1)})
    assert [group.gold(example) for example in group.dataset()] == ["gold of 0", None]


def test_content_parts_and_columns_pass_through():
    parts = [{"type": "image_url", "image_url": {"url": "data:,"}}]
    row = {
        "prompt": [{"role": "user", "content": parts}],
        "answer": {"x": [1]},
        "info": {"a": 1},
        "extra": "e",
    }
    member = SingleTurnEnv(dataset=[{**row, "stratum": 2}])
    (example,) = EnvGroup({"m": member}).dataset()
    assert example.prompt == row["prompt"]
    assert (example.answer, example.info, example.columns["extra"]) == ({"x": [1]}, {"a": 1}, "e")
    assert example.stratum == 2


def endless(prefix):
    return SingleTurnEnv(dataset=ProceduralRows(lambda index: {"question": f"{prefix}{index}"}))


def test_a_group_with_an_endless_member_is_endless():
    group = EnvGroup({"a": endless("a"), "b": endless("b")}, weights={"b": 3, "a": 1})
    assert group.info.train_examples is None
    drawn = Counter(each.example_id.partition("/")[0] for each in group.dataset().examples(0, 400))
    assert drawn == {"a": 100, "b": 300}
    mixed = EnvGroup({"a": endless("a"), "qa": qa(3)})
    assert mixed.info.train_examples == 7, "as often as the other goes, and once more before it is missed"
    with pytest.raises(DatasetError, match="endless"):
        group.dataset().examples()


def test_nothing_is_read_before_it_is_needed():
    read = []

    def generated():
        read.append(1)
        yield {"question": "q"}

    group = EnvGroup({"lazy": SingleTurnEnv(dataset=generated), "qa": qa()})
    assert read == []
    assert len(list(group.dataset())) == 5


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (([],), "0 environments"),
        (([qa(), qa()],), "have the name `SingleTurnEnv`"),
        (([qa(), qa()], ["a"]), "given 1 names"),
    ],
)
def test_members_require_names(arguments, told):
    with pytest.raises(ConfigError, match=told):
        EnvGroup(*arguments)


@pytest.mark.parametrize(
    "weights", [[1], {"a": 1}, {"a": 1, "c": 1}, [1, 0], [1, -1], [1, float("nan")], [1, True]]
)
def test_weights_must_match_the_members(weights):
    with pytest.raises(ConfigError, match="weight"):
        EnvGroup({"a": qa(), "b": qa()}, weights=weights)


def test_named_members_keep_their_names():
    assert list(EnvGroup([qa(name="first"), qa(name="second")]).members) == ["first", "second"]


LENGTHS = st.lists(st.integers(0, 30), min_size=1, max_size=5)
WEIGHTS = st.floats(0.01, 100) | st.integers(1, 9)


@given(LENGTHS)
def test_without_weights_every_example_appears_once(lengths):
    mixture = Mixture(lengths)
    assert mixture.length == sum(lengths)
    shown = [mixture.at(index) for index in range(sum(lengths))]
    assert sorted(shown) == [(member, j) for member, count in enumerate(lengths) for j in range(count)]


@given(st.data(), st.lists(st.integers(1, 30), min_size=1, max_size=5))
def test_weights_hold_for_every_prefix(data, lengths):
    weights = [data.draw(WEIGHTS) for _ in lengths]
    mixture = Mixture(lengths, weights)
    taken = Counter()
    total = sum(map(Fraction, weights))
    for index in range(mixture.length):
        member, position = mixture.at(index)
        assert position == taken[member], "a member's own order is kept"
        taken[member] += 1
        for other, weight in enumerate(weights):
            share = Fraction(weight) / total * (index + 1)
            assert abs(taken[other] - share) <= len(weights)
    assert all(taken[member] <= count for member, count in enumerate(lengths))
    following = mixture.at(mixture.length)
    assert following[1] >= lengths[following[0]], "it ends only where a member has nothing more"


@given(st.lists(st.integers(1, 9), min_size=1, max_size=4), st.data())
def test_positions_do_not_depend_on_the_order_of_access(weights, data):
    lengths = [None] * len(weights)
    indexes = data.draw(st.lists(st.integers(0, 200), max_size=5))
    asked = Mixture(lengths, weights)
    read = Mixture(lengths, weights)
    in_order = [read.at(index) for index in range(201)]
    assert [asked.at(index) for index in indexes] == [in_order[index] for index in indexes]
