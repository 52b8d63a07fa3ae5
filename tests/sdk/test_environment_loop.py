"""The loop of a rollout: order of hooks, stops, the last answer, limits."""

from __future__ import annotations

import pytest
from wander import MultiTurnEnv, Rubric, ScriptedClient, SingleTurnEnv
from wander.clients.base import ModelResponse
from wander.errors import ContextOverflow
from wander.rollout.hooks import cleanup, stop
from wander.types import TurnTokens, Usage

ROWS = [{"question": "go", "answer": "x"}]


def user(text: str) -> dict:
    return {"role": "user", "content": text}


class Echo(MultiTurnEnv):
    def env_response(self, messages, state):
        return [user(f"echo {messages[-1]['content']}")]


async def played(env, replies, **arguments):
    client = replies if hasattr(replies, "complete") else ScriptedClient(replies)
    return await env.rollout(client, env.dataset()[0], **arguments)


async def test_model_and_environment_take_turns_until_the_limit():
    rollout = await played(Echo(ROWS, max_turns=3), ["a", "b", "c", "d"])
    assert [message["content"] for message in rollout.completion] == ["a", "echo a", "b", "echo b", "c"]
    assert [turn.context_messages for turn in rollout.turns] == [1, 3, 5]
    assert rollout.stop_reason == "max_turns_reached"
    assert rollout.turns[0].environment_seconds > 0
    assert rollout.turns[-1].environment_seconds == 0
    assert not rollout.truncated


async def test_sync_and_async_hooks_run_in_their_order():
    ran = []

    class Order(MultiTurnEnv):
        async def setup_state(self, state):
            ran.append("setup")
            return state

        async def env_response(self, messages, state):
            ran.append("response")
            return [user("?")]

        @stop
        async def enough(self, state):
            ran.append("stop")
            return len(state.turns) == 2

        @cleanup
        def late(self, state):
            ran.append("late")

        @cleanup(priority=5)
        async def early(self, state):
            ran.append("early")

    def scored(state):
        ran.append("scored")
        return 1.0

    rollout = await played(Order(ROWS, rubric=Rubric([scored])), ["a", "b"])
    assert rollout.stop_reason == "enough"
    assert ran == ["setup", "stop", "stop", "response", "stop", "stop", "early", "late", "scored"]


async def test_setup_may_return_more_of_the_state():
    class Extra(Echo):
        def setup_state(self, state):
            return {**state, "secret": 7}

    def secret(state):
        return state["secret"]

    rollout = await played(Extra(ROWS, max_turns=1, rubric=Rubric([secret])), ["a"])
    assert rollout.reward == 7.0


async def test_the_final_answer_ends_the_rollout():
    class Final(MultiTurnEnv):
        def env_response(self, messages, state):
            state["final_env_response"] = [user("game over")]

    rollout = await played(Final(ROWS), ["a", "b"])
    assert [message["content"] for message in rollout.completion] == ["a", "game over"]
    assert rollout.stop_reason == "has_final_env_response"


async def test_an_empty_final_answer_ends_the_rollout_too():
    class Final(MultiTurnEnv):
        def env_response(self, messages, state):
            state["final_env_response"] = []
            return [user("not shown")]

    rollout = await played(Final(ROWS), ["a", "b"])
    assert [message["content"] for message in rollout.completion] == ["a"]


async def test_a_stop_after_an_environment_response_costs_no_model_call():
    class Count(MultiTurnEnv):
        def env_response(self, messages, state):
            state["answered"] = state.get("answered", 0) + 1
            return [user(f"answer {state['answered']}")]

        @stop
        def answered_twice(self, state):
            return state.get("answered") == 2

    rollout = await played(Count(ROWS), ["a", "b"])  # a third completion would be missing
    assert (rollout.failure, rollout.stop_reason, len(rollout.turns)) == (None, "answered_twice", 2)
    assert [message["content"] for message in rollout.completion] == ["a", "answer 1", "b", "answer 2"]


async def test_stop_conditions_see_the_last_model_message():
    seen = []

    class Says(Echo):
        @stop
        def done(self, state):
            seen.append(state.completion[-1]["content"] if state.completion else None)
            return seen[-1] == "DONE"

        def env_response(self, messages, state):
            return [user("DONE")]

    rollout = await played(Says(ROWS), ["a", "DONE"])
    assert (rollout.stop_reason, len(rollout.turns)) == ("done", 2)
    assert seen == [None, "a", "a", "DONE"]


async def test_stop_conditions_are_checked_by_priority_and_name():
    class Stops(Echo):
        @stop
        def b(self, state):
            return bool(state.turns)

        @stop
        def a(self, state):
            return bool(state.turns)

        @stop(priority=1)
        def z(self, state):
            return len(state.turns) > 1

    assert (await played(Stops(ROWS), ["1", "2"])).stop_reason == "a"

    class Urgent(Stops):
        @stop(priority=2)
        def y(self, state):
            return bool(state.turns)

    assert (await played(Urgent(ROWS), ["1", "2"])).stop_reason == "y"


async def test_an_overridden_stop_stays_a_stop_and_none_disables_it():
    class Sooner(Echo):
        def max_turns_reached(self, state):
            return len(state.turns) == 1

    assert len((await played(Sooner(ROWS, max_turns=5), ["a", "b"])).turns) == 1

    class Never(Echo):
        max_turns_reached = None

        @stop
        def done(self, state):
            return len(state.turns) == 3

    rollout = await played(Never(ROWS, max_turns=1), ["a", "b", "c"])
    assert (len(rollout.turns), rollout.stop_reason) == (3, "done")


async def test_a_stop_that_holds_at_the_start_calls_no_model():
    class Done(Echo):
        @stop
        def at_once(self, state):
            return True

    rollout = await played(Done(ROWS), [])
    assert (rollout.turns, rollout.completion, rollout.stop_reason) == ([], [], "at_once")
    assert rollout.reward == 0.0


async def test_a_single_turn_environment_calls_the_model_once():
    rollout = await played(SingleTurnEnv(ROWS), ["a", "b"])
    assert [message["content"] for message in rollout.completion] == ["a"]


async def test_a_completion_cut_by_its_limit_marks_the_rollout_truncated():
    cut = ModelResponse(message={"role": "assistant", "content": "a"}, finish_reason="length")
    rollout = await played(Echo(ROWS, max_turns=2), [cut, "b"])
    assert rollout.truncated
    assert [turn.finish_reason for turn in rollout.turns] == ["length", "stop"]


async def test_context_overflow_truncates_and_the_rollout_is_scored():
    def script(request):
        if request.turn == 1:
            raise ContextOverflow("too long")
        return "a"

    def turns(state):
        return len(state.turns)

    rollout = await played(Echo(ROWS, rubric=Rubric([turns])), script)
    assert (rollout.stop_reason, rollout.truncated, rollout.failure) == ("context_overflow", True, None)
    assert rollout.reward == 1.0
    assert [message["content"] for message in rollout.completion] == ["a", "echo a"]


async def test_usage_tokens_and_times_are_kept_by_turn():
    tokens = TurnTokens(prompt_ids=[1, 2], completion_ids=[3], logprobs=[-0.5])
    answer = ModelResponse(
        message={"role": "assistant", "content": "a"},
        usage=Usage(prompt_tokens=2, completion_tokens=1),
        tokens=tokens,
    )
    rollout = await played(Echo(ROWS, max_turns=2), [answer, answer])
    assert rollout.usage == Usage(prompt_tokens=4, completion_tokens=2)
    assert [turn.tokens for turn in rollout.turns] == [tokens, tokens]
    assert all(turn.model_seconds >= 0 for turn in rollout.turns)


async def test_changing_messages_does_not_change_recorded_turns():
    class Edits(MultiTurnEnv):
        def env_response(self, messages, state):
            messages[-1]["content"] = "edited"
            return [user("?")]

    rollout = await played(Edits(ROWS, max_turns=2), ["a", "b"])
    assert rollout.turns[0].message["content"] == "a"
    assert rollout.completion[0]["content"] == "edited"


async def test_the_public_part_of_the_state_is_recorded():
    class Public(Echo):
        def setup_state(self, state):
            state["public"]["board"] = [1, 2]

    rollout = await played(Public(ROWS, max_turns=1), ["a"])
    assert rollout.info == {"board": [1, 2]}


async def test_content_parts_pass_through():
    picture = [{"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}}]

    class Shows(MultiTurnEnv):
        def env_response(self, messages, state):
            return [{"role": "user", "content": picture}]

    rollout = await played(Shows(ROWS, max_turns=2), ["a", "b"])
    assert rollout.failure is None
    assert rollout.completion[1]["content"] == picture


@pytest.mark.parametrize("schemas", [None, [{"type": "function", "function": {"name": "f"}}]])
async def test_the_environments_tools_are_offered(schemas):
    offered = []

    class Tools(Echo):
        def tools(self, state):
            return schemas

    def script(request):
        offered.append(request.tools)
        return "a"

    await played(Tools(ROWS, max_turns=1), script)
    assert offered == [schemas]


async def test_private_names_that_authors_use_are_available():
    """Published subclasses have methods of their own; ours must not be called as they are likely to be."""

    class Own(SingleTurnEnv):
        def _score(self):
            raise AssertionError("called by the loop")

        _clean_up = _play = _play_episode = _score_together = _find_tool = _connect = _score

    env = Own([{"question": "q", "answer": "a"}], rubric=Rubric([lambda completion: 1.0]))
    rollout = await played(env, ["a"])
    assert (rollout.failure, rollout.reward) == (None, 1.0)
