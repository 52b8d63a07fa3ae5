"""Environments of every generation of the classic API, played by hosts like any other of ours."""

from __future__ import annotations

import asyncio
import sys
import threading
from pathlib import Path

import pytest
from wander.clients.replay import ReplayClient
from wander.clients.scripted import ScriptedClient
from wander.errors import RateLimited
from wander.types import SamplingArgs
from wander_compat.adapters.classic import AdaptedEnvironment

sys.path.insert(0, str(Path(__file__).parent))

import classic_environments as classic
import verifiers as vf

TIMES = {"started_at", "seconds", "scoring_seconds"}


def timeless(rollout) -> dict:
    record = rollout.model_dump(exclude=TIMES)
    for turn in record["turns"]:
        del turn["model_seconds"], turn["environment_seconds"]
    return record


async def played(env, replies, **options):
    adapted = AdaptedEnvironment(env)
    example = adapted.dataset("train")[0]
    rollout = await adapted.rollout(ScriptedClient(replies), example, **options)
    again = await adapted.rollout(ReplayClient([rollout]), example, **options)
    assert timeless(again) == timeless(rollout)
    return rollout


def contents(rollout) -> list[str]:
    return [message["content"] for message in rollout.completion]


async def test_first_generation_gets_pairs_dictionaries_and_its_keys():
    env = classic.env_of(classic.FirstGeneration)
    assert env.name == "first"
    assert env.description == "kept as an attribute"
    rollout = await played(env, ["a", "b", "0"])
    assert rollout.failure is None
    assert contents(rollout) == ["a", "turn 1: a", "b", "turn 2: b", "0"]
    assert rollout.stop_reason == "is_completed"
    assert rollout.reward == 1.0
    assert rollout.metrics == {"right": 1.0, "num_turns": 3.0}


async def test_an_overridden_is_completed_does_not_exceed_max_turns():
    class Endless(classic.FirstGeneration):
        def is_completed(self, messages, state, **kwargs):
            return False

    rollout = await played(classic.env_of(Endless), ["a"] * 9)
    assert len(rollout.turns) == 5
    assert rollout.stop_reason == "max_turns_reached"


async def test_direct_calls_of_the_client_are_recorded_as_turns():
    rollout = await played(classic.env_of(classic.OwnRollout), ["a", "b", "0"])
    assert rollout.failure is None
    assert [turn.message["content"] for turn in rollout.turns] == ["a", "b", "0"]
    assert rollout.reward == 1.0


async def test_second_generation_stops_at_its_decorated_condition():
    rollout = await played(classic.env_of(classic.SecondGeneration), ["a", "b", "0"])
    assert contents(rollout) == ["a", "1 left after a", "b", "0 left after b", "0"]
    assert rollout.stop_reason == "nothing_left"


async def test_third_generation_gets_message_classes():
    rollout = await played(classic.env_of(classic.ThirdGeneration), ["a", "b"])
    assert contents(rollout) == ["a", "you said a", "b", "over"]
    assert rollout.stop_reason == "has_final_env_response"
    assert [message["role"] for message in rollout.completion] == ["assistant", "user", "assistant", "user"]


async def test_global_random_depends_only_on_the_rollout():
    env = AdaptedEnvironment(classic.env_of(classic.GlobalRandom, max_turns=3))
    first, second = env.dataset("train")[0], env.dataset("train")[1]
    alone = await env.rollout(ScriptedClient(["a"] * 3), first)
    beside = await asyncio.gather(
        *(
            env.rollout(ScriptedClient(["a"] * 3), each, index=n)
            for n, each in enumerate([first, second, first])
        )
    )
    assert contents(alone) == contents(beside[0]) == contents(beside[2])
    assert contents(alone) != contents(beside[1])
    other = await env.rollout(ScriptedClient(["a"] * 3), first, run_seed=1)
    assert contents(other) != contents(alone)


async def test_an_exception_fails_the_rollout_and_keeps_its_messages():
    class Broken(classic.SecondGeneration):
        async def env_response(self, messages, state, **kwargs):
            raise KeyError("no such thing")

    rollout = await played(classic.env_of(Broken), ["a", "b"])
    assert rollout.failure.boundary == "environment"
    assert "KeyError" in rollout.failure.message
    assert contents(rollout) == ["a"]
    assert rollout.reward is None


async def test_a_model_error_has_the_model_boundary_and_is_not_scored():
    class Refuses(ScriptedClient):
        async def complete(self, request):
            raise RateLimited("too many requests", retryable=True)

    adapted = AdaptedEnvironment(classic.env_of(vf.SingleTurnEnv, vf.Rubric(funcs=[lambda **_: 1.0])))
    rollout = await adapted.rollout(Refuses(["x"]), adapted.dataset("eval")[0])
    assert rollout.failure.model_dump() == {
        "boundary": "model", "type": "RateLimited", "message": "too many requests", "retryable": True
    }  # fmt: skip
    assert rollout.reward is None


def call(name: str, arguments: str, number: int = 0) -> dict:
    function = {"name": name, "arguments": arguments}
    return {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": f"call_{number}", "type": "function", "function": function}],
    }


async def test_tools_are_called_and_their_errors_reported():
    env = classic.env_of(vf.ToolEnv, tools=[classic.double, classic.broken])
    replies = [call("double", '{"x": 4}'), call("broken", '{"x": 4}'), call("double", "{no"), "0"]
    rollout = await played(env, replies)
    told = [message for message in rollout.completion if message["role"] == "tool"]
    assert told[0] == {"role": "tool", "content": "8", "tool_call_id": "call_0"}
    assert told[1]["content"] == "broken tool"
    assert "line 1" in told[2]["content"]
    assert rollout.metrics["total_tool_calls"] == 3.0
    assert rollout.metrics["double_calls"] == 2.0
    assert rollout.stop_reason == "no_tools_called"


async def test_the_model_gets_tools_in_the_openai_format():
    seen = []

    def script(request):
        seen.append(request)
        return "0"

    env = AdaptedEnvironment(classic.env_of(vf.ToolEnv, tools=[classic.double]))
    sampling = SamplingArgs(temperature=0.5)
    await env.rollout(ScriptedClient(script), env.dataset("train")[0], sampling=sampling)
    (tool,) = seen[0].tools
    assert tool["function"]["name"] == "double"
    assert tool["function"]["description"] == "Double a number."
    assert tool["function"]["parameters"]["properties"]["x"]["type"] == "integer"
    assert seen[0].sampling.given() == {"temperature": 0.5}


async def test_a_tool_error_that_stops_has_the_tool_boundary():
    env = classic.env_of(vf.ToolEnv, tools=[classic.broken], stop_errors=[ValueError])
    rollout = await played(env, [call("broken", '{"x": 1}')])
    assert rollout.failure.boundary == "tool"


async def test_first_generation_tool_environments_unpack_their_base_class():
    class Older(vf.ToolEnv):
        async def env_response(self, messages, state, **kwargs):
            answers, state = await super().env_response(messages, state, **kwargs)
            state["answers"] = len(answers)
            return answers, state

    env = classic.env_of(Older, vf.ToolRubric(tools=[classic.double]), tools=[classic.double])
    assert env.oai_tools[0]["function"]["name"] == "double"
    rollout = await played(env, [call("double", '{"x": 4}'), "0"])
    assert rollout.failure is None
    assert rollout.completion[1]["content"] == "8"
    # Counted by the environment's own monitor and by the rubric, as in the releases that had both.
    assert rollout.metrics["total_tool_calls"] == 2.0


async def test_stateful_tools_get_hidden_arguments():
    def add(x: int, secret: int) -> int:
        """Add."""
        return x + secret

    class Stateful(vf.StatefulToolEnv):
        def __init__(self, **kwargs):
            super().__init__(**kwargs)
            self.add_tool(add, args_to_skip=["secret", "that_of_other_tools"])

        async def update_tool_args(self, tool_name, tool_args, messages, state, **kwargs):
            return {**tool_args, "secret": 100}

    env = classic.env_of(Stateful)
    assert "secret" not in env.tool_defs[0].parameters["properties"]
    rollout = await played(env, [call("add", '{"x": 1}'), "0"])
    assert rollout.completion[1]["content"] == "101"


async def test_a_group_of_environments_routes_each_row():
    group = vf.EnvGroup(
        [
            classic.env_of(vf.SingleTurnEnv),
            classic.env_of(classic.SecondGeneration, vf.Rubric([right_twice])),
        ],
        env_names=["one", "many"],
    )
    adapted = AdaptedEnvironment(group)
    assert adapted.info.kind == "group"
    assert adapted.info.train_examples == 6
    last = adapted.dataset("train")[5]
    rollout = await adapted.rollout(ScriptedClient(["a", "b", "2"]), last)
    assert len(rollout.turns) == 3
    assert rollout.reward == 2.0
    assert rollout.metrics == {"right": 0.0, "num_turns": 3.0, "right_twice": 2.0}


def right_twice(completion, answer) -> float:
    return 2.0 * (completion[-1]["content"] == answer)


def test_environments_are_created_in_any_thread():
    made = []
    thread = threading.Thread(target=lambda: made.append(classic.env_of(vf.SingleTurnEnv)))
    thread.start()
    thread.join()
    assert isinstance(made[0], vf.SingleTurnEnv)


async def test_rows_of_every_shape_become_examples():
    rows = [
        {"prompt": [{"role": "user", "content": "a"}], "answer": {"x": 1}, "info": '{"k": [1]}', "seed": "s"},
        {"prompt": [{"role": "user", "content": [{"type": "text", "text": "b"}]}], "answer": {"x": 2}},
    ]
    seen = []

    def keep(answer, info, state, **kwargs):
        seen.append((answer, info, kwargs.get("seed"), state["example_id"]))
        return 1.0

    env = AdaptedEnvironment(vf.SingleTurnEnv(eval_dataset=lambda: rows[:1], rubric=vf.Rubric([keep])))
    (example,) = await_examples(env)
    assert example.info == {"text": '{"k": [1]}'}
    assert example.answer == {"x": 1}
    await env.rollout(ScriptedClient(["x"]), example)
    assert seen == [({"x": 1}, {"k": [1]}, "s", 0)]


async def test_private_names_that_authors_use_are_available():
    class Own(vf.ToolEnv):
        _turns = _conversation = _sources = _built = _offer = _told = _reset = "the author's"

    class OwnRubric(vf.Rubric):
        _note = _keep = _ask = "the author's"

    inner = Own(tools=[], dataset=classic.rows(1), rubric=OwnRubric([classic.right]))
    env = AdaptedEnvironment(inner)
    rollout = await env.rollout(ScriptedClient(["0"]), env.dataset("train")[0])
    assert (rollout.failure, rollout.reward) == (None, 1.0)


def await_examples(env):
    return env.dataset("eval").examples()


def test_an_environment_without_rows_is_rejected():
    with pytest.raises(ValueError, match="dataset"):
        vf.SingleTurnEnv(rubric=vf.Rubric())
