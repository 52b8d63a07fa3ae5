"""Code in a worker that brings an OpenAI client asks through the host, which has the key and the record."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import pytest
from wander.clients.base import NOT_RECORDED
from wander.clients.replay import ReplayClient
from wander.clients.scripted import ScriptedClient
from wander.rollout.outside_calls import PUBLIC_KEY
from wander.worker.host.environment import WorkerEnvironment
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


@pytest.fixture
async def worker(tmp_path, chat_server, monkeypatch):
    monkeypatch.setenv("OPENAI_BASE_URL", chat_server.url)
    monkeypatch.setenv("OPENAI_API_KEY", "the-hosts-own-key")
    module, log = tmp_path / "judged_env.py", tmp_path / "log"
    module.write_text(JUDGED)
    environment = await WorkerEnvironment.start(None, None, path=module, log_path=log)
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


@pytest.mark.full  # in test_judge.py without a worker
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


@pytest.mark.full
async def test_a_worker_on_another_machine_has_the_passed_key_of_that_machine(tmp_path):
    body = JUDGED.replace('.startswith("wander-")', ' == "the-machines-own-key"')
    (tmp_path / "own_env.py").write_text(body)
    async with listener(tmp_path, tmp_path / "own_env.py", "--pass-env", "OPENAI_API_KEY") as address:
        environment = await WorkerEnvironment.start(
            None, None, log_path=tmp_path / "log", addresses=[address]
        )
        await environment.close()
