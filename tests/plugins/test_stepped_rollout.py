"""An episode in steps is the rollout that an evaluation plays for the same completions."""

from __future__ import annotations

from typing import Any

import pytest
from tictactoe import load_environment
from tictactoe.players import careless
from wander import MultiTurnEnv, Rubric, ScriptedClient
from wander.clients.base import ModelRequest
from wander.envs.tool.env import ToolEnv
from wander.errors import ConfigError, ModelError
from wander.evals.replay import first_difference
from wander.types import Messages, Usage
from wander_integrations.episodes import SteppedRollout


async def in_steps(environment: Any, script: Any, place: int = 0, seed: int = 0) -> SteppedRollout:
    """Play an episode in steps, as a trainer would: it knows only the messages."""
    episode = SteppedRollout(environment, environment.dataset("eval")[place], run_seed=seed)
    messages = list(await episode.begin())
    turn = 0
    while episode.rollout is None:
        reply = script(ModelRequest(rollout_id="x", turn=turn, messages=messages, seed=turn))
        messages.append({"role": "assistant", "content": reply})
        messages += await episode.answer(messages[-1])
        assert messages == episode.messages
        turn += 1
    return episode


@pytest.mark.parametrize("place", range(6))
async def test_a_stepped_rollout_equals_that_of_an_evaluation(place: int) -> None:
    environment = load_environment(num_examples=10)
    episode = await in_steps(environment, careless, place, seed=3)
    assert episode.rollout is not None
    said = [turn.message["content"] for turn in episode.rollout.turns]
    again = await environment.rollout(ScriptedClient(said), environment.dataset("eval")[place], run_seed=3)
    assert first_difference(episode.rollout, again) is None
    assert episode.rollout.reward == again.reward


async def test_tools_and_usage_are_passed_on() -> None:
    def double(number: int) -> int:
        """Double a number."""
        return 2 * number

    environment = ToolEnv([{"question": "go"}], tools=[double], rubric=Rubric([]))
    episode = SteppedRollout(environment, environment.dataset()[0])
    await episode.begin()
    assert episode.tools is not None
    assert episode.tools[0]["function"]["name"] == "double"
    call = {"id": "1", "type": "function", "function": {"name": "double", "arguments": '{"number": 4}'}}
    new = await episode.answer(
        {"role": "assistant", "content": "", "tool_calls": [call]}, usage=Usage(completion_tokens=7)
    )
    assert [message["content"] for message in new] == ["8"]
    assert await episode.answer({"role": "assistant", "content": "8"}, finish_reason="length") == []
    assert episode.rollout is not None
    assert episode.rollout.truncated
    assert episode.rollout.usage.completion_tokens == 7


async def test_an_episode_accepts_replies_only_while_it_waits() -> None:
    environment = load_environment(num_examples=1)
    episode = SteppedRollout(environment, environment.dataset("eval")[0])
    with pytest.raises(ModelError, match="not begun"):
        await episode.answer({"role": "assistant", "content": "4"})
    await episode.close()
    ended = await in_steps(environment, careless)
    with pytest.raises(ModelError, match="has ended"):
        await ended.answer({"role": "assistant", "content": "4"})
    begun = SteppedRollout(environment, environment.dataset("eval")[0])
    await begun.begin()
    await begun.close()
    assert begun.rollout is None


async def test_environment_errors_are_recorded_in_the_rollout() -> None:
    class Broken(MultiTurnEnv):
        def env_response(self, messages: Messages, state: Any) -> Messages:
            raise ValueError("broken")

    environment = Broken([{"question": "go"}], rubric=Rubric([]))
    episode = SteppedRollout(environment, environment.dataset()[0])
    await episode.begin()
    await episode.answer({"role": "assistant", "content": "x"})
    assert episode.rollout is not None
    assert episode.rollout.failure is not None
    assert "broken" in episode.rollout.failure.message


def test_environments_with_group_rewards_cannot_be_stepped() -> None:
    def first(completions: list[Messages]) -> list[float]:
        return [1.0] * len(completions)

    environment = ToolEnv([{"question": "go"}], tools=[], rubric=Rubric([first]))
    assert environment.rubric.has_group_functions
    with pytest.raises(ConfigError, match="compares the rollouts of a group"):
        SteppedRollout(environment, environment.dataset()[0])
