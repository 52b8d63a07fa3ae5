"""The endpoint of a box bounds what programs send, and forgets calls of programs that hang up."""

from __future__ import annotations

import asyncio
import io
import json
from collections.abc import Callable
from typing import Any

import aiohttp
import pytest
from model_endpoint import Served, reply_of, says, serve
from wander.endpoint import server
from wander.endpoint.values import EndpointCall, EndpointReply

CHAT = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
MESSAGES = {**CHAT, "max_tokens": 9}
RESPONSES = {"model": "m", "input": "hi"}


def hello(call: EndpointCall) -> EndpointReply:
    return reply_of(call, says("hello"))


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not condition():  # noqa: ASYNC110 - nothing else reports it
            await asyncio.sleep(0.001)


async def test_calls_may_wait_together_and_are_answered_in_any_order() -> None:
    async with serve() as served, aiohttp.ClientSession() as session:
        posts = [
            asyncio.create_task(session.post(f"{served.url}/v1/chat/completions", json=CHAT)) for _ in "ab"
        ]
        calls = [await served.endpoint.next_call() for _ in posts]
        for call in reversed(calls):
            served.endpoint.answer(reply_of(call, says(call.call_id)))
        texts = [(await (await post).json())["choices"][0]["message"]["content"] for post in posts]
    assert sorted(texts) == ["call-0", "call-1"]


@pytest.mark.parametrize(
    ("path", "body", "sign"),
    [
        ("chat/completions", CHAT, b": the model is working"),
        ("messages", MESSAGES, b"event: ping"),
        ("responses", RESPONSES, b"event: response.in_progress"),
    ],
)
async def test_a_stream_shows_signs_of_life_while_the_model_works(
    path: str, body: dict[str, Any], sign: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "PATIENCE_SECONDS", 0.01)
    monkeypatch.setattr(server, "KEEP_ALIVE_SECONDS", 0.01)
    async with (
        serve() as served,
        aiohttp.ClientSession() as session,
        session.post(f"{served.url}/v1/{path}", json={**body, "stream": True}) as response,
    ):
        call = await served.endpoint.next_call()
        text = b""
        while text.count(sign) < 4:
            text += await response.content.readany()
        served.endpoint.answer(hello(call))
        text += await response.read()
    assert b"hello" in text
    assert response.headers["content-type"].startswith("text/event-stream")


@pytest.mark.parametrize("streams", [False, True])
@pytest.mark.parametrize("taken", [False, True])
async def test_a_call_is_forgotten_when_the_program_hangs_up(
    taken: bool, streams: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "PATIENCE_SECONDS", 0.01)
    monkeypatch.setattr(server, "KEEP_ALIVE_SECONDS", 0.01)
    async with serve() as served:
        body = json.dumps({**CHAT, "stream": streams}).encode()
        _, writer = await asyncio.open_connection("127.0.0.1", served.port)
        head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
        writer.write(head.encode() + body)
        if taken:
            call = await served.endpoint.next_call()
        else:
            await until(lambda: bool(served.endpoint._waiting))
        writer.close()
        await until(lambda: not served.endpoint._waiting)
        if taken:
            served.endpoint.answer(hello(call))
        async with aiohttp.ClientSession() as session:
            post = asyncio.create_task(session.post(f"{served.url}/v1/chat/completions", json=CHAT))
            call = await served.endpoint.next_call()
            assert call.call_id == "call-1"
            served.endpoint.answer(hello(call))
            assert (await post).status == 200
        assert served.endpoint._open_bytes == 0


async def status_of(served: Served, path: str, data: bytes, method: str = "POST") -> int:
    async with (
        aiohttp.ClientSession() as session,
        session.request(method, f"{served.url}{path}", data=io.BytesIO(data)) as response,
    ):
        assert (await response.json())["error"]["message"]
        return response.status


async def test_garbage_is_an_error_of_the_program() -> None:
    async with serve() as served:
        path = "/v1/chat/completions"
        assert await status_of(served, path, b"") == 400
        assert await status_of(served, path, b"not json") == 400
        assert await status_of(served, path, b"[]") == 400
        assert await status_of(served, path, b"\xff") == 400
        assert await status_of(served, path, b'{"messages": [{"role": "user", "content": "\\ud800"}]}') == 400
        assert await status_of(served, path, b'{"a":' * 100 + b"1" + b"}" * 100) == 413
        assert await status_of(served, path, b"[" + b"1," * 500_000 + b"1]") == 413
        assert await status_of(served, path, b" " * (17 << 20)) == 413
        assert await status_of(served, "/v1/embeddings", b"{}") == 404
        assert await status_of(served, "/v1/messages/batches", b"{}") == 404
        assert await status_of(served, "/v1/chat/completions", b"", "GET") == 404


async def test_open_calls_and_connections_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "MOST_OPEN_BYTES", 200)
    monkeypatch.setattr(server, "MOST_CONNECTIONS", 3)
    async with serve() as served, aiohttp.ClientSession() as session:
        url = f"{served.url}/v1/chat/completions"
        posts = [asyncio.create_task(session.post(url, json=CHAT)) for _ in range(2)]
        calls = [await served.endpoint.next_call() for _ in posts]
        async with session.post(url, json={**CHAT, "user": "x" * 200}) as response:
            assert response.status == 503
            assert "x-should-retry" not in response.headers
            reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
            assert await reader.read() == b""
            writer.close()
        for call in calls:
            served.endpoint.answer(hello(call))
        assert [(await post).status for post in posts] == [200, 200]


async def test_closing_ends_open_calls() -> None:
    async with serve() as served, aiohttp.ClientSession() as session:
        post = asyncio.create_task(session.post(f"{served.url}/v1/chat/completions", json=CHAT))
        await served.endpoint.next_call()
        await served.endpoint.close()
        with pytest.raises(aiohttp.ClientError):
            await post
        with pytest.raises(aiohttp.ClientConnectorError):
            await session.get(f"{served.url}/v1/models")
        await served.endpoint.close()


async def test_unknown_fields_and_paths_without_a_version_are_accepted() -> None:
    async with serve(hello) as served, aiohttp.ClientSession() as session:
        bodies = (
            ("chat/completions", CHAT),
            ("messages?beta=true", MESSAGES),
            ("responses", RESPONSES),
        )
        for path, body in bodies:
            for prefix in ("/v1/", "/"):
                more = {"new_field": {"a": [1]}, "metadata": {"user_id": "x"}, "service_tier": "auto"}
                async with session.post(f"{served.url}{prefix}{path}", json={**body, **more}) as response:
                    assert response.status == 200, await response.text()
        async with session.head(served.url) as response:
            assert response.status == 200
