"""What endpoints want written differently: reasoning, ids of calls, roles, names of parameters."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from aiohttp import web
from hypothesis import given
from hypothesis import strategies as st
from wander import Rubric, ToolEnv
from wander.clients.base import ModelRequest
from wander.clients.dialect import with_unique_ids, without_system_role
from wander.clients.openai import OpenAIClient
from wander.errors import ContextOverflow, ModelError, UnsupportedParameter
from wander.types import Message, SamplingArgs


def add(x: int) -> int:
    """Add one to a number."""
    return x + 1


def call(call_id: Any, **fields: Any) -> dict[str, Any]:
    return {"id": call_id, "type": "function", "function": {"name": "add", "arguments": '{"x": 1}'}, **fields}


def says(content: str = "", **fields: Any) -> Message:
    return {"role": "assistant", "content": content, **fields}


def refuses(text: str, status: int = 400, **fields: Any) -> web.Response:
    return web.json_response({"error": {"message": text, **fields}}, status=status)


def client_of(server: Any, **options: Any) -> OpenAIClient:
    return OpenAIClient("m", server.url, **{"max_retries": 0, **options})


async def play(client: OpenAIClient, turns: int = 2) -> Any:
    env = ToolEnv(
        eval_dataset=[{"question": "q"}],
        tools=[add],
        rubric=Rubric([lambda completion: 1.0]),
        max_turns=turns,
    )
    return await env.rollout(client, env.dataset("eval")[0])


def tool_user(*turns: Message) -> Any:
    """A model that plays these messages, one a turn of the conversation."""
    return lambda sent, number: turns[min(number, len(turns)) - 1]


SIGNED = {
    "reasoning_content": "hm",
    "reasoning_details": [{"type": "reasoning.encrypted", "data": "gAAA", "signature": "x=="}],
    "thinking_blocks": [{"type": "thinking", "thinking": "hm", "signature": "x=="}],
}


@pytest.mark.parametrize("name", ["reasoning_content", "reasoning"])
async def test_reasoning_is_sent_back_in_the_field_it_came_in(chat_server: Any, name: str) -> None:
    fields = {(name if key == "reasoning_content" else key): value for key, value in SIGNED.items()}
    first = says(tool_calls=[call("a", extra_content={"google": {"thought_signature": "y=="}})], **fields)
    chat_server.script = tool_user(first, says("done"))
    client = client_of(chat_server)
    rollout = await play(client)
    await client.close()
    assert rollout.reward == 1.0
    sent = chat_server.requests[1]["messages"][1]
    assert {key: sent[key] for key in fields} == fields
    assert sent["tool_calls"] == first["tool_calls"]


@pytest.mark.parametrize("send", [True, False])
async def test_an_option_overrides_what_the_endpoint_sends(chat_server: Any, send: bool) -> None:
    first = says(tool_calls=[call("a")], **SIGNED)
    chat_server.script = tool_user(first, says("done"))
    client = client_of(chat_server, send_reasoning=send)
    await play(client)
    await client.close()
    assert [name in chat_server.requests[1]["messages"][1] for name in SIGNED] == [send] * len(SIGNED)


async def test_reasoning_in_prompts_is_only_sent_to_endpoints_with_reasoning(chat_server: Any) -> None:
    client = client_of(chat_server)
    shown = [
        {"role": "user", "content": "q"},
        says("a", reasoning_content="r"),
        {"role": "user", "content": "q"},
    ]
    await client.complete(ModelRequest(rollout_id="0/0", turn=0, messages=shown))
    await client.close()
    assert "reasoning_content" not in chat_server.requests[0]["messages"][1]
    assert "reasoning_content" in shown[1]


@pytest.mark.parametrize(
    "refusal",
    [
        "messages.1.reasoning_content: Extra inputs are not permitted",
        "The reasoning_content field in input messages is not supported",
        "property 'reasoning' is unsupported",
    ],
)
async def test_rejected_reasoning_is_not_sent_again(chat_server: Any, refusal: str) -> None:
    def script(sent: dict[str, Any], number: int) -> Any:
        if any("reasoning_content" in message for message in sent["messages"]):
            return refuses(refusal)
        return (
            says("done")
            if len(sent["messages"]) > 1
            else says(tool_calls=[call("a")], reasoning_content="hm")
        )

    chat_server.script = script
    client = client_of(chat_server)
    rollouts = [await play(client) for _ in range(2)]
    await client.close()
    assert [rollout.reward for rollout in rollouts] == [1.0, 1.0]
    assert len(chat_server.requests) == 5
    assert rollouts[0].completion[0]["reasoning_content"] == "hm"
    assert client.describe()["requests"] == ["earlier reasoning is not sent back"]


@pytest.mark.parametrize("given_id", ["a", "call_0", "", None, 5])
async def test_ids_of_calls_are_unique_in_the_conversation(chat_server: Any, given_id: Any) -> None:
    same = says(tool_calls=[call(given_id), call(given_id)])
    chat_server.script = tool_user(same, same, same, says("done"))
    client = client_of(chat_server)
    rollout = await play(client, turns=9)
    await client.close()
    assert rollout.stop_reason == "no_tools_called"
    sent = chat_server.requests[-1]["messages"]
    made = [each["id"] for message in sent for each in message.get("tool_calls", [])]
    assert len(set(made)) == len(made) == 6
    assert [message["tool_call_id"] for message in sent if message["role"] == "tool"] == made
    assert all(re.fullmatch(r"[A-Za-z0-9]{9}", each) for each in made if each != given_id)


async def test_a_strict_server_gets_nine_letters_and_digits(chat_server: Any) -> None:
    def script(sent: dict[str, Any], number: int) -> Any:
        ids = [message["tool_call_id"] for message in sent["messages"] if message["role"] == "tool"]
        if any(not re.fullmatch(r"[A-Za-z0-9]{9}", each) for each in ids):
            return refuses("Tool call id was call_1 but must be a-z, A-Z, 0-9, with a length of 9.")
        return "done"

    chat_server.script = script
    shown = [
        {"role": "user", "content": "q"},
        says(tool_calls=[call("call_1"), call("call_2")]),
        {"role": "tool", "tool_call_id": "call_1", "content": "1"},
        {"role": "tool", "tool_call_id": "call_2", "content": "2"},
    ]
    client = client_of(chat_server)
    response = await client.complete(ModelRequest(rollout_id="0/0", turn=0, messages=shown))
    await client.close()
    assert response.message["content"] == "done"
    sent = chat_server.requests[-1]["messages"]
    assert [message["tool_call_id"] for message in sent[2:]] == [each["id"] for each in sent[1]["tool_calls"]]
    assert shown[1]["tool_calls"][0]["id"] == "call_1"


ids = st.sampled_from(["a", "b", "call_0", "", None, 3])


@given(st.lists(st.lists(ids, min_size=1, max_size=3), max_size=5), st.booleans())
def test_calls_and_results_match_for_any_ids(turns: list[list[Any]], short: bool) -> None:
    messages: list[Message] = []
    for number, given_ids in enumerate(turns):
        messages.append(says(str(number), tool_calls=[call(each) for each in given_ids]))
        messages += [
            {"role": "tool", "tool_call_id": each, "content": f"{number}/{place}"}
            for place, each in enumerate(given_ids)
        ]
    before = json.dumps(messages)
    written = with_unique_ids(messages, short=short)
    assert json.dumps(messages) == before
    made = [each["id"] for message in written for each in message.get("tool_calls", [])]
    assert len(set(made)) == len(made)
    assert [message["tool_call_id"] for message in written if message["role"] == "tool"] == made
    if short:
        assert all(re.fullmatch(r"[A-Za-z0-9]{9}", each) for each in made)


SYSTEM = {"role": "system", "content": "be brief"}
NO_SYSTEM = [
    "System role not supported",
    "chat template: System role is not supported by this model",
    "Developer instruction is not enabled for models/gemma-3-27b-it",
    "Only user and assistant roles are supported!",
    "Conversation roles must alternate user/assistant/user/assistant/...",
]


@pytest.mark.parametrize("refusal", NO_SYSTEM)
@pytest.mark.parametrize("merge", [True, False])
async def test_without_a_system_role_the_prompt_is_in_the_first_message(
    chat_server: Any, refusal: str, merge: bool
) -> None:
    def script(sent: dict[str, Any], number: int) -> Any:
        return refuses(refusal) if any(each["role"] == "system" for each in sent["messages"]) else "ok"

    chat_server.script = script
    client = client_of(chat_server, merge_system=merge)
    request = ModelRequest(rollout_id="0/0", turn=0, messages=[SYSTEM, {"role": "user", "content": "2 + 3?"}])
    if not merge:
        with pytest.raises(ModelError):
            await client.complete(request)
    else:
        assert (await client.complete(request)).message["content"] == "ok"
        assert chat_server.requests[-1]["messages"] == [{"role": "user", "content": "be brief\n\n2 + 3?"}]
        assert client.describe()["requests"] == ["the system prompt is part of the first user message"]
    await client.close()


@pytest.mark.parametrize(
    ("messages", "merged"),
    [
        ([SYSTEM], [{"role": "user", "content": "be brief"}]),
        (
            [SYSTEM, {"role": "user", "content": [{"type": "text", "text": "q"}]}],
            [
                {
                    "role": "user",
                    "content": [{"type": "text", "text": "be brief\n\n"}, {"type": "text", "text": "q"}],
                }
            ],
        ),
        (
            [SYSTEM, {**SYSTEM, "content": "be kind"}, {"role": "user", "content": "q"}, says("a")],
            [{"role": "user", "content": "be brief\n\nbe kind\n\nq"}, says("a")],
        ),
        ([{"role": "user", "content": "q"}], [{"role": "user", "content": "q"}]),
    ],
)
def test_system_prompts_are_merged(messages: list[Message], merged: list[Message]) -> None:
    assert without_system_role(messages) == merged


@pytest.mark.parametrize(
    "refusal",
    [
        "Unsupported parameter: 'max_tokens' is not supported. Use 'max_completion_tokens' instead.",
        "max_tokens is deprecated, use max_completion_tokens",
    ],
)
async def test_max_tokens_is_renamed_for_some_endpoints(chat_server: Any, refusal: str) -> None:
    chat_server.script = lambda sent, number: refuses(refusal) if "max_tokens" in sent else "ok"
    client = client_of(chat_server)
    request = ModelRequest(
        rollout_id="0/0", turn=0, messages=[SYSTEM], sampling=SamplingArgs(max_tokens=7, temperature=1.0)
    )
    for _ in range(2):
        assert (await client.complete(request)).message["content"] == "ok"
    await client.close()
    assert len(chat_server.requests) == 3
    assert chat_server.requests[-1]["max_completion_tokens"] == 7


@pytest.mark.parametrize(
    ("refusal", "name"),
    [
        ("Unsupported value: 'temperature' does not support 0. Only the default (1) is.", "temperature"),
        ("Unsupported parameter: 'top_p' is not supported with this model.", "top_p"),
        ("`temperature` and `top_p` cannot both be specified for this model", "temperature"),
        ("temperature: Extra inputs are not permitted", "temperature"),
    ],
)
async def test_an_unsupported_argument_is_named(chat_server: Any, refusal: str, name: str) -> None:
    chat_server.script = lambda sent, number: refuses(refusal)
    client = client_of(chat_server)
    sampling = SamplingArgs(temperature=0.0, top_p=0.9)
    with pytest.raises(UnsupportedParameter) as caught:
        await client.complete(ModelRequest(rollout_id="0/0", turn=0, messages=[SYSTEM], sampling=sampling))
    await client.close()
    assert caught.value.parameter == name


async def test_a_context_overflow_is_not_an_unsupported_argument(chat_server: Any) -> None:
    chat_server.script = lambda sent, number: refuses(
        "'max_tokens' is too large: 7. This model's maximum context length is only 4096 tokens"
    )
    client = client_of(chat_server)
    sampling = SamplingArgs(max_tokens=7)
    with pytest.raises(ContextOverflow):
        await client.complete(ModelRequest(rollout_id="0/0", turn=0, messages=[SYSTEM], sampling=sampling))
    await client.close()
