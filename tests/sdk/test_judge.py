"""A judge's verdict counts only when it can be read, is asked for once, and is on record for every replay."""

from __future__ import annotations

import asyncio
import contextlib
import json
from functools import partial

import pytest
from aiohttp import web
from asked_model import AskedModel
from hypothesis import given
from hypothesis import strategies as st
from wander import ReplayClient, Rubric, ScriptedClient, SingleTurnEnv, XMLParser
from wander.errors import ConfigError, ModelError
from wander.rubrics.judge import (
    AGAIN,
    PUBLIC_KEY,
    Judge,
    JudgeCache,
    JudgeRubric,
    judge_score,
    read_verdict,
)
from wander.types import Rollout, SamplingArgs
from wander.worker.host.environment import WorkerEnvironment

ROWS = [{"question": "capital of France?", "answer": "Paris"}]


def environment(rubric, rows=None):
    return SingleTurnEnv(rows or ROWS, rubric=rubric, deterministic=False)


def judged_by(replies, **options):
    """Return (environment, list of the judge's requests) with a judge that is asked."""
    asked = []

    def script(request):
        asked.append(request)
        reply = replies(request) if callable(replies) else replies[len(asked) - 1]
        if isinstance(reply, Exception):
            raise reply
        return reply

    rubric = JudgeRubric([judge_score], client=AskedModel(script, model="judge"), **options)
    return environment(rubric), asked


async def played(env, reply="Paris", index=0, client=None):
    return await env.rollout(client or ScriptedClient([reply]), env.dataset()[0], index=index)


@pytest.mark.parametrize(
    ("text", "verdict"),
    [
        ("yes", 1.0),
        (" **No.** ", 0.0),
        ("0.25", 0.25),
        ('{"reason": "they differ", "verdict": "no"}', 0.0),
        ('```json\n{"verdict": true}\n```', 1.0),
        ('I quote {"verdict": "yes"} but say {"score": 0.5}', 0.5),
        ("because <verdict>no</verdict> or <verdict> YES </verdict>", 1.0),
        ("<score>1</score>", 1.0),
        (".5", 0.5),
    ],
)
def test_a_verdict_is_read_in_every_requested_format(text, verdict):
    assert read_verdict(text) == verdict


WORDY = ["", "perhaps", "yes and no", "I think the answer is yes", "<verdict>maybe</verdict>", "[1]"]
NUMBERS = ["2", "-0.1", "nan", "1e999", '{"verdict": null}', '{"verdict": [1]}', '{"other": 1}']


@pytest.mark.parametrize("text", [*WORDY, *NUMBERS])
def test_any_other_text_is_not_a_verdict(text):
    with pytest.raises(ValueError, match=r"verdict|neither"):
        read_verdict(text)


@given(st.text())
def test_a_reader_gives_a_share_or_raises_value_error(text):
    with contextlib.suppress(ValueError):
        assert 0 <= read_verdict(text) <= 1


@given(st.integers(1, 10))
def test_a_range_is_mapped_to_shares(value):
    read = partial(read_verdict, lowest=1, highest=10)
    assert read(f'{{"score": {value}}}') == (value - 1) / 9
    with pytest.raises(ValueError, match="not a verdict"):
        read(str(value + 10))


async def test_the_judge_gets_question_answer_and_response():
    env, asked = judged_by(["yes"])
    rollout = await played(env, "It is Paris.")
    assert rollout.reward == 1.0
    (request,) = asked
    text = request.messages[0]["content"]
    assert [text.count(part) for part in ("capital of France?", "\nParis\n", "It is Paris.")] == [1, 1, 1]
    assert "{question}" not in text
    assert '{"reason"' in text
    assert request.sampling.given() == {}


async def test_placeholders_in_a_response_are_not_replaced():
    env, asked = judged_by(["no"], prompt="Q {question} A {answer} R {response}")
    await played(env, "{answer} {question}")
    assert asked[0].messages[0]["content"] == "Q capital of France? A Paris R {answer} {question}"


async def test_the_question_is_the_last_users_text_with_parts_and_few_shots():
    row = {
        "prompt": [
            {"role": "user", "content": "first"},
            {"role": "assistant", "content": "x"},
            {"role": "user", "content": [{"type": "text", "text": "second"}, {"type": "image_url"}]},
        ],
        "answer": {"city": "Paris"},
    }
    rubric = JudgeRubric(
        [judge_score],
        client=ScriptedClient(lambda request: "yes", model="j"),
        prompt="{question}|{answer}|{response}",
        parser=XMLParser(["answer"]),
    )
    env = environment(rubric, [row])
    rollout = await played(env, "thinking <answer>Paris</answer>")
    (kept,) = rollout.info[PUBLIC_KEY]
    assert kept["messages"][0]["content"] == 'second|{"city": "Paris"}|Paris'


async def test_an_unreadable_verdict_is_requested_again():
    env, asked = judged_by(["Well...", "yes"])
    rollout = await played(env)
    assert rollout.reward == 1.0
    assert [message["content"] for message in asked[1].messages[1:]] == ["Well...", AGAIN]
    assert [kept["answer"] for kept in rollout.info[PUBLIC_KEY]] == ["Well...", "yes"]


async def test_without_a_verdict_the_rollout_fails():
    env, asked = judged_by(lambda request: "who knows", attempts=2)
    rollout = await played(env)
    assert len(asked) == 2
    assert rollout.reward is None
    assert rollout.metrics == {}
    assert rollout.failure.boundary == "rubric"
    assert "no valid verdict in 2 attempts" in rollout.failure.message
    assert len(rollout.info[PUBLIC_KEY]) == 2


async def test_an_unreachable_judge_is_a_retryable_rubric_error():
    env, asked = judged_by([ModelError("503", retryable=True), "yes"])
    rollout = await played(env)
    assert (rollout.failure.boundary, rollout.failure.retryable) == ("rubric", True)
    assert (await played(env)).reward == 1.0, "a failure was cached"
    assert len(asked) == 2


async def test_equal_completions_are_judged_once_even_at_the_same_time():
    env, asked = judged_by(lambda request: "yes")
    rollouts = await asyncio.gather(*(played(env, index=index) for index in range(5)))
    await played(env, "Lyon")
    assert len(asked) == 2
    assert [rollout.reward for rollout in rollouts] == [1.0] * 5
    assert all(len(rollout.info[PUBLIC_KEY]) == 1 for rollout in rollouts)


async def test_canceling_one_request_keeps_the_shared_answer():
    entered, release = asyncio.Event(), asyncio.Event()

    async def ask():
        entered.set()
        await release.wait()
        return "yes"

    cache = JudgeCache()
    first, second = (asyncio.create_task(cache.answer("d", ask)) for _ in range(2))
    await entered.wait()
    first.cancel()
    release.set()
    assert await second == "yes"
    with pytest.raises(asyncio.CancelledError):
        await first


def test_a_cache_survives_an_event_loop_that_ended_in_the_middle():
    cache = JudgeCache()

    async def never():
        await asyncio.Event().wait()

    async def answer():
        return "yes"

    async def given_up():
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):
                await cache.answer("d", never)

    asyncio.run(given_up())
    assert asyncio.run(cache.answer("d", answer)) == "yes"


async def test_answers_are_kept_on_disk_between_runs(tmp_path):
    path = tmp_path / "cache" / "judge.sqlite"
    env, asked = judged_by(lambda request: "yes", cache=path)
    await played(env)
    again, asked_again = judged_by(lambda request: "no", cache=path)
    assert (await played(again)).reward == 1.0
    assert (await played(again, "Lyon")).reward == 0.0
    assert [len(asked), len(asked_again)] == [1, 1]
    third, asked_third = judged_by(lambda request: "?", cache=path)
    assert (await played(third, "Lyon")).reward == 0.0
    assert asked_third == []


async def test_an_unwritable_cache_is_reported(tmp_path):
    (tmp_path / "file").write_text("")
    env, _ = judged_by(["yes"], cache=tmp_path / "file" / "cache.sqlite")
    rollout = await played(env)
    assert rollout.failure.boundary == "rubric"
    assert "cache.sqlite" in rollout.failure.message


async def test_a_record_is_scored_again_without_the_judge():
    env, _ = judged_by(["hm", "yes"])
    stored = Rollout.model_validate_json((await played(env)).model_dump_json())
    offline, asked = judged_by(lambda request: ModelError("no network"))
    again = await played(offline, client=ReplayClient([stored]))
    assert asked == []
    assert (again.reward, again.metrics, again.info) == (stored.reward, stored.metrics, stored.info)


async def test_a_record_without_the_judges_answer_is_an_error():
    env, _ = judged_by(["yes"])
    stored = await played(env)
    other, asked = judged_by(["yes"], prompt="Other: {response}")
    client = ReplayClient([stored])
    again = await played(other, client=client)
    assert (again.reward, again.failure.boundary) == (None, "rubric")
    assert "no answer of the judge" in client.missing["0/0"]
    assert asked == []


async def test_functions_may_read_the_judges_text_themselves():
    async def length(judge, prompt, completion, answer, state, judge_model, judge_prompt, judge_client):
        assert isinstance(judge, Judge)
        assert (judge_model, judge_prompt) == ("j", "{response}")
        assert judge_client.model == "j"
        return len(await judge(prompt, completion, answer, state))

    client = ScriptedClient(lambda request: request.messages[-1]["content"] * 2, model="j")
    env = environment(JudgeRubric([length], client=client, prompt="{response}"))
    assert (await played(env, "abc")).reward == 6


async def test_a_judge_compares_groups():
    async def ranked(completions, prompts, answers, states, judge):
        texts = [await judge(*each) for each in zip(prompts, completions, answers, states, strict=True)]
        return [float(text == max(texts)) for text in texts]

    client = ScriptedClient(lambda request: request.messages[-1]["content"], model="j")
    env = environment(JudgeRubric([ranked], client=client, prompt="{response}"))
    player = ScriptedClient(lambda request: request.rollout_id[-1])
    rollouts = await env.rollout_group(player, env.dataset()[0], indices=[0, 1])
    assert [rollout.reward for rollout in rollouts] == [0.0, 1.0]


async def test_any_openai_compatible_endpoint_can_judge(chat_server, monkeypatch):
    monkeypatch.setenv("JUDGE_KEY", "secret-key")
    chat_server.script = lambda body, number: '{"verdict": "yes"}'
    rubric = JudgeRubric(
        [judge_score],
        model="m",
        base_url=chat_server.url,
        api_key_variable="JUDGE_KEY",
        sampling=SamplingArgs(temperature=0.5, max_tokens=50),
    )
    env = environment(rubric)
    rollout = await played(env)
    await env.teardown()
    assert rollout.reward == 1.0
    (body,) = chat_server.requests
    assert (body["model"], body["temperature"], body["max_tokens"]) == ("m", 0.5, 50)
    assert chat_server.headers[0]["Authorization"] == "Bearer secret-key"
    assert "secret-key" not in json.dumps(rollout.model_dump())


async def test_an_endpoint_that_rejects_the_judge_is_a_rubric_error(chat_server):
    chat_server.script = lambda body, number: web.json_response({"error": {"message": "no key"}}, status=401)
    env = environment(JudgeRubric([judge_score], model="m", base_url=chat_server.url))
    rollout = await played(env)
    await env.teardown()
    assert (rollout.reward, rollout.failure.boundary) == (None, "rubric")


@pytest.mark.parametrize(
    "options", [{}, {"client": ScriptedClient(["yes"]), "model": "m"}, {"model": "m", "attempts": 0}]
)
def test_contradictory_settings_are_rejected(options):
    with pytest.raises(ConfigError):
        JudgeRubric([judge_score], **options)


async def test_a_rubric_without_a_judge_provides_no_judge():
    rollout = await played(environment(Rubric([judge_score])))
    assert "a parameter `judge`" in rollout.failure.message


JUDGED = """
from wander import JudgeRubric, SingleTurnEnv
from wander.rubrics.judge import judge_score

def load_environment(url):
    rubric = JudgeRubric([judge_score], model="m", base_url=url)
    rubric.judge.client.max_retries = 0
    rows = [{"question": "capital of France?", "answer": "Paris"}]
    return SingleTurnEnv(rows, rubric=rubric, deterministic=False)
"""


async def test_a_worker_scores_a_record_again_without_the_judge(tmp_path, chat_server):
    (tmp_path / "judged.py").write_text(JUDGED)
    chat_server.script = lambda body, number: '{"verdict": 0.75}'
    stored = None
    for client in (ScriptedClient(["Paris"]), None):
        environment = await WorkerEnvironment.start(
            None,
            None,
            path=tmp_path / "judged.py",
            arguments={"url": chat_server.url},
            log_path=tmp_path / "worker.log",
        )
        try:
            (example,) = await environment.examples("eval")
            again = await environment.rollout(client or ReplayClient([stored]), example)
        finally:
            await environment.close()
        assert again.reward == 0.75
        stored = stored or again
        await chat_server.stop()
    assert again.info == stored.info
    assert len(chat_server.requests) == 1
