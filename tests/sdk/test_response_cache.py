"""The cache of responses: what is the same question, and that samples stay samples."""

from __future__ import annotations

import asyncio
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from wander import SamplingArgs
from wander.clients.base import Client, ModelRequest, ModelResponse
from wander.clients.cache import CachingClient, ResponseCache
from wander.errors import ConfigError, ModelError
from wander.types import TurnTokens, Usage

GREEDY = SamplingArgs(temperature=0.0)


class Counting(Client):
    """Answers with the number of the call."""

    def __init__(self, model: str = "m", base_url: str = "http://one/v1") -> None:
        self.model = model
        self.base_url = base_url
        self.calls = 0

    async def complete(self, request: ModelRequest) -> ModelResponse:
        self.calls += 1
        if request.messages[-1]["content"] == "fail":
            raise ModelError("no")
        return ModelResponse(
            message={"role": "assistant", "content": f"{self.calls}"},
            finish_reason="length",
            usage=Usage(prompt_tokens=3, completion_tokens=1),
            tokens=TurnTokens(prompt_ids=[1, 2], completion_ids=[3], logprobs=[-0.5]),
        )

    def describe(self) -> dict[str, Any]:
        return {**super().describe(), "base_url": self.base_url}


def request(text: str = "hi", **fields: Any) -> ModelRequest:
    return ModelRequest(rollout_id="0/0", turn=0, messages=[{"role": "user", "content": text}], **fields)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "cache" / "responses.sqlite"


async def test_the_same_request_is_sent_once_across_processes(path: Path) -> None:
    first = Counting()
    one = CachingClient(first, ResponseCache(path))
    asked = await one.complete(request(sampling=GREEDY))
    assert not asked.cached
    again = await one.complete(request(sampling=GREEDY, seed=5))
    assert again.cached
    assert again.model_copy(update={"cached": False}) == asked
    await one.close()
    second = Counting()
    other = CachingClient(second, ResponseCache(path))
    assert (await other.complete(request(sampling=GREEDY))).cached
    assert (first.calls, second.calls) == (1, 0)
    await other.close()


@pytest.mark.parametrize(
    "other",
    [
        request("ho", sampling=GREEDY),
        request(sampling=SamplingArgs(temperature=0.0, max_tokens=5)),
        request(sampling=SamplingArgs(temperature=0.0, seed=1)),
        request(sampling=SamplingArgs.model_validate({"temperature": 0.0, "min_p": 0.1})),
        request(sampling=GREEDY, tools=[{"type": "function", "function": {"name": "f"}}]),
        request(sampling=SamplingArgs()),
    ],
)
async def test_a_different_request_is_not_cached(path: Path, other: ModelRequest) -> None:
    client = CachingClient(Counting(), ResponseCache(path))
    await client.complete(request(sampling=GREEDY))
    assert not (await client.complete(other)).cached
    await client.close()


@pytest.mark.parametrize("other", [Counting(model="n"), Counting(base_url="http://two/v1")])
async def test_a_different_model_or_endpoint_is_not_cached(path: Path, other: Counting) -> None:
    cache = ResponseCache(path)
    await CachingClient(Counting(), cache).complete(request(sampling=GREEDY))
    client = CachingClient(other, cache)
    assert not (await client.complete(request(sampling=GREEDY))).cached
    await client.close()


@pytest.mark.parametrize("sampling", [SamplingArgs(), SamplingArgs(temperature=0.7)])
async def test_rollouts_have_separate_cache_entries(path: Path, sampling: SamplingArgs) -> None:
    client = CachingClient(Counting(), ResponseCache(path))
    answers = [await client.complete(request(sampling=sampling, seed=seed)) for seed in (1, 2, 1)]
    assert [each.message["content"] for each in answers] == ["1", "2", "1"]
    assert [each.cached for each in answers] == [False, False, True]
    await client.close()


async def test_failures_are_not_cached(path: Path) -> None:
    inner = Counting()
    client = CachingClient(inner, ResponseCache(path))
    for _ in range(2):
        with pytest.raises(ModelError):
            await client.complete(request("fail", sampling=GREEDY))
    assert inner.calls == 2
    await client.close()


async def test_many_clients_share_a_file(path: Path) -> None:
    clients = [CachingClient(Counting(), ResponseCache(path)) for _ in range(4)]
    await asyncio.gather(
        *(client.complete(request(str(n), sampling=GREEDY)) for client in clients for n in range(20))
    )
    for client in clients:
        await client.close()
    with closing(sqlite3.connect(path)) as opened:
        assert opened.execute("SELECT count(*) FROM responses").fetchone() == (20,)


def test_a_file_that_is_not_a_cache_is_named(path: Path) -> None:
    path.parent.mkdir()
    path.write_text("something else, and long enough to be no empty database" * 100)
    client = CachingClient(Counting(), ResponseCache(path))
    with pytest.raises(ConfigError, match=r"cannot use the response cache `.*responses\.sqlite`"):
        asyncio.run(client.complete(request()))


async def test_an_unreadable_entry_is_requested_again(path: Path) -> None:
    cache = ResponseCache(path)
    inner = Counting()
    client = CachingClient(inner, cache)
    await client.complete(request(sampling=GREEDY))
    cache._run("UPDATE responses SET body = x'00'", ())
    assert not (await client.complete(request(sampling=GREEDY))).cached
    assert (await client.complete(request(sampling=GREEDY))).cached
    assert inner.calls == 2
    await client.close()


def test_the_cache_file_is_private(path: Path) -> None:
    cache = ResponseCache(path)
    cache.get(b"x")
    assert path.stat().st_mode & 0o077 == 0
    cache.close()


def test_the_manifest_records_the_use_of_a_cache(path: Path) -> None:
    described = CachingClient(Counting(), ResponseCache(path)).describe()
    assert described == {
        "kind": "Counting",
        "model": "m",
        "base_url": "http://one/v1",
        "response_cache": True,
    }
