"""The OpenAI client against a real HTTP server: what it sends, what it makes of every answer."""

from __future__ import annotations

import asyncio
import email.utils
import json
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest
from aiohttp import web
from wander import SamplingArgs
from wander.clients.base import ModelRequest
from wander.clients.openai import OpenAIClient
from wander.clients.transport import retry_after
from wander.errors import (
    AuthenticationFailed,
    ConfigError,
    ContextOverflow,
    EndpointUnreachable,
    InvalidResponse,
    ModelError,
    ModelNotFound,
    RateLimited,
)


def request(text: str = "hello", **fields: Any) -> ModelRequest:
    return ModelRequest(rollout_id="0/0", turn=0, messages=[{"role": "user", "content": text}], **fields)


@pytest.fixture
async def client(chat_server: Any) -> AsyncIterator[OpenAIClient]:
    made = OpenAIClient("m", chat_server.url, "key-1", max_retries=2, timeout=5)
    made.attempts.retry_seconds = made.attempts.patience = 0.01
    yield made
    await made.close()


async def test_requests_are_sent_and_responses_are_read(chat_server: Any, client: OpenAIClient) -> None:
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    chat_server.script = lambda body, number: {
        "role": "assistant",
        "content": None,
        "reasoning": "hm",
        "tool_calls": [call],
    }
    tools = [{"type": "function", "function": {"name": "f", "parameters": {}}}]
    sampling = SamplingArgs(temperature=0.5, max_tokens=7, min_p=0.1)  # type: ignore[call-arg]
    response = await client.complete(request(tools=tools, sampling=sampling))
    assert chat_server.requests == [
        {
            "model": "m",
            "messages": [{"role": "user", "content": "hello"}],
            "temperature": 0.5,
            "max_tokens": 7,
            "min_p": 0.1,
            "tools": tools,
        }
    ]
    assert chat_server.headers[0]["Authorization"] == "Bearer key-1"
    assert response.message == {
        "role": "assistant",
        "content": "",
        "reasoning_content": "hm",
        "tool_calls": [call],
    }
    assert response.finish_reason == "tool_calls"
    assert (response.usage.prompt_tokens, response.usage.completion_tokens) == (10, 5)


async def test_seeds_differ_within_a_group_and_are_reproducible(
    chat_server: Any, client: OpenAIClient
) -> None:
    sampling = SamplingArgs(seed=3)
    for seed in (1, 2, 1):
        await client.complete(request(sampling=sampling, seed=seed))
    sent = [body["seed"] for body in chat_server.requests]
    assert sent[0] == sent[2] != sent[1]
    assert all(0 <= seed < 2**31 for seed in sent)
    await client.complete(request(seed=1))
    assert "seed" not in chat_server.requests[-1]


async def test_token_ids_are_kept_if_the_server_returns_them(chat_server: Any, client: OpenAIClient) -> None:
    body = {
        "prompt_token_ids": [1, 2],
        "choices": [
            {
                "message": {"content": "x"},
                "token_ids": [3],
                "logprobs": {"content": [{"token": "x", "logprob": -0.5}]},
                "finish_reason": None,
            }
        ],
    }
    chat_server.script = lambda _, number: web.json_response(body)
    response = await client.complete(request())
    assert response.tokens is not None
    assert response.tokens.model_dump() == {
        "prompt_ids": [1, 2],
        "completion_ids": [3],
        "logprobs": [-0.5],
    }
    assert response.finish_reason == "stop"


@pytest.mark.parametrize(
    ("fault", "error", "retryable", "attempts", "says"),
    [
        ("401", AuthenticationFailed, False, 1, "bad key"),
        ("403", AuthenticationFailed, False, 1, "no access"),
        ("404", ModelError, False, 1, "does not exist"),
        ("500", ModelError, True, 3, "kaboom"),
        ("html", InvalidResponse, False, 1, "Welcome"),
        ("truncated", InvalidResponse, True, 3, "invalid JSON"),
        ("empty", InvalidResponse, True, 3, "empty body"),
        ("no_choices", InvalidResponse, True, 3, "no choices"),
        ("error_in_200", InvalidResponse, True, 3, "upstream is busy"),
        ("list", InvalidResponse, False, 1, "not a chat completion"),
        ("number_content", InvalidResponse, False, 1, "not a chat completion"),
        ("context", ContextOverflow, False, 1, "maximum context length"),
        ("cut_off", EndpointUnreachable, True, 3, "no response from .* broke in the middle"),
    ],
)
async def test_every_error_response_has_its_exception(
    chat_server: Any,
    client: OpenAIClient,
    faults: dict[str, Any],
    fault: str,
    error: type[ModelError],
    retryable: bool,
    attempts: int,
    says: str,
) -> None:
    chat_server.script = lambda body, number: faults[fault]
    with pytest.raises(error, match=says) as caught:
        await client.complete(request())
    assert type(caught.value) is error
    assert caught.value.retryable is retryable
    assert len(chat_server.requests) == attempts
    assert "<" not in str(caught.value).replace("<locals>", "")
    assert caught.value.hint or error in (ContextOverflow, ModelError)


@pytest.mark.parametrize("fault", ["429", "503", "quota", "tomorrow"])
async def test_a_refusal_is_final_if_no_request_is_accepted(
    chat_server: Any, client: OpenAIClient, faults: dict[str, Any], fault: str
) -> None:
    chat_server.script = lambda body, number: faults[fault]
    with pytest.raises(RateLimited) as caught:
        await client.complete(request())
    assert caught.value.retryable is False
    assert (len(chat_server.requests) > 1) is (fault != "quota")
    assert client.limiter.use().refusals == len(chat_server.requests) * (fault != "quota")


@pytest.mark.parametrize("fault", ["500", "429", "503", "cut_off"])
async def test_temporary_errors_are_retried(
    chat_server: Any, client: OpenAIClient, faults: dict[str, Any], fault: str
) -> None:
    chat_server.script = lambda body, number: faults[fault] if number < 3 else "at last"
    client.attempts.patience = 60
    assert (await client.complete(request())).message["content"] == "at last"


async def test_retry_after_delays_only_the_refused_request(chat_server: Any, client: OpenAIClient) -> None:
    refused = web.Response(status=429, headers={"Retry-After": "1"})
    chat_server.script = lambda body, number: refused if number == 1 else "ok"
    client.attempts.patience = 60
    first = asyncio.create_task(client.complete(request()))
    await chat_server.asked.wait()
    await client.complete(request())
    assert not first.done()
    await first


async def test_a_hanging_endpoint_times_out(chat_server: Any, faults: dict[str, Any]) -> None:
    chat_server.script = lambda body, number: faults["hang"]
    client = OpenAIClient("m", chat_server.url, timeout=0.1, max_retries=1)
    client.attempts.retry_seconds = 0.01
    with pytest.raises(ModelError, match="did not respond in time") as caught:
        await client.complete(request())
    await client.close()
    assert caught.value.retryable
    assert len(chat_server.requests) == 2


async def test_an_error_names_the_address_without_a_listener(unused_tcp_port: int) -> None:
    url = f"http://user:secret@127.0.0.1:{unused_tcp_port}/v1"
    client = OpenAIClient("m", url, max_retries=1)
    client.attempts.retry_seconds = 0.01
    for call in (client.complete(request()), client.check()):
        with pytest.raises(EndpointUnreachable, match=f"`http://127.0.0.1:{unused_tcp_port}/v1`") as caught:
            await call
        assert "/v1" in (caught.value.hint or "")
    await client.close()


async def test_an_unknown_host_is_unreachable() -> None:
    client = OpenAIClient("m", "http://no-such-host.invalid/v1", max_retries=0)
    with pytest.raises(EndpointUnreachable, match="no-such-host"):
        await client.complete(request())
    await client.close()


@pytest.mark.parametrize("url", ["localhost:8000", "ftp://x/v1", "http://", "/v1"])
def test_invalid_addresses_are_rejected(url: str) -> None:
    with pytest.raises(ConfigError, match="not the URL of an endpoint"):
        OpenAIClient("m", url)


async def test_a_canceled_call_ends_immediately(
    chat_server: Any, client: OpenAIClient, faults: dict[str, Any]
) -> None:
    chat_server.script = lambda body, number: faults["hang"]
    call = asyncio.create_task(client.complete(request()))
    await chat_server.asked.wait()
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call


async def test_check_costs_nothing_if_models_are_listed(chat_server: Any, client: OpenAIClient) -> None:
    await client.check()
    assert chat_server.requests == []


@pytest.mark.parametrize("fault", ["401", "403"])
async def test_check_reports_a_rejected_key(
    chat_server: Any, client: OpenAIClient, faults: dict[str, Any], fault: str
) -> None:
    chat_server.models = faults[fault]
    with pytest.raises(AuthenticationFailed):
        await client.check()


@pytest.mark.parametrize(("fault", "error"), [("404", ModelError), ("html", InvalidResponse)])
async def test_check_requests_one_token_if_no_models_are_listed(
    chat_server: Any, client: OpenAIClient, faults: dict[str, Any], fault: str, error: type[ModelError]
) -> None:
    chat_server.models = faults["404"]
    await client.check()
    assert chat_server.requests[0]["max_tokens"] == 1
    chat_server.script = lambda body, number: faults[fault]
    with pytest.raises(error):
        await client.check()


@pytest.mark.parametrize(
    ("code", "text"), [(404, "no such model"), (400, "The model `qwen3-4b-instuct` is unknown")]
)
async def test_check_suggests_a_similar_model(chat_server: Any, code: int, text: str) -> None:
    names = ["llama-3", "Qwen/Qwen3-4B", "qwen3-4b-instruct"]
    chat_server.models = web.json_response({"data": [{"id": name} for name in names]})
    chat_server.script = lambda body, number: web.json_response({"error": {"message": text}}, status=code)
    client = OpenAIClient("qwen3-4b-instuct", chat_server.url, "k")
    with pytest.raises(ModelNotFound, match="has no model `qwen3-4b-instuct`") as refused:
        await client.check()
    assert str(refused.value.hint).startswith("did you mean `qwen3-4b-instruct`")
    assert "it has `llama-3`" in str(refused.value.hint)
    await client.close()


async def test_check_accepts_an_unlisted_model_that_responds(chat_server: Any) -> None:
    client = OpenAIClient("an-alias", chat_server.url, "k")
    await client.check()
    assert len(chat_server.requests) == 1
    await client.close()


async def test_description_and_environment_contain_no_secret(
    chat_server: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_BASE_URL", chat_server.url.replace("//", "//me:pw@") + "?key=1")
    monkeypatch.setenv("OPENAI_API_KEY", "secret")
    client = OpenAIClient("m")
    assert client.describe() == {"kind": "OpenAIClient", "model": "m", "base_url": chat_server.url}
    await client.check()
    await client.close()
    assert "secret" not in json.dumps(client.describe())


async def test_the_openai_package_is_used_if_requested(chat_server: Any, faults: dict[str, Any]) -> None:
    import openai  # takes half a second, also for workers that do not run this file

    sdk = openai.AsyncOpenAI(api_key="k", base_url=chat_server.url)
    client = OpenAIClient.from_sdk(sdk, "m", max_retries=1)
    client.attempts.retry_seconds = 0.01
    assert client.base_url == chat_server.url
    await client.check()
    assert (await client.complete(request())).message == {"role": "assistant", "content": "ok"}
    assert chat_server.headers[-1]["Authorization"] == "Bearer k"
    for fault, error in (("401", AuthenticationFailed), ("500", ModelError), ("html", InvalidResponse)):
        chat_server.script = lambda body, number, fault=fault: faults[fault]
        with pytest.raises(error):
            await client.complete(request())
    await chat_server.stop()
    with pytest.raises(EndpointUnreachable):
        await client.complete(request())
    await sdk.close()


async def test_azure_addresses_are_left_to_the_openai_package(chat_server: Any) -> None:
    import openai

    sdk = openai.AsyncAzureOpenAI(
        api_key="k", api_version="1", azure_endpoint=chat_server.url.removesuffix("/v1")
    )
    client = OpenAIClient.from_sdk(sdk, "deployed", max_retries=0)
    with pytest.raises(ModelError, match="404"):
        await client.complete(request())
    await sdk.close()


async def test_large_requests_and_responses_work(chat_server: Any, client: OpenAIClient) -> None:
    text = "x" * 5_000_000
    chat_server.script = lambda body, number: body["messages"][0]["content"]
    response = await client.complete(request(text))
    assert response.message["content"] == text


async def test_the_number_of_connections_can_be_limited(chat_server: Any) -> None:
    chat_server.delay = 0.02
    client = OpenAIClient("m", chat_server.url, max_connections=3)
    await asyncio.gather(*(client.complete(request(str(i))) for i in range(12)))
    await client.close()
    assert chat_server.most_in_flight <= 3


def test_a_client_serves_one_loop_after_another(unused_tcp_port: int) -> None:
    client = OpenAIClient("m", f"http://127.0.0.1:{unused_tcp_port}/v1", max_retries=0)

    async def call() -> None:
        with pytest.raises(EndpointUnreachable):
            await client.complete(request())
        await client.close()

    for _ in range(2):
        asyncio.run(call())


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({"retry-after": "2"}, 2.0),
        ({"retry-after": "0.5"}, 0.5),
        ({"retry-after-ms": "250", "retry-after": "9"}, 0.25),
        ({"retry-after": "soon"}, None),
        ({"retry-after": "-3"}, None),
        ({"retry-after": "nan"}, None),
        ({"retry-after": "1e999"}, None),
        ({"retry-after-ms": "nan", "retry-after": "3"}, 3.0),
        ({"Retry-After": "Wed, 21 Oct 2026 07:28:09 GMT", "Date": "Wed, 21 Oct 2026 07:28:00 GMT"}, 9.0),
        ({"retry-after": "Wed, 21 Oct 2026 07:28:09 -0000", "date": "Wed, 21 Oct 2026 07:28:00 GMT"}, 9.0),
        ({"x-ratelimit-remaining-requests": "0", "x-ratelimit-reset-requests": "1m30.5s"}, 90.5),
        ({"x-ratelimit-remaining-tokens": "7", "x-ratelimit-reset-tokens": "6h"}, None),
        ({"x-ratelimit-remaining-tokens": "0", "x-ratelimit-reset-tokens": "120ms"}, 0.12),
        ({"ratelimit-reset": "12", "retry-after": "4"}, 4.0),
        ({"x-rate-limit-reset": "1795000012", "date": "Wed, 18 Nov 2026 11:06:40 GMT"}, 12.0),
        ({"x-ratelimit-reset": "1795000012000", "date": "Wed, 18 Nov 2026 11:06:40 GMT"}, 12.0),
        ({"x-ratelimit-reset": "..s"}, None),
        ({}, None),
    ],
)
def test_every_format_of_retry_after_is_read(headers: dict[str, str], seconds: float | None) -> None:
    assert retry_after(headers) == seconds


def test_retry_after_dates_are_read() -> None:
    later = email.utils.formatdate(time.time() + 30, usegmt=True)
    assert 25 < (retry_after({"retry-after": later}) or 0) <= 31
    assert retry_after({"retry-after": email.utils.formatdate(0, usegmt=True)}) == 0.0
