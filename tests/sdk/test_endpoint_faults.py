"""What a broken endpoint does to an evaluation: one attributed failure a rollout, and nothing else."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import json
import socket
import ssl
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from unittest.mock import AsyncMock

import pytest
from aiohttp import web
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from wander import LocalEnvironment, Rubric, SingleTurnEnv, ToolEnv
from wander.clients.base import ModelRequest
from wander.clients.openai import OpenAIClient
from wander.clients.transport import AiohttpTransport
from wander.errors import (
    AuthenticationFailed,
    EndpointUnreachable,
    InvalidResponse,
    ModelError,
)
from wander.evals.run.runner import EvaluationPlan, EvaluationResult, evaluate
from wander.types import Rollout
from wander.wire import EnvironmentPin

KEY = "sk-a-very-secret-key-0123456789"

Behavior = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


def request(text: str = "hello") -> ModelRequest:
    return ModelRequest(rollout_id="0/0", turn=0, messages=[{"role": "user", "content": text}])


def right(completion: list[dict[str, Any]], answer: str) -> float:
    return float(completion[-1]["content"] == answer)


def environment(count: int = 8) -> LocalEnvironment:
    rows = [{"question": f"{i}?", "answer": str(i)} for i in range(count)]
    return LocalEnvironment(SingleTurnEnv(eval_dataset=rows, rubric=Rubric([right]), name="echo"))


async def evaluated(client: OpenAIClient, folder: Path | None, played: LocalEnvironment) -> EvaluationResult:
    pin = EnvironmentPin(name="echo", info=played.info)
    return await evaluate(played, client, EvaluationPlan(concurrency=4, max_retries=0), folder, pin)


def quick(url: str, **options: Any) -> OpenAIClient:
    client = OpenAIClient("m", url, KEY, **{"max_retries": 3, "timeout": 30, **options})
    client.attempts.retry_seconds = 0.001
    return client


def answer(body: bytes, status: str = "200 OK", **headers: str) -> bytes:
    lines = {"Content-Type": "application/json", "Content-Length": str(len(body))}
    lines |= {name.replace("_", "-"): value for name, value in headers.items()}
    head = "".join(f"{name}: {value}\r\n" for name, value in lines.items())
    return f"HTTP/1.1 {status}\r\n{head}\r\n".encode() + body


def said(text: str) -> bytes:
    message = {"role": "assistant", "content": text}
    return json.dumps({"choices": [{"message": message, "finish_reason": "stop"}]}).encode()


async def resets(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Send the beginning of an answer and reset the connection."""
    writer.write(answer(b"x" * 1000)[:200])
    await writer.drain()
    linger = struct.pack("ii", 1, 0)
    writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
    writer.transport.abort()


async def drips(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Send one byte at a time, for longer than anybody waits."""
    for byte in answer(said("x" * 10_000)):
        writer.write(bytes([byte]))
        await writer.drain()
        await asyncio.sleep(0.01)


async def never_ends(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Send an answer of any length, in chunks."""
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n")
    chunk = b"10000\r\n" + b" " * 0x10000 + b"\r\n"
    while True:
        writer.write(chunk)
        await writer.drain()


def sends(data: bytes) -> Behavior:
    """Send these bytes and close; a whole answer says so, or the next request might get that connection."""
    data = data.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n", 1)

    async def behavior(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(data)
        await writer.drain()

    return behavior


@contextlib.asynccontextmanager
async def raw_endpoint(behavior: Behavior, **options: Any) -> AsyncIterator[str]:
    """Serve requests of eight questions: the odd ones are answered well, the others get the behavior."""
    tasks: set[asyncio.Task[Any]] = set()
    writers: list[asyncio.StreamWriter] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        writers.append(writer)
        with contextlib.suppress(OSError, asyncio.IncompleteReadError, ssl.SSLError):
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                if head.startswith(b"GET"):
                    writer.write(answer(b'{"data": []}'))
                    continue
                length = int(head.lower().split(b"content-length:")[1].split(b"\r\n")[0])
                text = json.loads(await reader.readexactly(length))["messages"][-1]["content"]
                if text.rstrip("?").isdigit() and int(text.rstrip("?")) % 2:
                    writer.write(answer(said(text.rstrip("?"))))
                    continue
                await behavior(reader, writer)
                break
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0, **options)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
    finally:
        server.close()
        for writer in writers:
            writer.transport.abort()
        await asyncio.gather(*tasks, return_exceptions=True)


HTML = b"<!DOCTYPE html><html><head><style>p {}</style></head><body><p>Bad gateway</p></body></html>"
RAW: dict[str, tuple[Behavior, str, str]] = {
    "reset": (resets, "EndpointUnreachable", "no response from"),
    "closed": (sends(b""), "EndpointUnreachable", "no response from"),
    "half a head": (sends(b"HTTP/1.1 200 OK\r\nContent-Le"), "EndpointUnreachable", "no response from"),
    "no HTTP": (sends(b"SSH-2.0-OpenSSH_9.6\r\n"), "InvalidResponse", "is not HTTP"),
    "bad gateway": (sends(answer(HTML, "502 Bad Gateway")), "ModelError", "502: Bad gateway"),
    "page": (sends(answer(HTML)), "InvalidResponse", "web page: Bad gateway"),
    "gzip garbage": (
        sends(answer(b"\x1f\x8bgarbage", Content_Encoding="gzip")),
        "InvalidResponse",
        "cannot be decompressed",
    ),
    "never ends": (never_ends, "InvalidResponse", "longer than 1,048,576 bytes"),
    "too long": (
        sends(answer(said("x" * 2_000_000), Content_Encoding="identity")),
        "InvalidResponse",
        "longer than 1,048,576 bytes",
    ),
    "bomb": (
        sends(answer(gzip.compress(said("x" * 5_000_000)), Content_Encoding="gzip")),
        "InvalidResponse",
        "longer than 1,048,576 bytes",
    ),
    "redirect": (
        sends(answer(b"", "307 Temporary Redirect", Location="https://u:pw@elsewhere.test/v1?key=1")),
        "InvalidResponse",
        "redirects to another address (307): `https://elsewhere.test/v1`",
    ),
    "no UTF-8": (sends(answer(said("x").replace(b"x", b"\xff"))), "InvalidResponse", "invalid JSON"),
    "NaN": (
        sends(answer(said("x").replace(b'"stop"', b'"stop", "score": NaN'))),
        "InvalidResponse",
        "invalid JSON",
    ),
    "nested": (
        sends(answer(b'{"choices":' + b"[" * 5000 + b"]" * 5000 + b"}")),
        "InvalidResponse",
        "invalid JSON",
    ),
    "error in plain text": (
        sends(answer(b"upstream\x00\x1b[31m down", "400 Bad")),
        "ModelError",
        "400: upstream??[31m down",
    ),
    "key quoted": (
        sends(answer(json.dumps({"error": f"header `Bearer {KEY}` is refused"}).encode(), "400 Bad")),
        "ModelError",
        "header `[secret]` is refused",
    ),
    "key in a completion": (
        sends(answer(json.dumps({"choices": [], "debug": KEY}).encode())),
        "InvalidResponse",
        "no choices",
    ),
}


@pytest.mark.parametrize("fault", RAW)
async def test_a_fault_fails_its_rollouts_and_no_others(fault: str, tmp_path: Path) -> None:
    behavior, kind, message = RAW[fault]
    async with raw_endpoint(behavior) as url:
        transport = AiohttpTransport(
            url,
            {"Authorization": f"Bearer {KEY}"},
            timeout=30,
            connect_timeout=30,
            max_connections=None,
            max_answer_bytes=1 << 20,
        )
        result = await evaluated(quick(url, transport=transport), tmp_path / "run", environment())
        await transport.close()
    assert (result.summary.rollouts, result.summary.failures) == (8, {"model": 4})
    assert result.summary.reward_mean == 1.0
    stored = stored_rollouts(tmp_path / "run")
    failures = [rollout.failure for rollout in stored if rollout.failure is not None]
    assert [failure.type for failure in failures] == [kind] * 4
    for failure in failures:
        assert message in failure.message
        assert url in failure.message
        assert "\n" not in failure.message
        assert "Traceback" not in failure.message
        assert ".py:" not in failure.message
        assert len(failure.message) < 600
    assert_nowhere(KEY, tmp_path)


def stored_rollouts(folder: Path) -> list[Rollout]:
    from wander.evals.store.folder import RunFolder

    return list(RunFolder.open(folder).rollouts())


def assert_nowhere(secret: str, folder: Path) -> None:
    from wander.evals.store import jsonl

    for file in (path for path in folder.rglob("*") if path.is_file()):
        assert secret.encode() not in b"".join(jsonl.blocks(file)), f"the key is in {file.name}"


async def test_a_slow_response_times_out() -> None:
    async with raw_endpoint(drips) as url:
        client = quick(url, timeout=0.3, max_retries=0)
        with pytest.raises(ModelError, match="did not respond in time") as caught:
            await client.complete(request())
        await client.close()
    assert caught.value.retryable


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A certificate that nobody trusts, with its key."""
    folder = tmp_path_factory.mktemp("tls")
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "127.0.0.1")])
    now = datetime.now(UTC)
    made = x509.CertificateBuilder(name, name, key.public_key(), 1, now, now + timedelta(days=2)).sign(
        key, hashes.SHA256()
    )
    pem, plain = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    (folder / "cert.pem").write_bytes(made.public_bytes(pem))
    (folder / "key.pem").write_bytes(key.private_bytes(pem, plain, serialization.NoEncryption()))
    return folder


async def test_an_untrusted_certificate_is_reported_immediately(
    certificate: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate / "cert.pem", certificate / "key.pem")
    async with raw_endpoint(sends(b""), ssl=context) as url:
        client = quick(url.replace("http:", "https:"), max_retries=5)
        with pytest.raises(EndpointUnreachable, match="cannot establish a TLS connection") as caught:
            await client.complete(request())
        assert client.limiter.use().retries == 0
        assert "SSL_CERT_FILE" in (caught.value.hint or "")
        with pytest.raises(EndpointUnreachable, match="cannot establish a TLS connection"):
            await client.check()
        monkeypatch.setattr(client, "check", AsyncMock())
        with pytest.raises(
            EndpointUnreachable, match="the first rollout failed at the model: cannot establish a TLS"
        ):
            await evaluated(client, None, environment())
        await client.close()


async def test_https_to_an_http_server_is_reported_immediately(chat_server: Any) -> None:
    client = quick(chat_server.url.replace("http:", "https:"), max_retries=5)
    with pytest.raises(EndpointUnreachable) as caught:
        await client.complete(request())
    await client.close()
    assert client.limiter.use().retries == 0
    assert "`http://`" in (caught.value.hint or "")


def completion(**fields: Any) -> web.Response:
    choice = {"index": 0, "message": {"role": "assistant", "content": "ok"}, "finish_reason": "stop"}
    body = {"choices": [choice], "usage": {"prompt_tokens": 1, "completion_tokens": 2}}
    for name, value in fields.items():
        place: dict[str, Any] = body if name in ("choices", "usage", "prompt_token_ids") else choice
        place[name] = value
    return web.json_response(body)


IDS: dict[str, Any] = {"prompt_token_ids": [1], "token_ids": [2]}


@pytest.mark.parametrize(
    "fields",
    [
        {"choices": {"0": "x"}},
        {"choices": ["x"]},
        {"message": "x"},
        {"message": {"content": {"text": "x"}}},
        {**IDS, "logprobs": "x"},
        {**IDS, "logprobs": {"content": [{"token": "x"}]}},
        {**IDS, "logprobs": {"content": [{"logprob": "x"}]}},
        {**IDS, "token_ids": ["x"], "logprobs": {"content": [{"logprob": -1.0}]}},
        {**IDS, "token_ids": 5, "logprobs": {"content": [{"logprob": -1.0}]}},
    ],
)
async def test_invalid_completions_are_rejected(chat_server: Any, fields: dict[str, Any]) -> None:
    chat_server.script = lambda body, number: completion(**fields)
    client = quick(chat_server.url)
    with pytest.raises(InvalidResponse) as caught:
        await client.complete(request())
    await client.close()
    assert caught.value.hint
    assert len(chat_server.requests) == 1


@pytest.mark.parametrize(
    ("fields", "finish_reason", "tokens"),
    [
        ({"usage": None}, "stop", (9, 1)),  # estimated
        ({"usage": "x"}, "stop", (9, 1)),
        ({"usage": {"prompt_tokens": "5", "completion_tokens": -3}}, "stop", (9, 1)),
        ({"finish_reason": "banana"}, "banana", (1, 2)),
        ({"finish_reason": 7}, "stop", (1, 2)),
        ({"finish_reason": None}, "stop", (1, 2)),
        ({"logprobs": "x"}, "stop", (1, 2)),
        ({**IDS, "logprobs": None}, "stop", (1, 2)),
        ({"message": {"content": "ok", "tool_calls": []}}, "stop", (1, 2)),
        ({"message": {"content": "ok", "reasoning": ["x"]}}, "stop", (1, 2)),
    ],
)
async def test_irrelevant_fields_may_have_unusual_values(
    chat_server: Any, fields: dict[str, Any], finish_reason: str, tokens: tuple[int, int]
) -> None:
    chat_server.script = lambda body, number: completion(**fields)
    client = quick(chat_server.url)
    response = await client.complete(request())
    await client.close()
    assert response.message == {"role": "assistant", "content": "ok"}
    assert response.finish_reason == finish_reason
    assert (response.usage.prompt_tokens, response.usage.completion_tokens) == tokens
    assert response.usage.estimated == ("usage" in fields)
    assert response.tokens is None


def add(left: int, right: int) -> int:
    """Add two numbers."""
    return left + right


def call(arguments: Any = '{"left": 1, "right": 2}', **fields: Any) -> dict[str, Any]:
    function = {"name": "add", "arguments": arguments}
    return {"id": "a", "type": "function", "function": function, **fields}


@pytest.mark.parametrize(
    "calls",
    [
        [call('{"left": 1, "right": ')],
        [call("[1, 2]")],
        [call(None)],
        [call({"left": 1, "right": 2})],
        [call(function={"name": "subtract", "arguments": "{}"})],
        [call(function=None)],
        [call(), call()],
        [call(id=None)],
        [call(id=5)],
        ["x", None],
        "x",
        {"0": call()},
    ],
)
async def test_malformed_tool_calls_break_no_rollout(chat_server: Any, calls: Any) -> None:
    def script(body: dict[str, Any], number: int) -> Any:
        if number == 1:
            return completion(message={"role": "assistant", "content": None, "tool_calls": calls})
        return str([message["role"] for message in body["messages"]])

    chat_server.script = script
    rows = [{"question": "1 + 2?", "answer": "3"}]
    env = ToolEnv(tools=[add], eval_dataset=rows, rubric=Rubric([right]), max_turns=4)
    client = quick(chat_server.url)
    example = env.dataset("eval").examples(0, 1)[0]
    rollout = await env.rollout(client, example)
    await client.close()
    assert rollout.failure is None
    assert rollout.stop_reason == "no_tools_called"
    sent = [message for message in chat_server.requests[-1]["messages"] if message["role"] == "tool"]
    assert len({message["tool_call_id"] for message in sent}) == len(sent)


@pytest.mark.parametrize("fault", ["401", "403"])
async def test_a_rejected_key_stops_an_evaluation_before_any_cost(
    chat_server: Any, faults: dict[str, Any], fault: str, tmp_path: Path
) -> None:
    chat_server.script = lambda body, number: faults[fault]
    client = quick(chat_server.url)
    with pytest.raises(AuthenticationFailed) as caught:
        await evaluated(client, tmp_path / "run", environment(500))
    await client.close()
    assert len(chat_server.requests) <= 8
    assert KEY not in str(caught.value)
    assert_nowhere(KEY, tmp_path)
