"""The real clients of OpenAI and Anthropic speak with the endpoint of a box, in every way that agents do.

The functions import the clients: that takes over a second, also in workers that do not run this file.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable
from functools import cache, partial
from typing import TYPE_CHECKING, Any

import pytest
from model_endpoint import reply_of, says, serve, tool_call
from pydantic import TypeAdapter
from wander.endpoint import server
from wander.endpoint.anthropic import MessagesRequest
from wander.endpoint.chat import ChatRequest
from wander.endpoint.dialect import DialectRequest
from wander.endpoint.responses import ResponsesRequest
from wander.endpoint.values import EndpointCall, EndpointReply
from wander.types import Message

if TYPE_CHECKING:
    from anthropic import AsyncAnthropic
    from openai import AsyncOpenAI

PIXEL = "data:image/png;base64,iVBORw0KGgo="
PARAMETERS = {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]}
FUNCTION = {"name": "read", "description": "Read a file.", "parameters": PARAMETERS}
CALLS = [tool_call("call_1", "read", '{"path":"ä.txt"}'), tool_call("call_2", "read", '{"path":"b"}')]
MESSAGES: dict[str, Message] = {
    "text": says("hello\nthere"),
    "reasoning": says("so", reasoning_content="because"),
    "calls": says(tool_calls=CALLS),
    "everything": says("text", reasoning_content="why", tool_calls=CALLS),
    "refusal": says(refusal="no"),
    "nothing": says(),
}
DIALECTS: dict[type[DialectRequest], dict[str, Any]] = {
    ChatRequest: {
        "messages": [{"role": "user", "content": "hi"}],
        "tools": [{"type": "function", "function": FUNCTION}],
        "stream_options": {"include_usage": True},
    },
    ResponsesRequest: {"input": "hi", "tools": [{"type": "function", "strict": False, **FUNCTION}]},
    MessagesRequest: {
        "messages": [{"role": "user", "content": "hi"}],
        "tools": [{"name": "read", "description": "Read a file.", "input_schema": PARAMETERS}],
        "thinking": {"type": "enabled", "budget_tokens": 1024},
        "max_tokens": 100,
    },
}


def openai_client(url: str) -> AsyncOpenAI:
    from openai import AsyncOpenAI

    return AsyncOpenAI(base_url=f"{url}/v1", api_key="any")


def anthropic_client(url: str) -> AsyncAnthropic:
    from anthropic import AsyncAnthropic

    return AsyncAnthropic(base_url=url, api_key="any")


@cache
def response_events() -> TypeAdapter[Any]:
    from openai.types.responses import ResponseStreamEvent

    return TypeAdapter(ResponseStreamEvent)


@cache
def message_events() -> TypeAdapter[Any]:
    from anthropic.types import RawMessageStreamEvent

    return TypeAdapter(RawMessageStreamEvent)


async def drain(asked: Awaitable[Any]) -> None:
    async for _ in await asked:
        pass


@pytest.mark.parametrize("name", MESSAGES)
@pytest.mark.parametrize("finish_reason", ["stop", "length", "content_filter"])
@pytest.mark.parametrize("dialect", DIALECTS)
def test_every_reply_has_the_types_of_the_official_packages(
    dialect: type[DialectRequest], finish_reason: str, name: str
) -> None:
    from anthropic.types import Message as AnthropicMessage
    from openai.types.chat import ChatCompletion, ChatCompletionChunk
    from openai.types.responses import Response

    request = dialect({"model": "m", **DIALECTS[dialect]}, "call-0")
    reply = reply_of(request.call, MESSAGES[name], finish_reason)
    response = json.loads(json.dumps(request.response(reply)))
    events = [event.data for event in (*request.opening(), *request.events(reply))]
    if dialect is ChatRequest:
        ChatCompletion.model_validate(response, strict=True)
        assert events.pop() == "[DONE]"
        for event in events:
            ChatCompletionChunk.model_validate(event, strict=True)
    elif dialect is ResponsesRequest:
        Response.model_validate(response)
        for number, event in enumerate(events):
            assert response_events().validate_python(event).sequence_number == number
        assert events[-1]["response"] == {**response, "created_at": events[-1]["response"]["created_at"]}
    else:
        AnthropicMessage.model_validate(response)
        for event in events:
            message_events().validate_python(event)


@pytest.mark.parametrize("streams", [False, True])
async def test_a_chat_continues_with_returned_messages(streams: bool) -> None:
    def script(call: EndpointCall) -> EndpointReply:
        done = call.messages[-1]["role"] == "tool"
        return reply_of(call, MESSAGES["text" if done else "everything"])

    async with serve(script) as served, openai_client(served.url) as client:
        messages: list[Any] = [
            {"role": "system", "content": "be brief"},
            {"role": "developer", "content": [{"type": "text", "text": "be kind"}]},
            {
                "role": "user",
                "content": [
                    {"type": "text", "text": "look"},
                    {"type": "image_url", "image_url": {"url": PIXEL, "detail": "low"}},
                ],
            },
        ]
        asked: dict[str, Any] = {
            "model": "gpt-x",
            "tools": [{"type": "function", "function": FUNCTION}],
            "temperature": 0.5,
            "max_completion_tokens": 50,
            "stop": "END",
            "tool_choice": {"type": "function", "function": {"name": "read"}},
            "parallel_tool_calls": False,
        }
        for _ in range(2):
            if streams:
                options = {"include_usage": True}
                async with client.chat.completions.stream(
                    messages=messages, stream_options=options, **asked
                ) as stream:
                    completion = await stream.get_final_completion()
            else:
                completion = await client.chat.completions.create(messages=messages, **asked)
            choice = completion.choices[0]
            messages.append(choice.message.model_dump(exclude_none=True))
            for call in choice.message.tool_calls or ():
                messages.append({"role": "tool", "tool_call_id": call.id, "content": f"of {call.id}"})
    assert choice.message.content == "hello\nthere"
    assert choice.finish_reason == "stop"
    assert completion.usage is not None
    assert completion.usage.total_tokens == 10
    first, second = served.calls
    assert first.model == "gpt-x"
    assert first.messages == [
        {"role": "system", "content": "be brief\n\nbe kind"},
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "look"},
                {"type": "image_url", "image_url": {"url": PIXEL, "detail": "low"}},
            ],
        },
    ]
    assert first.tools == [{"type": "function", "function": FUNCTION}]
    assert first.sampling.given() == {
        "temperature": 0.5,
        "max_tokens": 50,
        "stop": ["END"],
        "tool_choice": {"type": "function", "function": {"name": "read"}},
        "parallel_tool_calls": False,
    }
    assert second.messages == [
        *first.messages,
        MESSAGES["everything"],
        {"role": "tool", "tool_call_id": "call_1", "content": "of call_1"},
        {"role": "tool", "tool_call_id": "call_2", "content": "of call_2"},
    ]


@pytest.mark.parametrize("streams", [False, True])
async def test_responses_continue_with_their_items(streams: bool) -> None:
    def script(call: EndpointCall) -> EndpointReply:
        done = call.messages[-1]["role"] == "tool"
        return reply_of(call, MESSAGES["text" if done else "everything"])

    async with serve(script) as served, openai_client(served.url) as client:
        items: list[Any] = [
            {"role": "developer", "content": "be kind"},
            {
                "role": "user",
                "content": [
                    {"type": "input_text", "text": "look"},
                    {"type": "input_image", "image_url": PIXEL, "detail": "auto"},
                ],
            },
        ]
        asked: dict[str, Any] = {
            "model": "gpt-x",
            "instructions": "be brief",
            "tools": [{"type": "function", "strict": False, **FUNCTION}, {"type": "web_search"}],
            "max_output_tokens": 50,
            "reasoning": {"effort": "low"},
            "tool_choice": "required",
            "text": {"format": {"type": "json_schema", "name": "x", "schema": PARAMETERS, "strict": True}},
            "store": False,
            "include": ["reasoning.encrypted_content"],
        }
        for _ in range(2):
            if streams:
                async with client.responses.stream(input=items, **asked) as stream:
                    response = await stream.get_final_response()
            else:
                response = await client.responses.create(input=items, **asked)
            for item in response.output:
                items.append(item.model_dump(exclude_none=True))
                if item.type == "function_call":
                    result = {"type": "function_call_output", "call_id": item.call_id, "output": "ok"}
                    items.append(result)
    assert response.output_text == "hello\nthere"
    assert response.usage is not None
    assert response.usage.total_tokens == 10
    first, second = served.calls
    assert first.messages[0] == {"role": "system", "content": "be brief\n\nbe kind"}
    assert first.messages[1]["content"][1] == {"type": "image_url", "image_url": {"url": PIXEL}}
    assert first.tools == [{"type": "function", "function": FUNCTION}]
    assert first.sampling.given() == {
        "max_tokens": 50,
        "reasoning_effort": "low",
        "tool_choice": "required",
        "response_format": {
            "type": "json_schema",
            "json_schema": {"name": "x", "schema": PARAMETERS, "strict": True},
        },
    }
    assistant = {**MESSAGES["everything"], "tool_calls": CALLS[:1]}
    assert second.messages[2] == assistant


async def test_responses_have_tools_with_texts_and_namespaces() -> None:
    calls = [
        tool_call("call_1", "apply_patch", '{"input": "*** Begin"}'),
        tool_call("call_2", "agents__spawn", '{"path":"x"}'),
    ]
    script = partial(reply_of, message=says(tool_calls=calls))
    async with serve(script) as served, openai_client(served.url) as client:
        grammar = {"type": "grammar", "syntax": "lark", "definition": "start: WORD"}
        spawn = {"type": "function", "name": "spawn", "parameters": PARAMETERS}
        tools: list[Any] = [
            {"type": "custom", "name": "apply_patch", "description": "Patch.", "format": grammar},
            {"type": "namespace", "name": "agents", "description": "", "tools": [spawn]},
        ]
        items: list[Any] = [{"role": "user", "content": "go"}]
        response = await client.responses.create(model="m", input=items, tools=tools)
        patch, spawned = response.output
        assert patch.type == "custom_tool_call"
        assert patch.input == "*** Begin"
        assert spawned.type == "function_call"
        assert (spawned.namespace, spawned.name) == ("agents", "spawn")
        items += [item.model_dump(exclude_none=True) for item in response.output]
        items += [
            {"type": "custom_tool_call_output", "call_id": "call_1", "output": "done"},
            {"type": "function_call_output", "call_id": "call_2", "output": "done"},
        ]
        await client.responses.create(model="m", input=items, tools=tools)
    first, second = served.calls
    assert [tool["function"]["name"] for tool in first.tools or ()] == ["apply_patch", "agents__spawn"]
    assert second.messages[1] == says(tool_calls=calls)


@pytest.mark.parametrize("streams", [False, True])
async def test_messages_continue_with_their_blocks(streams: bool) -> None:
    def script(call: EndpointCall) -> EndpointReply:
        done = len(call.messages) > 4
        return reply_of(call, MESSAGES["text" if done else "everything"])

    async with serve(script) as served, anthropic_client(served.url) as client:
        messages: list[Any] = [
            {
                "role": "user",
                "content": [
                    {"type": "text", "text": "look", "cache_control": {"type": "ephemeral"}},
                    {
                        "type": "image",
                        "source": {"type": "base64", "media_type": "image/png", "data": "iVBORw0KGgo="},
                    },
                ],
            },
            {"role": "system", "content": "later instructions"},
            {"role": "user", "content": "go"},
        ]
        asked: dict[str, Any] = {
            "model": "claude-x",
            "max_tokens": 2000,
            "system": [{"type": "text", "text": "be brief"}, {"type": "text", "text": "be kind"}],
            "tools": [
                {"name": "read", "description": "Read a file.", "input_schema": PARAMETERS},
                {"type": "bash_20250124", "name": "bash"},
                {"type": "web_search_20250305", "name": "web_search"},
            ],
            "tool_choice": {"type": "any", "disable_parallel_tool_use": True},
            "thinking": {"type": "enabled", "budget_tokens": 1024},
            "stop_sequences": ["END"],
        }
        for _ in range(2):
            if streams:
                async with client.messages.stream(messages=messages, **asked) as stream:
                    message = await stream.get_final_message()
            else:
                message = await client.messages.create(messages=messages, **asked)
            messages.append({"role": "assistant", "content": message.content})
            results: list[Any] = [
                {
                    "type": "tool_result",
                    "tool_use_id": block.id,
                    "is_error": block.id == "call_2",
                    "content": [
                        {"type": "text", "text": "seen"},
                        {"type": "image", "source": {"type": "url", "url": "http://x/y.png"}},
                    ],
                }
                for block in message.content
                if block.type == "tool_use"
            ]
            messages.append({"role": "user", "content": [*results, {"type": "text", "text": "and"}]})
    assert [block.type for block in message.content] == ["text"]
    assert message.stop_reason == "end_turn"
    assert (message.usage.input_tokens, message.usage.output_tokens) == (7, 3)
    first, second = served.calls
    assert [message["role"] for message in first.messages] == ["system", "user", "system", "user"]
    assert first.messages[0]["content"] == "be brief\n\nbe kind"
    assert [tool["function"]["name"] for tool in first.tools or ()] == ["read", "bash"]
    assert first.sampling.given() == {
        "max_tokens": 2000,
        "stop": ["END"],
        "tool_choice": "required",
        "parallel_tool_calls": False,
    }
    image = {"type": "image_url", "image_url": {"url": "http://x/y.png"}}
    assert second.messages[4:] == [
        MESSAGES["everything"],
        {"role": "tool", "tool_call_id": "call_1", "content": "seen"},
        {"role": "tool", "tool_call_id": "call_2", "content": "Error: seen"},
        {"role": "user", "content": [image, image, {"type": "text", "text": "and"}]},
    ]


async def test_thinking_is_returned_only_if_asked_for() -> None:
    script = partial(reply_of, message=MESSAGES["reasoning"])
    async with serve(script) as served, anthropic_client(served.url) as client:
        message = await client.messages.create(
            model="m", max_tokens=9, messages=[{"role": "user", "content": "hi"}]
        )
    assert [block.type for block in message.content] == ["text"]


async def test_invalid_arguments_survive_the_messages_dialect() -> None:
    broken = says(tool_calls=[tool_call("call_1", "read", '{"path": ')])
    async with serve(lambda call: reply_of(call, broken)) as served, anthropic_client(served.url) as client:
        asked: dict[str, Any] = {"model": "m", "max_tokens": 9, "tools": DIALECTS[MessagesRequest]["tools"]}
        message = await client.messages.create(messages=[{"role": "user", "content": "hi"}], **asked)
        (block,) = message.content
        assert block.type == "tool_use"
        assert block.input == {"INVALID_JSON": '{"path": '}
        result: Any = {"type": "tool_result", "tool_use_id": "call_1", "content": "invalid"}
        await client.messages.create(
            messages=[
                {"role": "user", "content": "hi"},
                {"role": "assistant", "content": message.content},
                {"role": "user", "content": [result]},
            ],
            **asked,
        )
    assert served.calls[1].messages[1] == broken


async def test_models_and_token_counts() -> None:
    from anthropic.types import MessageTokensCount

    async with serve() as served:
        async with openai_client(served.url) as client:
            assert [model.id async for model in client.models.list()] == ["policy"]
            assert (await client.models.retrieve("gpt-x")).id == "gpt-x"
        async with anthropic_client(served.url) as messages:
            assert [model.id async for model in messages.models.list()] == ["policy"]
            assert (await messages.models.retrieve("claude-x")).id == "claude-x"
            counted = await messages.messages.count_tokens(
                model="m", messages=[{"role": "user", "content": "x" * 400}]
            )
            assert isinstance(counted, MessageTokensCount)
            assert 100 <= counted.input_tokens < 130


@pytest.mark.parametrize("streams", [False, True])
@pytest.mark.parametrize("late", [False, True])
async def test_a_refusal_is_an_error_without_retry(
    late: bool, streams: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    import anthropic
    import openai

    monkeypatch.setattr(server, "PATIENCE_SECONDS", 0.01)
    monkeypatch.setattr(server, "KEEP_ALIVE_SECONDS", 0.01)

    def script(call: EndpointCall) -> EndpointReply:
        return EndpointReply(call_id=call.call_id, refusal="the budget is used up")

    async with serve(script, delay=0.05 if late else 0.0) as served:
        hello: list[Any] = [{"role": "user", "content": "hi"}]
        async with openai_client(served.url) as client:
            with pytest.raises(openai.APIError, match="the budget is used up"):
                await drain(client.chat.completions.create(model="m", messages=hello, stream=streams))
            if streams and late:
                async with client.responses.stream(model="m", input="hi") as stream:
                    failed = [event async for event in stream if event.type == "response.failed"]
                assert failed[0].response.error.message == "the budget is used up"
            else:
                with pytest.raises(openai.PermissionDeniedError, match="the budget is used up"):
                    await client.responses.create(model="m", input="hi", stream=streams)
        async with anthropic_client(served.url) as messages:
            asked: dict[str, Any] = {"model": "m", "max_tokens": 9, "messages": hello, "stream": streams}
            with pytest.raises(anthropic.APIStatusError, match="the budget is used up"):
                await drain(messages.messages.create(**asked))
    assert len(served.calls) == 3


async def test_an_overflow_has_the_codes_that_agents_look_for() -> None:
    import anthropic
    import openai

    def script(call: EndpointCall) -> EndpointReply:
        return EndpointReply(call_id=call.call_id, refusal="9 tokens, at most 8", overflow=True)

    async with serve(script) as served:
        async with openai_client(served.url) as client:
            with pytest.raises(openai.BadRequestError) as error:
                await client.responses.create(model="m", input="hi")
            assert error.value.code == "context_length_exceeded"
        async with anthropic_client(served.url) as messages:
            with pytest.raises(anthropic.BadRequestError, match="prompt is too long"):
                await messages.messages.create(
                    model="m", max_tokens=9, messages=[{"role": "user", "content": "hi"}]
                )


USER = [{"role": "user", "content": "hi"}]
REFUSED: list[tuple[type[DialectRequest], dict[str, Any], str]] = [
    (ChatRequest, {"messages": USER, "n": 2}, "n"),
    (ChatRequest, {"messages": USER, "logprobs": True}, "logprobs"),
    (ChatRequest, {"messages": USER, "functions": [FUNCTION]}, "functions"),
    (ChatRequest, {"messages": []}, "messages"),
    (ChatRequest, {"messages": "hi"}, "messages"),
    (ChatRequest, {"messages": [*USER, {"role": "assistant", "content": "I"}]}, "messages"),
    (ChatRequest, {"messages": [{"role": "critic", "content": "hi"}]}, "messages.role"),
    (ChatRequest, {"messages": USER, "temperature": "hot"}, "temperature"),
    (
        ChatRequest,
        {"messages": USER, "tool_choice": {"type": "function", "function": {"name": "x"}}},
        "tool_choice",
    ),
    (ChatRequest, {"messages": USER, "tools": [{"type": "retrieval"}]}, "tools"),
    (ChatRequest, {"messages": [{"role": "user", "content": [{"type": "input_audio"}]}]}, "messages.content"),
    (ResponsesRequest, {"input": "hi", "previous_response_id": "resp_1"}, "previous_response_id"),
    (ResponsesRequest, {"input": "hi", "background": True}, "background"),
    (ResponsesRequest, {"input": "hi", "conversation": "c"}, "conversation"),
    (ResponsesRequest, {"input": [{"type": "computer_call_output"}]}, "input"),
    (ResponsesRequest, {"input": "hi", "tools": [{"type": "web_search"}]}, "tools"),
    (ResponsesRequest, {"input": "hi", "tool_choice": {"type": "file_search"}}, "tool_choice"),
    (ResponsesRequest, {"input": [{"role": "user", "content": [{"type": "input_file"}]}]}, "input.content"),
    (MessagesRequest, {"messages": USER, "tools": [{"type": "web_search_20250305", "name": "s"}]}, "tools"),
    (MessagesRequest, {"messages": USER, "mcp_servers": [{}]}, "mcp_servers"),
    (MessagesRequest, {"messages": [*USER, {"role": "assistant", "content": "I"}]}, "messages"),
    (
        MessagesRequest,
        {"messages": [{"role": "user", "content": [{"type": "document"}]}]},
        "messages.content",
    ),
    (
        MessagesRequest,
        {"messages": USER, "context_management": {"edits": [{"type": "compact_20260112"}]}},
        "context_management.edits",
    ),
]


@pytest.mark.parametrize(("dialect", "body", "parameter"), REFUSED)
async def test_unsupported_requests_get_errors_in_the_dialect(
    dialect: type[DialectRequest], body: dict[str, Any], parameter: str
) -> None:
    import openai

    path = {ChatRequest: "chat/completions", ResponsesRequest: "responses", MessagesRequest: "messages"}
    async with serve() as served, openai_client(served.url) as client:
        with pytest.raises(openai.BadRequestError) as error:
            await client.post(f"/{path[dialect]}", cast_to=object, body={"model": "m", **body})
    assert error.value.response.headers["x-should-retry"] == "false"
    body = error.value.response.json()
    if dialect is MessagesRequest:
        assert body["type"] == "error"
        assert body["error"]["type"] == "invalid_request_error"
    else:
        assert body["error"]["param"] == parameter
    assert served.calls == []
