"""Code in a worker that brings an OpenAI client asks through the host, which has the key and the record.

So it does on another machine: what plays here runs with a worker beside the host and with one that listens.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from wander.clients.base import NOT_RECORDED
from wander.clients.replay import ReplayClient
from wander.clients.scripted import ScriptedClient
from wander.errors import LoadError
from wander.rollout.outside_calls import HEADER, PUBLIC_KEY
from wander.worker.host.environment import WorkerEnvironment
from wander.worker.protocol import OutsideAnswer, OutsideCall
from wander.worker.remote import tunnel
from wander.worker.remote.address import WorkerAddress

JUDGED = '''
import os

import verifiers as vf
from openai import OpenAI


async def judged(judge, prompt, completion, answer, state):
    return 1.0 if "yes" in (await judge(prompt, completion, answer, state)).lower() else 0.0


def asked_again(completion, answer):
    """A synchronous client, which holds up the whole worker while it waits."""
    said = OpenAI(max_retries=0).chat.completions.create(
        model="second", messages=[{"role": "user", "content": f"{completion[-1]['content']} or {answer}?"}]
    )
    return float(len(said.choices[0].message.content))


def load_environment():
    assert os.environ["OPENAI_API_KEY"].startswith("wander-"), "the host's key is in the worker"
    rows = [{"question": f"capital of {name}?", "answer": name} for name in ("France", "Spain")]
    rubric = vf.JudgeRubric(judge_model="judge", judge_sampling_args={"max_tokens": 5})
    rubric.add_reward_func(judged, weight=1.0)
    rubric.add_reward_func(asked_again, weight=0.0)
    return vf.SingleTurnEnv(eval_dataset=rows, rubric=rubric)
'''


@asynccontextmanager
async def listener(folder: Path, module: Path, *more: str) -> AsyncIterator[WorkerAddress]:
    """Listen in a process that knows no key but one that is nobody's."""
    usual = {name: value for name, value in os.environ.items() if not name.startswith("OPENAI_")}
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-P", "-m", "wander.worker", "--listen", "127.0.0.1:0",
        "--environment", str(module), "--log", str(folder / "far.log"), *more,
        stderr=subprocess.PIPE, env={**usual, "OPENAI_API_KEY": "the-machines-own-key"},
    )  # fmt: skip
    assert process.stderr is not None
    try:
        async with asyncio.timeout(60):
            first = (await process.stderr.readline()).decode()
        assert first.startswith("listening on tcp://127.0.0.1:"), first
        yield WorkerAddress.parse(first.split()[-1], None)
    finally:
        process.terminate()
        async with asyncio.timeout(60):
            await process.communicate()


@pytest.fixture(params=["beside the host", pytest.param("elsewhere", marks=pytest.mark.full)])
async def worker(request, tmp_path, chat_server, monkeypatch):
    monkeypatch.setenv("OPENAI_BASE_URL", chat_server.url)
    monkeypatch.setenv("OPENAI_API_KEY", "the-hosts-own-key")
    module, log = tmp_path / "judged_env.py", tmp_path / "log"
    module.write_text(JUDGED)
    if request.param == "beside the host":
        environment = await WorkerEnvironment.start(None, None, path=module, log_path=log)
        yield environment
        await environment.close()
        return
    async with listener(tmp_path, module) as address:
        environment = await WorkerEnvironment.start(None, None, log_path=log, addresses=[address])
        yield environment
        await environment.close()


async def test_judges_call_through_the_host_and_replay_without_it(worker, chat_server):
    chat_server.script = lambda body, number: "Yes." if body["model"] == "judge" else "Paris"
    examples = await worker.examples("eval")
    played = await asyncio.gather(
        *(worker.rollout(ScriptedClient([f"answer {n}"]), each) for n, each in enumerate(examples))
    )
    assert [rollout.failure for rollout in played] == [None, None]
    assert [rollout.reward for rollout in played] == [1.0, 1.0]
    assert played[0].metrics == {"judged": 1.0, "asked_again": 5.0, "num_turns": 1.0}
    assert {headers["Authorization"] for headers in chat_server.headers} == {"Bearer the-hosts-own-key"}
    for number, rollout in enumerate(played):
        calls = rollout.info[PUBLIC_KEY]
        assert [call["request"]["model"] for call in calls] == ["judge", "second"]
        assert all(f"answer {number}" in call["request"]["messages"][0]["content"] for call in calls)
        assert calls[0]["request"]["max_completion_tokens"] == 5
    assert (worker.outside_calls.calls, worker.outside_calls.failed) == (4, 0)
    await chat_server.stop()
    again = await worker.rollout(ReplayClient(played), examples[1])
    assert again.reward == 1.0
    assert again.info == played[1].info
    assert worker.outside_calls.replayed == 2


async def test_an_unreachable_judge_fails_the_rollout(worker, chat_server):
    await chat_server.stop()
    example = (await worker.examples("eval"))[0]
    rollout = await worker.rollout(ScriptedClient(["x"]), example)
    assert rollout.reward is None
    assert rollout.failure.boundary == "rubric"
    assert "judged" in rollout.failure.message


@pytest.mark.full
async def test_a_record_without_the_request_is_distinguished(worker, chat_server):
    chat_server.script = lambda body, number: "yes"
    example = (await worker.examples("eval"))[0]
    rollout = await worker.rollout(ScriptedClient(["x"]), example)
    rollout.info[PUBLIC_KEY] = rollout.info[PUBLIC_KEY][:0]
    again = await worker.rollout(ReplayClient([rollout]), example)
    assert again.failure.type == NOT_RECORDED
    assert "no response to this request by another model" in again.failure.message
    assert len(chat_server.requests) == 2, "a replay asks nobody"


@pytest.mark.full
@pytest.mark.parametrize("worker", ["beside the host"], indirect=True)
async def test_the_endpoint_rejects_other_processes(worker):
    address = worker._proxy.variables["OPENAI_BASE_URL"]
    async with aiohttp.ClientSession() as session:
        async with session.post(f"{address}/chat/completions", json={}) as answer:
            assert answer.status == 401
        headers = {"Authorization": f"Bearer {worker._proxy.variables['OPENAI_API_KEY']}"}
        async with session.post(f"{address}/files", json={}, headers=headers) as answer:
            assert answer.status == 404
        streamed = {"model": "m", "messages": [], "stream": True}
        async with session.post(f"{address}/chat/completions", json=streamed, headers=headers) as answer:
            assert answer.status == 400
            assert "stream" in (await answer.json())["error"]["message"]


ASKS = r"""
import json, os, urllib.error, urllib.request

import verifiers as vf

URL, TOKEN = os.environ["OPENAI_BASE_URL"], os.environ["OPENAI_API_KEY"]


def asked(path, body, token=TOKEN):
    headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json", "ROLLOUT": "\xff"}
    request = urllib.request.Request(f"{URL}/{path}", body, headers)
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


class Env(vf.MultiTurnEnv):
    async def env_response(self, messages, state):
        chat = "chat/completions"
        said = {
            "token": asked(chat, b"{}", "another"),
            "path": asked("files", b"{}"),
            "bytes": asked(chat, b"\xff"),
            "json": asked(chat, b"no"),
            "stream": asked(chat, json.dumps({"model": "m", "messages": [], "stream": True}).encode()),
            "big": asked(chat, json.dumps({"model": "m", "messages": [], "pad": "x" * 3_000_000}).encode()),
            "good": asked(chat, json.dumps({"model": "m", "messages": []}).encode()),
            "seen": {name: value for name, value in os.environ.items() if "host" in value},
        }
        return [{"role": "user", "content": json.dumps(said)}]


def load_environment():
    rows = [{"question": "q", "answer": "a"}]
    return Env(eval_dataset=rows, rubric=vf.Rubric([lambda completion: 1.0]), max_turns=2)
""".replace("ROLLOUT", HEADER)


async def far_said(environment: WorkerEnvironment) -> dict[str, list]:
    (example,) = await environment.examples("eval")
    rollout = await environment.rollout(ScriptedClient(["x", "end"]), example)
    assert rollout.failure is None, rollout.failure
    return json.loads(rollout.completion[1]["content"])


@pytest.mark.full
async def test_forbidden_requests_of_a_remote_worker_are_rejected(tmp_path, chat_server, monkeypatch):
    monkeypatch.setenv("OPENAI_BASE_URL", chat_server.url)
    monkeypatch.setenv("OPENAI_API_KEY", "the-hosts-own-key")
    chat_server.script = lambda body, number: "y" * 3_000_000
    (tmp_path / "asks_env.py").write_text(ASKS)
    async with listener(tmp_path, tmp_path / "asks_env.py") as address:
        environment = await WorkerEnvironment.start(
            None, None, log_path=tmp_path / "log", addresses=[address]
        )
        try:
            said = await far_said(environment)
        finally:
            await environment.close()
    assert {name: said[name][0] for name in said if name != "seen"} == {
        "token": 401, "path": 404, "bytes": 400, "json": 400, "stream": 400, "big": 413, "good": 200
    }  # fmt: skip
    assert said["good"][1].count("y") >= 3_000_000
    assert "stream" in said["stream"][1]
    assert said["seen"] == {}
    assert len(chat_server.requests) == 1
    assert environment.outside_calls.calls == 1
    assert "the-hosts-own-key" not in (tmp_path / "far.log").read_text() + json.dumps(said)


@pytest.mark.full
async def test_an_environment_with_its_own_key_does_not_use_the_host(tmp_path, chat_server):
    body = JUDGED.replace('.startswith("wander-")', ' == "the-machines-own-key"')
    (tmp_path / "own_env.py").write_text(body)
    async with listener(tmp_path, tmp_path / "own_env.py", "--pass-env", "OPENAI_API_KEY") as address:
        environment = await WorkerEnvironment.start(
            None, None, log_path=tmp_path / "log", addresses=[address]
        )
        await environment.close()


class Wire:
    """Stands for a connection; keeps what is sent."""

    def __init__(self) -> None:
        self.sent: asyncio.Queue[str] = asyncio.Queue()

    async def send(self, text: str) -> None:
        self.sent.put_nowait(text)

    async def next(self, kind: type) -> Any:
        async with asyncio.timeout(60):
            return kind.model_validate_json(await self.sent.get())


async def test_the_number_of_simultaneous_host_calls_is_limited(monkeypatch):
    monkeypatch.setattr(tunnel, "MOST_CONNECTIONS", 2)
    gate, wire = asyncio.Event(), Wire()

    async def answer(method, path, body, rollout_id):
        await gate.wait()
        if body == b"2":
            raise RuntimeError("the-hosts-own-key")
        return 200, body.decode()

    end = tunnel.HostEnd(wire, answer)
    for number in (1, 2, 3):
        call = OutsideCall(id=number, method="POST", path="/v1/x", body=str(number), rollout_id="")
        end.receive(call.model_dump_json())
    refused = await wire.next(OutsideAnswer)
    assert (refused.id, refused.status) == (3, 503)
    gate.set()
    answers = {each.id: each for each in [await wire.next(OutsideAnswer) for _ in range(2)]}
    assert {number: each.status for number, each in answers.items()} == {1: 200, 2: 500}
    assert "RuntimeError" in answers[2].body
    assert "the-hosts-own-key" not in answers[2].body
    await end.close()


async def test_requests_to_a_host_time_out(monkeypatch):
    monkeypatch.setattr(tunnel, "MOST_CONNECTIONS", 1)
    wire = Wire()
    end = await tunnel.WorkerEnd.open(wire)
    url = f"{end.variables['OPENAI_BASE_URL']}/embeddings"
    headers = {"Authorization": f"Bearer {end.variables['OPENAI_API_KEY']}", HEADER: "0/1"}
    async with aiohttp.ClientSession(headers=headers) as session:
        with monkeypatch.context() as hurried:
            hurried.setattr(tunnel, "_SECONDS", 0.01)
            async with session.post(url, data="{}") as late:
                assert late.status == 504
                assert "did not respond within" in await late.text()
        asked = await wire.next(OutsideCall)
        assert (asked.method, asked.path, asked.body, asked.rollout_id) == (
            "POST", "/v1/embeddings", "{}", "0/1"
        )  # fmt: skip
        # An answer that comes after all is nobody's.
        end.receive(OutsideAnswer(id=asked.id, status=200, body="{}").model_dump_json())
        with pytest.raises(LoadError, match="an invalid message for protocol"):
            end.receive("{}")
        waiting = asyncio.create_task(session.post(url, data="{}"))
        await wire.next(OutsideCall)
        with pytest.raises(aiohttp.ClientError):
            await session.post(url, data="{}")
        await end.close()
        assert (await waiting).status == 502
    await end.close()
