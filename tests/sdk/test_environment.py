"""What an environment takes, says about itself, and keeps apart from its rollouts."""

from __future__ import annotations

import copy

import pytest
from wander import LocalEnvironment, MultiTurnEnv, Parser, Rubric, ScriptedClient, SingleTurnEnv, XMLParser
from wander.dataset import ProceduralRows
from wander.errors import ConfigError, DatasetError, EnvironmentFault
from wander.rollout.hooks import teardown
from wander.seeding import derived_seed
from wander.types import SamplingArgs

ROWS = [
    {"question": "2+2?", "answer": "4", "info": {"tags": ["sum"]}, "level": 1},
    {"question": "3+4?", "answer": "7", "info": {"tags": ["sum"]}, "level": 2},
]


def exact(completion, answer) -> bool:
    return completion[-1]["content"] == answer


def adder(**arguments) -> SingleTurnEnv:
    return SingleTurnEnv(ROWS, rubric=Rubric([exact]), **arguments)


class Echo(MultiTurnEnv):
    def env_response(self, messages, state):
        return [{"role": "user", "content": f"you said {messages[-1]['content']}"}]


async def test_a_rollout_is_played_scored_and_recorded():
    env = adder(system_prompt="Add.", seed=3)
    example = env.dataset("train")[0]
    rollout = await env.rollout(ScriptedClient(["4"]), example, index=2)
    assert (rollout.example_id, rollout.index, rollout.seed) == ("0", 2, example.seed)
    assert [message["role"] for message in rollout.prompt] == ["system", "user"]
    assert rollout.completion == [{"role": "assistant", "content": "4"}]
    assert (rollout.reward, rollout.metrics, rollout.failure) == (1.0, {"exact": 1.0}, None)
    assert rollout.stop_reason == "answered"
    assert not rollout.truncated
    assert rollout.turns[0].context_messages == 2
    assert rollout.seconds >= rollout.scoring_seconds >= 0
    assert type(rollout).model_validate_json(rollout.model_dump_json()) == rollout


async def test_few_shot_examples_follow_the_gold_player():
    """What the answer column says will do; none is shown itself, and own messages begin with the question."""
    env = adder(system_prompt="Add.", few_shot=2, parser=XMLParser(["answer"]))
    prompt = env.dataset("eval")[1].prompt
    assert [(each["role"], each["content"]) for each in prompt] == [
        ("system", "Add."),
        ("user", "2+2?"),
        ("assistant", "<answer>\n4\n</answer>"),
        ("user", "3+4?"),
    ]
    apart = SingleTurnEnv(ROWS, ROWS[1:], few_shot=2)
    assert [each["content"] for each in apart.dataset("eval")[0].prompt] == ["2+2?", "4", "3+4?", "7", "3+4?"]
    seen = []
    client = ScriptedClient(lambda request: seen.append(request.own_messages) or "8")
    await env.rollout(client, env.dataset("eval")[1])
    assert seen == [[{"role": "user", "content": "3+4?"}]]


async def test_few_shot_games_end_before_the_question():
    class Told(Echo):
        def gold(self, example):
            return ["one", "two"]

    env = Told(ROWS, few_shot=1, max_turns=2)
    first = [message["content"] for message in env.dataset("train")[0].prompt]
    assert first == ["3+4?", "one", "you said one", "two", "2+2?"]  # another one stands in for itself
    seen = []
    client = ScriptedClient(lambda request: seen.append(request.own_messages) or "three")
    rollout = await env.rollout(client, env.dataset("train")[1])
    said = [message["content"] for message in rollout.prompt]
    assert said == ["2+2?", "one", "you said one", "two", "3+4?"]
    assert [[message["content"] for message in each] for each in seen] == [
        ["3+4?"],
        ["3+4?", "three", "you said three"],
    ]


def test_examples_that_cannot_be_shown_are_a_clear_error():
    silent = Echo(ROWS, few_shot=1)
    for _ in range(2):  # who asks again is not given the questions bare
        with pytest.raises(ConfigError, match="`Echo` has no `gold` completions of a single player"):
            silent.dataset()
    with pytest.raises(ConfigError, match="cannot show `-1` examples"):
        adder(few_shot=-1)

    class Wrong(Echo):
        def gold(self, example):
            return ["one"]

    with pytest.raises(ConfigError, match="example `0` cannot be shown: the script has 1 replies"):
        Wrong(ROWS, few_shot=1, max_turns=2).dataset()


async def test_a_wrong_answer_scores_zero_and_is_not_a_failure():
    env = adder()
    rollout = await env.rollout(ScriptedClient(["5"]), env.dataset("train")[0])
    assert (rollout.reward, rollout.failure) == (0.0, None)


def test_unknown_arguments_get_a_suggestion():
    with pytest.raises(TypeError, match="unknown argument `rubrik`; did you mean `rubric`"):
        adder(rubrik=1)
    with pytest.raises(TypeError, match="`Echo` got the unknown argument `zzz`; it accepts dataset"):
        Echo(ROWS, zzz=1)


def test_an_environment_needs_a_dataset():
    with pytest.raises(DatasetError, match="has no dataset"):
        SingleTurnEnv()


@pytest.mark.parametrize("bound", [0, -2, True, 2.0, None])
def test_max_turns_is_positive_or_unbounded(bound):
    with pytest.raises(ConfigError, match="max_turns"):
        Echo(ROWS, max_turns=bound)


def test_a_missing_split_falls_back_to_the_other():
    env = SingleTurnEnv(eval_dataset=ROWS)
    assert {example.split for example in env.dataset("train")} == {"eval"}
    assert (env.info.train_examples, env.info.eval_examples) == (2, 2)
    both = SingleTurnEnv(ROWS, ROWS[:1])
    assert (both.info.train_examples, both.info.eval_examples) == (2, 1)
    assert both.dataset("train")[0].seed != both.dataset("eval")[0].seed


def test_info_contains_the_declared_properties():
    env = adder(
        name="adder",
        summary="Adds.",
        tags=("math",),
        deterministic=False,
        strata="level",
        reference_scores={"calculator": 1.0},
    )
    info = env.info
    assert (info.name, info.kind, info.summary, info.tags) == ("adder", "single_turn", "Adds.", ["math"])
    assert (info.max_turns, info.deterministic, info.reference_scores) == (1, False, {"calculator": 1.0})
    assert [(each.name, each.weight) for each in info.reward_functions] == [("exact", 1.0)]
    assert info.strata == 3
    assert [example.stratum for example in env.dataset("train")] == [1, 2]
    assert env.dataset("train")[0].columns == {"level": 1}
    assert Echo(ROWS).info.max_turns is None
    assert Echo(ROWS, strata=4).info.strata == 4
    endless = Echo(ProceduralRows(lambda index: ROWS[0]), strata="level")
    with pytest.raises(ConfigError, match="cannot count the strata"):
        _ = endless.info


def test_the_parser_is_the_given_one_else_the_rubrics():
    own, rubrics = XMLParser(["answer"]), Parser()
    assert adder(parser=own).parser is own
    assert SingleTurnEnv(ROWS, rubric=Rubric(parser=rubrics)).parser is rubrics
    assert isinstance(adder().parser, Parser)


async def test_an_environment_cannot_change_the_stored_example():
    class Vandal(Echo):
        def setup_state(self, state):
            state["info"]["tags"].append("broken")
            state["example"].info["tags"].append("broken")
            state["example"].columns["level"] = 99
            state["prompt"].append({"role": "user", "content": "more"})
            state["prompt"][0]["content"] = "changed"

    env = Vandal(ROWS, max_turns=2)
    example = env.dataset("train")[0]
    before = copy.deepcopy(example)
    rollout = await env.rollout(ScriptedClient(["a", "b"]), example)
    assert rollout.failure is None
    assert rollout.prompt == [{"role": "user", "content": "changed"}, {"role": "user", "content": "more"}]
    assert example == before


async def test_no_state_leaks_from_one_rollout_into_the_next():
    class Counter(Echo):
        def setup_state(self, state):
            assert "seen" not in state
            state["seen"] = []

        def env_response(self, messages, state):
            state["seen"].append(len(messages))
            return super().env_response(messages, state)

    env = Counter(ROWS, max_turns=3)
    client = ScriptedClient(["a", "b", "c"])
    first = await env.rollout(client, env.dataset("train")[0])
    second = await env.rollout(client, env.dataset("train")[0])
    assert first.failure is second.failure is None
    assert first.completion == second.completion


async def test_the_local_handle_answers_all_requests_of_a_host():
    closed = []

    class Closing(Echo):
        @teardown
        def close_files(self):
            closed.append("files")

    handle = LocalEnvironment(Closing(ROWS, name="closing", max_turns=1))
    assert handle.info.name == "closing"
    assert handle.info is handle.info
    examples = await handle.examples("eval", 1, 5)
    assert [example.example_id for example in examples] == ["1"]
    sampling = SamplingArgs(temperature=0.5)
    rollout = await handle.rollout(ScriptedClient(["x"]), examples[0], sampling=sampling)
    assert rollout.completion[0]["content"] == "x"
    await handle.close()
    assert closed == ["files"]


async def test_teardown_runs_every_hook_and_reports_the_first_fault():
    ran = []

    class Broken(Echo):
        @teardown(priority=1)
        def first(self):
            ran.append("first")
            raise OSError("disk")

        @teardown
        async def second(self):
            ran.append("second")

    with pytest.raises(EnvironmentFault, match="`first` raised `OSError: disk`"):
        await LocalEnvironment(Broken(ROWS)).close()
    assert ran == ["first", "second"]


async def test_generators_depend_on_run_example_and_keys_only():
    env = adder()
    example, other = env.dataset("train").examples()
    state = env.init_state(example, index=0, run_seed=5)
    drawn = env.rng(state, "opponent", "X.O").random()
    same = env.init_state(example, index=7, run_seed=5)
    assert env.rng(same, "opponent", "X.O").random() == drawn
    assert env.rng(state, "opponent", "X.O").random() == drawn
    different = [
        env.rng(state, "opponent", "XO.").random(),
        env.rng(env.init_state(example, run_seed=6), "opponent", "X.O").random(),
        env.rng(env.init_state(other, run_seed=5), "opponent", "X.O").random(),
    ]
    assert drawn not in different
    assert len(set(different)) == 3


async def test_requests_carry_sampling_seed_and_their_own_list_of_messages():
    requests = []

    def script(request):
        requests.append(request)
        request.messages.clear()
        return "a"

    env = Echo(ROWS, max_turns=2)
    example = env.dataset("train")[0]
    sampling = SamplingArgs(temperature=0.3)
    rollout = await env.rollout(
        ScriptedClient(script), example, index=3, run_seed=9, sampling=sampling, rollout_id="run/0/3"
    )
    assert len(rollout.completion) == 3
    assert [request.turn for request in requests] == [0, 1]
    assert {request.rollout_id for request in requests} == {"run/0/3"}
    assert requests[0].sampling is sampling
    assert requests[0].tools is None
    assert [request.seed for request in requests] == [
        derived_seed(9, example.seed, "completion", 3, turn) for turn in (0, 1)
    ]
