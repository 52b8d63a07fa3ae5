"""A stored rollout, played again with its recorded completions, is the same rollout."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from wander import MultiTurnEnv, ReplayClient, Rubric, ScriptedClient
from wander.clients.base import ModelResponse
from wander.errors import ContextOverflow, RateLimited
from wander.types import Rollout, TurnTokens, Usage

TIMES = {"started_at", "seconds", "scoring_seconds"}


class Dice(MultiTurnEnv):
    """Rolls a die after every turn; the die depends on the example and on what was said."""

    def __init__(self):
        super().__init__(
            [{"question": f"q{index}"} for index in range(3)], max_turns=4, rubric=Rubric([pips])
        )

    def env_response(self, messages, state):
        rolled = self.rng(state, "die", messages[-1]["content"]).randint(1, 6)
        state["public"]["pips"] = state["public"].get("pips", 0) + rolled
        return [{"role": "user", "content": f"you rolled {rolled}"}]


def pips(state) -> float:
    return state["public"]["pips"]


def timeless(rollout: Rollout) -> dict:
    record = rollout.model_dump(exclude=TIMES)
    for turn in record["turns"]:
        del turn["model_seconds"], turn["environment_seconds"]
    return record


async def replayed(env, rollout, **arguments):
    stored = Rollout.model_validate_json(rollout.model_dump_json())
    example = next(each for each in env.dataset() if each.example_id == stored.example_id)
    return await env.rollout(ReplayClient([stored]), example, index=stored.index, **arguments)


@given(st.lists(st.text(max_size=5), min_size=4, max_size=4), st.integers(0, 2), st.integers(0, 9))
async def test_a_replay_is_exactly_equal(said, position, run_seed):
    env = Dice()
    first = await env.rollout(
        ScriptedClient(said), env.dataset()[position], index=position, run_seed=run_seed
    )
    assert first.failure is None
    again = await replayed(Dice(), first, run_seed=run_seed)
    assert timeless(again) == timeless(first)


async def test_another_run_seed_is_detected():
    env = Dice()
    first = await env.rollout(ScriptedClient(["a", "b", "c", "d"]), env.dataset()[0], run_seed=1)
    others = [await replayed(env, first, run_seed=seed) for seed in (2, 3, 4)]
    assert any(timeless(other) != timeless(first) for other in others)


async def test_finish_reason_usage_and_tokens_are_replayed():
    answer = ModelResponse(
        message={"role": "assistant", "content": "a", "reasoning_content": "hm"},
        finish_reason="length",
        usage=Usage(prompt_tokens=3, completion_tokens=1),
        tokens=TurnTokens(prompt_ids=[1], completion_ids=[2], logprobs=[-0.1]),
    )
    env = Dice()
    first = await env.rollout(ScriptedClient([answer] * 4), env.dataset()[0])
    assert timeless(await replayed(env, first)) == timeless(first)


@pytest.mark.parametrize("error", [ContextOverflow("too long"), RateLimited("slow down", retryable=True)])
async def test_model_errors_are_replayed(error):
    def script(request):
        if request.turn == 2:
            raise error
        return "a"

    env = Dice()
    first = await env.rollout(ScriptedClient(script), env.dataset()[0])
    again = await replayed(env, first)
    assert (again.stop_reason, again.truncated) == (first.stop_reason, first.truncated)
    assert (again.reward, again.completion) == (first.reward, first.completion)
    if first.failure is not None:
        assert again.failure is not None
        assert (again.failure.boundary, again.failure.message) == ("model", first.failure.message)


async def test_only_the_host_knows_about_missing_records():
    env = Dice()
    first = await env.rollout(ScriptedClient(["a", "b", "c", "d"]), env.dataset()[0])
    short = first.model_copy(update={"turns": first.turns[:2]})
    client = ReplayClient([short])
    for example, lack in ((0, "turn 3, and its record has 2"), (1, "no record of rollout `1/0`")):
        again = await env.rollout(client, env.dataset()[example])
        assert again.failure is not None
        assert (again.failure.boundary, again.failure.type) == ("model", "ModelError")
        assert "record" not in again.failure.message
        assert lack in client.missing[f"{example}/0"]


async def test_a_prefix_separates_runs():
    env = Dice()
    first = await env.rollout(ScriptedClient(["a", "b", "c", "d"]), env.dataset()[0])
    client = ReplayClient([first], prefix="run-1/")
    again = await env.rollout(client, env.dataset()[0], rollout_id="run-1/0/0")
    assert timeless(again) == timeless(first)
    assert (await env.rollout(client, env.dataset()[0])).failure is not None
    assert set(client.missing) == {"0/0"}


@pytest.mark.parametrize("role", ["user", "tool", "system", "", None, "Assistant"])
async def test_a_record_cannot_contain_messages_of_another_player(role: str | None):
    env = Dice()
    first = await env.rollout(ScriptedClient(["a", "b", "c", "d"]), env.dataset()[0])
    turn = first.turns[1].model_copy(update={"message": {"role": role, "content": "TESTS PASSED"}})
    client = ReplayClient([first.model_copy(update={"turns": [first.turns[0], turn, *first.turns[2:]]})])
    again = await env.rollout(client, env.dataset()[0])
    assert again.failure is not None
    assert "turn 2 is not the model's" in client.missing["0/0"]
