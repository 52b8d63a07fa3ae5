"""Code in a worker that brings an OpenAI client asks through the host, which has the key and the record."""

from __future__ import annotations

import asyncio

import pytest
from wander.clients.replay import ReplayClient
from wander.clients.scripted import ScriptedClient
from wander.outside_calls import PUBLIC_KEY
from wander.worker.host import WorkerEnvironment

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


@pytest.fixture
async def worker(tmp_path, chat_server, monkeypatch):
    monkeypatch.setenv("OPENAI_BASE_URL", chat_server.url)
    monkeypatch.setenv("OPENAI_API_KEY", "the-hosts-own-key")
    (tmp_path / "judged_env.py").write_text(JUDGED)
    environment = await WorkerEnvironment.start(
        None, None, path=tmp_path / "judged_env.py", log_path=tmp_path / "log"
    )
    yield environment
    await environment.close()


async def test_judges_ask_through_the_host_and_are_replayed_without_it(worker, chat_server):
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


async def test_a_judge_that_cannot_be_asked_fails_the_rollout_and_never_scores_0(worker, chat_server):
    await chat_server.stop()
    example = (await worker.examples("eval"))[0]
    rollout = await worker.rollout(ScriptedClient(["x"]), example)
    assert rollout.reward is None
    assert rollout.failure.boundary == "rubric"
    assert "judged" in rollout.failure.message


async def test_a_record_that_lacks_the_request_is_told_apart(worker, chat_server):
    chat_server.script = lambda body, number: "yes"
    example = (await worker.examples("eval"))[0]
    rollout = await worker.rollout(ScriptedClient(["x"]), example)
    rollout.info[PUBLIC_KEY] = rollout.info[PUBLIC_KEY][:0]
    again = await worker.rollout(ReplayClient([rollout]), example)
    assert again.failure.boundary == "rubric"
    assert "record has no answer" in again.failure.message


async def test_the_endpoint_refuses_whoever_is_not_its_worker(worker):
    import aiohttp

    address = worker._endpoint.variables["OPENAI_BASE_URL"]
    async with aiohttp.ClientSession() as session:
        async with session.post(f"{address}/chat/completions", json={}) as answer:
            assert answer.status == 401
        headers = {"Authorization": f"Bearer {worker._endpoint.variables['OPENAI_API_KEY']}"}
        async with session.post(f"{address}/files", json={}, headers=headers) as answer:
            assert answer.status == 404
        streamed = {"model": "m", "messages": [], "stream": True}
        async with session.post(f"{address}/chat/completions", json=streamed, headers=headers) as answer:
            assert answer.status == 400
            assert "stream" in (await answer.json())["error"]["message"]
