"""The scripted client: lists, functions, and scripts that are named."""

from __future__ import annotations

import asyncio
import importlib
import sys

import pytest
from wander import MultiTurnEnv, ScriptedClient
from wander.clients.base import ModelRequest, ModelResponse
from wander.clients.scripted import scripted_client_from_spec
from wander.errors import ConfigError, LoadError, ModelError, RateLimited
from wander.types import Usage


def request(rollout_id="0/0", turn=0, content="hi") -> ModelRequest:
    return ModelRequest(rollout_id=rollout_id, turn=turn, messages=[{"role": "user", "content": content}])


class Talk(MultiTurnEnv):
    async def env_response(self, messages, state):
        await asyncio.sleep(0)
        return [{"role": "user", "content": "?"}]


async def test_replies_come_in_order_and_run_out():
    client = ScriptedClient(["a", "b"])
    assert (await client.complete(request())).message == {"role": "assistant", "content": "a"}
    assert (await client.complete(request())).message["content"] == "b"
    with pytest.raises(ModelError, match="the script has 2 replies and rollout `0/0` asked for number 3"):
        await client.complete(request())


async def test_every_rollout_starts_at_the_first_reply():
    client = ScriptedClient(["a", "b"])
    env = Talk([{"question": "q"}], max_turns=2)
    example = env.dataset()[0]
    rollouts = await asyncio.gather(*(env.rollout(client, example, index=index) for index in range(3)))
    assert [[turn.message["content"] for turn in rollout.turns] for rollout in rollouts] == [["a", "b"]] * 3
    again = await env.rollout(client, example)
    assert [turn.message["content"] for turn in again.turns] == ["a", "b"]


async def test_a_reply_may_be_text_a_message_or_a_response():
    whole = ModelResponse(
        message={"role": "assistant", "content": "c"},
        finish_reason="length",
        usage=Usage(completion_tokens=1),
    )
    client = ScriptedClient(["a", {"content": "b", "reasoning_content": "hm"}, whole])
    answers = [await client.complete(request()) for _ in range(3)]
    assert answers[1].message == {"role": "assistant", "content": "b", "reasoning_content": "hm"}
    assert answers[2] == whole
    answers[2].message["content"] = "changed"
    assert whole.message["content"] == "c"
    assert (await ScriptedClient("one").complete(request())).message["content"] == "one"


async def test_sync_and_async_functions_get_the_request():
    async def later(asked):
        await asyncio.sleep(0)
        return f"{asked.turn}"

    assert (await ScriptedClient(later).complete(request(turn=4))).message["content"] == "4"
    shout = ScriptedClient(lambda asked: asked.messages[-1]["content"].upper(), model="shouter")
    assert (await shout.complete(request())).message["content"] == "HI"
    assert shout.describe() == {"kind": "ScriptedClient", "model": "shouter"}


async def test_exceptions_of_a_function_have_the_model_boundary():
    def broken(asked):
        raise ValueError("oops")

    def limited(asked):
        raise RateLimited("slow down")

    with pytest.raises(ModelError, match="the scripted function raised `ValueError: oops`"):
        await ScriptedClient(broken).complete(request())
    with pytest.raises(RateLimited):
        await ScriptedClient(limited).complete(request())
    with pytest.raises(ModelError, match="must be text, a message or a response, got `int`"):
        await ScriptedClient(lambda asked: 5).complete(request())


PLAYER = """
def echo(request):
    return request.messages[-1]["content"]

def repeat(times=2, text=None):
    return lambda request: (text or request.messages[-1]["content"]) * times

def broken():
    return 5

def needs_two(skill, seed):
    return echo

number = 5
"""


@pytest.fixture
def player(tmp_path, monkeypatch):
    (tmp_path / "spec_player.py").write_text(PLAYER)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    importlib.invalidate_caches()
    yield tmp_path / "spec_player.py"
    sys.modules.pop("spec_player", None)


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ("spec_player:echo", "hi"),
        ("scripted:spec_player:echo", "hi"),
        ("scripted:spec_player:repeat?", "hihi"),
        ("scripted:spec_player:repeat?times=3", "hihihi"),
        ("scripted:spec_player:repeat?times=1&text=ha", "ha"),
    ],
)
async def test_a_script_is_run_by_its_name(player, spec, said):
    client = scripted_client_from_spec(spec)
    assert (await client.complete(request())).message["content"] == said
    assert client.model == f"scripted:{spec.removeprefix('scripted:')}"


async def test_a_function_that_returns_players_is_not_a_player(player):
    client = scripted_client_from_spec("scripted:spec_player:repeat")  # the request would be its `times`
    with pytest.raises(ModelError, match="must be text, a message or a response, got `function`") as caught:
        await client.complete(request())
    assert "`scripted:MODULE:FUNCTION?`" in str(caught.value.hint)


async def test_a_script_is_run_from_its_file(player):
    client = scripted_client_from_spec(f"scripted:{player}:echo")
    assert (await client.complete(request())).message["content"] == "hi"


@pytest.mark.parametrize(
    ("spec", "error", "said"),
    [
        ("scripted:", ConfigError, "does not name a function"),
        ("scripted:spec_player", ConfigError, "does not name a function"),
        ("spec_player:", ConfigError, "does not name a function"),
        ("spec_player:nothing", LoadError, "has no function `nothing`"),
        ("spec_player:number", LoadError, "has no function `number`"),
        ("no_such_player:play", LoadError, "there is no module `no_such_player`"),
        ("./no_such_player.py:play", LoadError, "there is no module `no_such_player`"),
        ("spec_player:repeat?speed=3", ConfigError, "unexpected keyword argument 'speed'"),
        ("spec_player:broken?", ConfigError, "returned a `int`, not a function"),
        ("spec_player:needs_two", ConfigError, "is not a function of a request: missing"),
        ("spec_player:broken", ConfigError, "is not a function of a request: too many"),
    ],
)
def test_an_invalid_script_is_reported(player, spec, error, said):
    with pytest.raises(error) as caught:
        scripted_client_from_spec(spec)
    assert said in str(caught.value)
