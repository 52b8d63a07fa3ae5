"""Model calls of workers and of the judges in them: bounded together with the evaluation's own."""

from __future__ import annotations

from typing import Any

import pytest
from aiohttp import web
from wander.clients.openai import OpenAIClient
from wander.evals.run.runner import EvaluationPlan, evaluate
from wander.rollout.outside_calls import PUBLIC_KEY
from wander.wire import EnvironmentPin
from wander.worker.host.environment import WorkerEnvironment

pytestmark = pytest.mark.usefixtures("warm_workers")

JUDGED = """
import verifiers as vf


async def judged(judge, prompt, completion, answer, state):
    return float("yes" in await judge(prompt, completion, answer, state))


def load_environment():
    rows = [{"question": f"{i}?", "answer": str(i)} for i in range(12)]
    rubric = vf.JudgeRubric(judge_model="judge")
    rubric.add_reward_func(judged)
    return vf.SingleTurnEnv(eval_dataset=rows, rubric=rubric)
"""


@pytest.fixture
async def judged(tmp_path: Any, chat_server: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("OPENAI_BASE_URL", chat_server.url)
    monkeypatch.setenv("OPENAI_API_KEY", "the-hosts-own-key")
    (tmp_path / "judged_env.py").write_text(JUDGED)
    environment = await WorkerEnvironment.start(
        None, None, path=tmp_path / "judged_env.py", log_path=tmp_path / "log"
    )
    yield environment
    await environment.close()


async def test_judges_share_the_call_limit_and_wait_after_refusals(judged: Any, chat_server: Any) -> None:
    chat_server.delay = 0.01
    refused = web.Response(status=429, text="{}", headers={"Retry-After": "0.05"})
    asked: list[str] = []

    def script(body: dict[str, Any], number: int) -> Any:
        asked.append(body["model"])
        return refused if body["model"] == "judge" and asked.count("judge") == 1 else "yes"

    chat_server.script = script
    client = OpenAIClient("m", chat_server.url)
    pin = EnvironmentPin(name="judged", info=judged.info)
    result = await evaluate(judged, client, EvaluationPlan(concurrency=2), None, pin)
    await client.close()
    assert (result.summary.failed, result.summary.rollouts) == (0, 12)
    assert chat_server.most_in_flight <= 2
    assert (result.endpoints.calls, result.endpoints.refusals) == (24, 1)
    assert all(len(rollout.info[PUBLIC_KEY]) == 1 for rollout in result.rollouts)


@pytest.mark.full
async def test_an_exhausted_judge_quota_fails_the_rollout_immediately(
    judged: Any, chat_server: Any, faults: dict[str, Any]
) -> None:
    chat_server.script = lambda body, number: faults["quota"] if body["model"] == "judge" else "x"
    client = OpenAIClient("m", chat_server.url)
    rollout = await judged.rollout(client, (await judged.examples("eval", 0, 1))[0])
    await client.close()
    assert rollout.failure is not None
    assert rollout.failure.boundary == "rubric"
    assert "quota" in rollout.failure.message
    assert [body["model"] for body in chat_server.requests] == ["m", "judge"]
