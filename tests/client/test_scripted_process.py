"""Scripted models run in the environment's interpreter, apart from this process and its secrets."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import pytest
from wander.clients.base import ModelRequest
from wander.errors import ModelError
from wander_client.environments.location import Location
from wander_client.errors import NotFound
from wander_client.models.scripted import ScriptedProcessClient

PLAYERS = """
import asyncio
import os


def echo(request):
    print("noise on stdout")
    return request.messages[-1]["content"]


async def later(request):
    await asyncio.sleep(0.01)
    return f"turn {request.turn}"


def secret(request):
    return str(os.environ.get("OPENAI_API_KEY")) + str(os.environ.get("WANDER_TOKEN"))


def dies(request):
    os._exit(3)


def number(request):
    return 7
"""


@pytest.fixture
def location(tmp_path: Path) -> Location:
    (tmp_path / "players.py").write_text(PLAYERS)
    return Location(str(tmp_path), str(tmp_path), Path(sys.executable), folder=tmp_path)


def request(text: str = "hi", turn: int = 0) -> ModelRequest:
    return ModelRequest(rollout_id="a/0", turn=turn, messages=[{"role": "user", "content": text}])


async def ask(location: Location, function: str, *requests: ModelRequest) -> list[str]:
    client = ScriptedProcessClient(f"scripted:players:{function}", location)
    try:
        answers = await asyncio.gather(*(client.complete(one) for one in requests))
    finally:
        await client.close()
    return [str(answer.message["content"]) for answer in answers]


async def test_parallel_requests_get_their_own_replies(location: Location) -> None:
    texts = [f"text {number} é\n" for number in range(20)]
    assert await ask(location, "echo", *(request(text) for text in texts)) == texts


async def test_a_coroutine_function_is_awaited(location: Location) -> None:
    assert await ask(location, "later", request(turn=3)) == ["turn 3"]


async def test_no_secret_of_this_process_reaches_the_function(
    location: Location, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-x")
    monkeypatch.setenv("WANDER_TOKEN", "wnd_x")
    assert await ask(location, "secret", request()) == ["NoneNone"]


async def test_a_process_that_dies_fails_the_waiting_requests(location: Location) -> None:
    with pytest.raises(ModelError, match="exited"):
        async with asyncio.timeout(60):
            await ask(location, "dies", request())


async def test_an_invalid_reply_is_a_model_error(location: Location) -> None:
    with pytest.raises(ModelError, match="scripted reply must be"):
        await ask(location, "number", request())


@pytest.mark.parametrize("function", ["nobody", "PLAYERS"])
async def test_a_missing_function_is_found_by_the_check(function: str, location: Location) -> None:
    client = ScriptedProcessClient(f"scripted:players:{function}", location)
    with pytest.raises(NotFound, match=function):
        await client.check()
    await client.close()


async def test_a_missing_python_is_reported(location: Location, tmp_path: Path) -> None:
    gone = Location(location.spec, location.target, tmp_path / "no-python", folder=tmp_path)
    with pytest.raises(FileNotFoundError):
        await ScriptedProcessClient("scripted:players:echo", gone).check()
