"""Limits on the tokens and on the time of a rollout."""

from __future__ import annotations

import asyncio

import pytest
from wander.clients.base import ModelResponse
from wander.clients.replay import ReplayClient
from wander.clients.scripted import ScriptedClient
from wander.envs.multi_turn import MultiTurnEnv
from wander.envs.tool.env import ToolEnv
from wander.errors import ConfigError
from wander.rollout.hooks import cleanup
from wander.rubrics import Rubric
from wander.types import Rollout, Usage


def turns(state) -> float:
    return float(len(state.turns))


class Echo(MultiTurnEnv):
    def __init__(self, **kwargs):
        super().__init__(dataset=[{"question": "go"}], rubric=Rubric([turns]), **kwargs)
        self.cleaned = 0

    async def env_response(self, messages, state):
        text = messages[-1]["content"]
        if text == "hang here":
            await asyncio.sleep(600)
        return [{"role": "user", "content": f"you said {text}"}]

    @cleanup
    def note(self, state):
        self.cleaned += 1


async def played(environment, client):
    return await environment.rollout(client, environment.dataset()[0])


def stored(rollout: Rollout) -> Rollout:
    return Rollout.model_validate_json(rollout.model_dump_json())


def four_tokens(request):
    message = {"role": "assistant", "content": "a"}
    return ModelResponse(message=message, usage=Usage(completion_tokens=4))


@pytest.mark.parametrize(("limit", "expected"), [(1, 1), (4, 1), (5, 2), (8, 2), (9, 3)])
async def test_the_completion_that_reaches_the_token_limit_is_the_last(limit, expected):
    rollout = await played(Echo(max_total_completion_tokens=limit), ScriptedClient(four_tokens))
    assert rollout.stop_reason == "max_total_completion_tokens_reached"
    assert rollout.truncated
    assert rollout.reward == expected
    assert rollout.usage.completion_tokens == 4 * expected


async def test_an_answer_within_the_tokens_is_not_truncated():
    environment = ToolEnv(dataset=[{"question": "go"}], max_total_completion_tokens=4)
    rollout = await played(environment, ScriptedClient(four_tokens))
    assert (rollout.stop_reason, rollout.truncated) == ("no_tools_called", False)


async def hang_at(request):
    if request.turn == 2:
        await asyncio.sleep(600)
    return f"turn {request.turn}"


async def test_time_ends_a_rollout_while_the_model_answers():
    environment = Echo(timeout_seconds=0.2)
    rollout = await played(environment, ScriptedClient(hang_at))
    assert (rollout.stop_reason, rollout.truncated, rollout.failure) == ("timeout_reached", True, None)
    assert rollout.reward == 2.0
    assert rollout.completion[-1] == {"role": "user", "content": "you said turn 1"}
    assert environment.cleaned == 1


async def test_time_ends_a_rollout_while_the_environment_answers():
    rollout = await played(Echo(timeout_seconds=0.2), ScriptedClient(["one", "hang here"]))
    assert (rollout.stop_reason, rollout.truncated) == ("timeout_reached", True)
    assert rollout.completion[-1]["content"] == "hang here"


async def test_time_ends_a_rollout_before_its_first_turn():
    class Slow(Echo):
        async def setup_state(self, state):
            await asyncio.sleep(600)

    rollout = await played(Slow(timeout_seconds=0.1), ScriptedClient(["x"]))
    assert (rollout.stop_reason, rollout.completion) == ("timeout_reached", [])


@pytest.mark.parametrize("client", [ScriptedClient(hang_at), ScriptedClient(["one", "hang here"])])
async def test_a_replay_stops_where_the_time_had_run_out(client):
    first = await played(Echo(timeout_seconds=0.2), client)
    again = await played(Echo(timeout_seconds=600), ReplayClient([stored(first)]))
    assert again.completion == first.completion
    assert (again.stop_reason, again.reward, again.info) == (first.stop_reason, first.reward, first.info)


async def test_a_timeout_raised_by_the_author_is_a_failure():
    class Broken(Echo):
        async def env_response(self, messages, state):
            raise TimeoutError("the author's own")

    rollout = await played(Broken(timeout_seconds=600), ScriptedClient(["x"]))
    assert rollout.failure.boundary == "environment"
    assert "the author's own" in rollout.failure.message


@pytest.mark.parametrize("name", ["max_total_completion_tokens", "timeout_seconds"])
@pytest.mark.parametrize("value", [0, -1, float("nan")])
def test_limits_are_positive(name, value):
    with pytest.raises(ConfigError, match=f"`{name}` must be positive"):
        Echo(**{name: value})
