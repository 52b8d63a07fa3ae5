"""What is a model's answer and what is a failure of its endpoint, in every shape that gateways give both."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from hypothesis import given
from hypothesis import strategies as st
from wander import LocalEnvironment, MultiTurnEnv, Rubric, SingleTurnEnv, ToolEnv
from wander.clients.base import ModelRequest
from wander.clients.completions import completion_of, failure_in, usage_of
from wander.clients.openai import OpenAIClient
from wander.clients.transport import Answer
from wander.errors import ContentFiltered, ContextOverflow, InvalidResponse, ModelError
from wander.evals.report.document import run_facts
from wander.evals.run.budget import Budget
from wander.evals.run.runner import EvaluationPlan, evaluate
from wander.evals.stats.breakdown import break_down
from wander.evals.store.folder import RunFolder
from wander.types import SamplingArgs, Usage
from wander.wire import EnvironmentPin, TokenPrices

EMPTY = {"role": "assistant", "content": ""}
COUNTED = {"prompt_tokens": 9, "completion_tokens": 4}
NOTHING = {"prompt_tokens": 9, "completion_tokens": 0, "total_tokens": 9}
UPSTREAM = {"code": 502, "message": "Provider returned error"}


def body(choice: Any, **fields: Any) -> dict[str, Any]:
    return {"choices": [choice], "usage": COUNTED, **fields}


FAILURES: dict[str, Any] = {
    "reason error": body({"message": EMPTY, "finish_reason": "error"}),
    "reason error with text": body({"message": {"content": "half an ans"}, "finish_reason": "error"}),
    "reason abort": body({"message": {"content": "half"}, "finish_reason": "abort"}),
    "reason of DeepSeek": body(
        {"message": {"content": "x"}, "finish_reason": "insufficient_system_resource"}
    ),
    "reason of GLM": body({"message": {"content": "x"}, "finish_reason": "network_error"}),
    "reason in capitals": body({"message": {"content": "x"}, "finish_reason": "ERROR"}),
    "error in the choice": body({"message": EMPTY, "finish_reason": "stop", "error": UPSTREAM}),
    "error in the choice as text": body({"message": {"content": "x"}, "error": "upstream died"}),
    "error and choices": body({"message": {"content": "x"}, "finish_reason": "stop"}, error=UPSTREAM),
    "error alone": {"error": UPSTREAM},
    "error as text": {"error": "idle timeout"},
    "no choices": {"choices": [], "usage": COUNTED},
    "choices null": {"choices": None},
    "choice null": {"choices": [None]},
    "message null": body({"message": None, "finish_reason": "stop"}),
    "no message": body({"finish_reason": "stop"}),
    "empty, nothing counted": body({"message": EMPTY, "finish_reason": "stop"}, usage=NOTHING),
    "null content, nothing counted": body(
        {"message": {"content": None}, "finish_reason": "stop"}, usage=NOTHING
    ),
    "no parts, nothing counted": body({"message": {"content": []}, "finish_reason": "length"}, usage=NOTHING),
    "empty, no usage": body({"message": EMPTY, "finish_reason": "stop"}, usage=None),
    "empty calls": body({"message": {"content": None, "tool_calls": []}}, usage=NOTHING),
}
ANSWERS: dict[str, Any] = {
    "text": body({"message": {"content": "5"}, "finish_reason": "stop"}),
    "text, nothing counted": body({"message": {"content": "5"}, "finish_reason": "stop"}, usage=NOTHING),
    "text, no usage": body({"message": {"content": "5"}, "finish_reason": None}, usage=None),
    "empty errors": body({"message": {"content": "5"}, "error": None}, error={}),
    "errors of nulls": body({"message": {"content": "5"}}, error={"code": None, "message": ""}),
    "error false": body({"message": {"content": "5"}}, error=False),
    "nothing said": body({"message": EMPTY, "finish_reason": "stop"}),
    "a call": body({"message": {"content": None, "tool_calls": [{"id": "a"}]}}, usage=NOTHING),
    "an old call": body({"message": {"content": None, "function_call": {"name": "f"}}}, usage=NOTHING),
    "reasoning": body(
        {"message": {"content": "", "reasoning": "hm"}, "finish_reason": "length"}, usage=NOTHING
    ),
    "reasoning_content": body({"message": {"content": None, "reasoning_content": "hm"}}, usage=None),
    "refusal": body({"message": {"content": None, "refusal": "no"}}, usage=NOTHING),
    "filtered": body({"message": EMPTY, "finish_reason": "content_filter"}, usage=NOTHING),
    "filtered by Gemini": body({"message": EMPTY, "finish_reason": "content_filter: SAFETY"}, usage=NOTHING),
    "length": body({"message": {"content": "5"}, "finish_reason": "length"}),
}
ASKED = ModelRequest(rollout_id="0/0", turn=0, messages=[{"role": "user", "content": "2 + 3?"}])


def read(data: Any) -> Any:
    return completion_of(Answer(200, {}, json.dumps(data).encode()), "http://x/v1", "m", ASKED)


@pytest.mark.parametrize("name", FAILURES)
def test_a_failure_is_never_an_answer(name: str) -> None:
    assert failure_in(FAILURES[name]) is not None
    with pytest.raises(InvalidResponse) as caught:
        read(FAILURES[name])
    assert (caught.value.boundary, caught.value.retryable) == ("model", True)


@pytest.mark.parametrize("name", ANSWERS)
def test_an_answer_is_not_a_failure(name: str) -> None:
    assert failure_in(ANSWERS[name]) is None
    assert read(ANSWERS[name]).message["role"] == "assistant"


@pytest.mark.parametrize("error", [{"code": 400, "message": "prompt is too long: 5 tokens > 3 maximum"}])
@pytest.mark.parametrize("place", ["body", "choice"])
def test_a_context_overflow_inside_a_response_is_recognized(error: Any, place: str) -> None:
    data = {"error": error} if place == "body" else body({"message": EMPTY, "error": error})
    with pytest.raises(ContextOverflow):
        read(data)


def test_a_content_filter_inside_a_response_is_recognized() -> None:
    with pytest.raises(ContentFiltered):
        read({"error": {"code": "content_filter", "message": "filtered"}})


REASONS = {
    **{None: "stop", "eos": "stop", "end_turn": "stop", "COMPLETE": "stop"},
    **{"max_tokens": "length", "MAX_TOKENS": "length", "model_context_window_exceeded": "length"},
    **{"tool_use": "tool_calls", "function_call": "tool_calls", "tool_calls": "tool_calls"},
    **{"SAFETY": "content_filter", "sensitive": "content_filter", "refusal": "content_filter"},
    "banana": "banana",
}


@pytest.mark.parametrize(("given_reason", "kept"), REASONS.items())
def test_finish_reasons_are_normalized(given_reason: str | None, kept: str) -> None:
    assert read(body({"message": {"content": "x"}, "finish_reason": given_reason})).finish_reason == kept


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=5), inner, max_size=2),
    max_leaves=5,
)
messages = st.fixed_dictionaries(
    {},
    optional={
        "content": st.sampled_from(["", None, [], "5"]),
        "tool_calls": st.sampled_from([None, [], [{"id": "a"}]]),
        "reasoning_content": st.sampled_from([None, "", "hm"]),
        "refusal": st.sampled_from([None, "no"]),
    },
)
choices = st.fixed_dictionaries(
    {},
    optional={
        "message": messages | json_values,
        "finish_reason": st.sampled_from([None, "stop", "length", "error", "abort", "content_filter"]),
        "error": st.sampled_from([None, {}, {"code": None}, UPSTREAM, "down"]),
    },
)
bodies = st.fixed_dictionaries(
    {},
    optional={
        "choices": st.lists(choices | json_values, max_size=2) | json_values,
        "error": st.sampled_from([None, {}, UPSTREAM, "down"]),
        "usage": st.sampled_from([None, NOTHING, COUNTED]) | json_values,
    },
)


@given(bodies | json_values)
def test_any_response_body_is_a_completion_or_an_error(data: Any) -> None:
    failed: ModelError | None = None
    try:
        response = read(data)
    except ModelError as error:
        failed = error
    if failed is not None:
        assert (
            failure_in(data) is None
            or failed.retryable
            or isinstance(failed, ContextOverflow | ContentFiltered)
        )
        return
    assert failure_in(data) is None
    said = {"content", "tool_calls", "reasoning_content", "refusal", "function_call", "audio"}
    assert (
        any(data["choices"][0]["message"].get(name) for name in said)
        or response.finish_reason == "content_filter"
        or response.usage.completion_tokens
    )


@given(
    prompt=st.integers(0, 10**6),
    completion=st.integers(0, 10**6),
    hidden=st.integers(0, 10**6),
    as_float=st.booleans(),
)
def test_completion_tokens_are_at_least_what_the_total_leaves(
    prompt: int, completion: int, hidden: int, as_float: bool
) -> None:
    counts = {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion + hidden,
    }
    usage = usage_of({name: float(value) if as_float else value for name, value in counts.items()})
    if usage is None:
        assert prompt == completion == hidden == 0
    else:
        assert usage.prompt_tokens == prompt
        assert usage.completion_tokens == (completion + hidden if prompt else completion)


DIALECTS = {
    "OpenAI": (
        {
            **{"prompt_tokens": 100, "completion_tokens": 50, "total_tokens": 150},
            **{"prompt_tokens_details": {"cached_tokens": 80, "audio_tokens": 0}},
            "completion_tokens_details": {"reasoning_tokens": 30},
        },
        (100, 50, 80, 30),
    ),
    "OpenAI's Responses API": (
        {
            **{"input_tokens": 100, "output_tokens": 50, "total_tokens": 150},
            **{
                "input_tokens_details": {"cached_tokens": 80},
                "output_tokens_details": {"reasoning_tokens": 30},
            },
        },
        (100, 50, 80, 30),
    ),
    "Anthropic": (
        {
            **{"input_tokens": 15, "output_tokens": 50},
            **{"cache_read_input_tokens": 80, "cache_creation_input_tokens": 5},
        },
        (100, 50, 80, 0),
    ),
    "LiteLLM in front of Anthropic": (
        {
            **{"prompt_tokens": 100, "completion_tokens": 50, "total_tokens": 150},
            **{"cache_read_input_tokens": 80, "prompt_tokens_details": {"cached_tokens": 80}},
        },
        (100, 50, 80, 0),
    ),
    "Inspect": (
        {
            **{"input_tokens": 20, "output_tokens": 50, "total_tokens": 150},
            **{"input_tokens_cache_read": 80, "input_tokens_cache_write": None, "reasoning_tokens": 30},
        },
        (100, 50, 80, 30),
    ),
    "DeepSeek": (
        {
            **{"prompt_tokens": 100, "completion_tokens": 50, "total_tokens": 150},
            **{"prompt_cache_hit_tokens": 80, "prompt_cache_miss_tokens": 20},
            "completion_tokens_details": {"reasoning_tokens": 30},
        },
        (100, 50, 80, 30),
    ),
    "xAI, which counts reasoning apart": (
        {
            **{"prompt_tokens": 100, "completion_tokens": 20, "total_tokens": 150},
            **{"completion_tokens_details": {"reasoning_tokens": 30}},
        },
        (100, 50, 0, 30),
    ),
    "Gemini, which counts reasoning only in the total": (
        {"prompt_tokens": 100, "completion_tokens": 20, "total_tokens": 150},
        (100, 50, 0, 30),
    ),
    "Moonshot": ({"prompt_tokens": 100, "completion_tokens": 50, "cached_tokens": 80}, (100, 50, 80, 0)),
    "more cached tokens than tokens": (
        {"prompt_tokens": 10, "completion_tokens": 5, "prompt_tokens_details": {"cached_tokens": 99}},
        (10, 5, 10, 0),
    ),
    "details without counts": (
        {"prompt_tokens": 10, "completion_tokens": 5, "prompt_tokens_details": None},
        (10, 5, 0, 0),
    ),
}


@pytest.mark.parametrize("name", DIALECTS)
def test_cached_and_reasoning_tokens_are_read_from_every_dialect(name: str) -> None:
    raw, counts = DIALECTS[name]
    usage = usage_of(raw)
    assert usage is not None
    parts = (usage.cached_tokens, usage.reasoning_tokens)
    assert (usage.prompt_tokens, usage.completion_tokens, *parts) == counts


def test_zero_counts_are_left_out_of_json_and_no_sum_drops_a_count() -> None:
    """Every field has another value here, so a sum that forgets a field is found."""
    assert Usage(prompt_tokens=3).model_dump(mode="json") == {"prompt_tokens": 3, "completion_tokens": 0}
    numbers = {name: number for number, name in enumerate(Usage.model_fields, start=1) if name != "estimated"}
    one, three = Usage(**numbers), Usage(**{name: 3 * number for name, number in numbers.items()})
    assert one + one + one == three == Usage.model_validate_json(three.model_dump_json())
    assert one.at_least(three) == three.at_least(one) == three
    assert sum(dict(Usage(estimated=True) + one).values()) == sum(numbers.values()) + 1


def test_cached_and_reasoning_tokens_have_their_own_prices() -> None:
    usage = Usage(prompt_tokens=100, completion_tokens=50, cached_tokens=80, reasoning_tokens=30)
    assert TokenPrices(prompt=1e4, completion=2e4).cost(usage) == pytest.approx(1.0 + 1.0)
    tiers = TokenPrices(prompt=1e4, completion=2e4, cached=1e3, reasoning=4e4)
    assert tiers.cost(usage) == pytest.approx(0.2 + 0.08 + 0.4 + 1.2)


def right(completion: list[dict[str, Any]]) -> float:
    return 1.0


def add(x: int) -> int:
    """Add to a number."""
    return x + 1


def echo(**options: Any) -> LocalEnvironment:
    return LocalEnvironment(
        SingleTurnEnv(eval_dataset=[{"question": "q"}], rubric=Rubric([right]), **options)
    )


def client_of(server: Any, **options: Any) -> OpenAIClient:
    client = OpenAIClient("m", server.url, **{"max_retries": 2, **options})
    client.attempts.retry_seconds = 0.001
    return client


@pytest.mark.parametrize("name", FAILURES)
async def test_a_call_is_retried_before_its_rollout_fails(chat_server: Any, name: str) -> None:
    chat_server.script = lambda sent, number: web.json_response(FAILURES[name]) if number < 3 else "at last"
    client = client_of(chat_server)
    assert (await client.complete(ASKED)).message["content"] == "at last"
    assert client.limiter.use().retries == 2
    await client.close()


async def test_a_failure_in_a_later_turn_of_tools_fails_the_rollout(chat_server: Any) -> None:
    call = {"id": "a", "type": "function", "function": {"name": "add", "arguments": '{"x": 1}'}}

    def script(sent: dict[str, Any], number: int) -> Any:
        if sent["messages"][-1]["role"] == "tool":
            return web.json_response(FAILURES["error in the choice"])
        return {"role": "assistant", "content": "", "tool_calls": [call]}

    chat_server.script = script
    env = ToolEnv(eval_dataset=[{"question": "q"}], tools=[add], rubric=Rubric([right]))
    client = client_of(chat_server, max_retries=0)
    rollout = await env.rollout(client, env.dataset("eval")[0])
    await client.close()
    assert rollout.failure is not None
    assert (rollout.reward, rollout.stop_reason, rollout.failure.boundary) == (None, None, "model")


async def test_resuming_plays_such_failures_again(chat_server: Any, tmp_path: Path) -> None:
    working = False
    chat_server.script = lambda sent, number: "5" if working else web.json_response(FAILURES["reason error"])
    environment = echo()
    pin = EnvironmentPin(name="echo", info=environment.info)
    for expected in ({"model": 1}, {}):
        client = client_of(chat_server, max_retries=0)
        plan = EvaluationPlan(max_retries=0, only_failed=working)
        result = await evaluate(environment, client, plan, tmp_path / "run", pin, resume=working)
        await client.close()
        assert result.summary.failures == expected
        working = True
    assert result.summary.reward_mean == 1.0


@pytest.mark.parametrize("status", [400, 200])
async def test_a_content_filter_error_ends_the_turn_like_its_finish_reason(
    chat_server: Any, status: int
) -> None:
    refused = {"error": {"code": "content_filter", "message": "filtered"}}
    kept = body({"message": {"content": None}, "finish_reason": "content_filter"}, usage=None)
    chat_server.script = lambda sent, number: web.json_response(
        refused if status == 400 else kept, status=status
    )
    client = client_of(chat_server)
    response = await client.complete(ASKED)
    await client.close()
    assert (response.message, response.finish_reason) == (EMPTY, "content_filter")
    assert len(chat_server.requests) == 1


class Talk(MultiTurnEnv):
    def env_response(self, messages: Any, state: Any) -> Any:
        return [{"role": "user", "content": "go on"}]


@pytest.mark.parametrize(
    "usage", [None, {}, {"prompt_tokens": 0, "completion_tokens": 0}, {"prompt_tokens": 7}]
)
async def test_a_token_limit_holds_if_the_endpoint_reports_no_usage(chat_server: Any, usage: Any) -> None:
    said = {"message": {"content": "five words are said here"}, "finish_reason": "stop"}
    chat_server.script = lambda sent, number: web.json_response({"choices": [said], "usage": usage})
    env = Talk(eval_dataset=[{"question": "q"}], max_total_completion_tokens=20, max_turns=50)
    client = client_of(chat_server)
    rollout = await env.rollout(client, env.dataset("eval")[0])
    await client.close()
    assert rollout.stop_reason == "max_total_completion_tokens_reached"
    assert rollout.usage.estimated
    assert 20 <= rollout.usage.completion_tokens < 30


async def test_a_content_filter_ends_a_conversation(chat_server: Any) -> None:
    refused = {"error": {"code": "content_filter", "message": "filtered"}}
    chat_server.script = lambda sent, number: web.json_response(refused, status=400) if number > 1 else "hi"
    env = Talk(eval_dataset=[{"question": "q"}], rubric=Rubric([right]))
    client = client_of(chat_server)
    rollout = await env.rollout(client, env.dataset("eval")[0])
    await client.close()
    assert (rollout.stop_reason, rollout.reward, len(rollout.turns)) == ("content_filtered", 1.0, 2)
    assert (rollout.filtered, rollout.refused) == (True, False)


async def test_refusals_and_filters_are_counted(chat_server: Any, tmp_path: Path) -> None:
    filtered = body({"message": {"content": "half"}, "finish_reason": "content_filter"})
    replies = [
        "5",
        {"role": "assistant", "content": "", "refusal": "I cannot help with that."},
        web.json_response(filtered),
        web.json_response({"error": {"code": "content_filter", "message": "filtered"}}, status=400),
    ]
    chat_server.script = lambda sent, number: replies[number - 1]
    rows = [{"question": f"q{number}"} for number in range(len(replies))]
    environment = LocalEnvironment(SingleTurnEnv(eval_dataset=rows, rubric=Rubric([right])))
    pin = EnvironmentPin(name="echo", info=environment.info)
    client = client_of(chat_server)
    plan = EvaluationPlan(concurrency=1)
    result = await evaluate(environment, client, plan, tmp_path / "run", pin)
    await client.close()
    summary = result.summary
    assert (summary.failed, summary.refused, summary.filtered) == (0, 1, 2)
    assert summary.stop_reasons == {"answered": 2, "content_filtered": 2}
    shown = dict(
        run_facts(result.manifest, break_down(result.manifest, RunFolder.open(tmp_path / "run").rollouts()))
    )
    assert (shown["refused"], shown["filtered"]) == ("1", "2")


@pytest.mark.parametrize(
    "budget",
    [Budget(tokens=10_000), Budget(usd=5.0, prices=TokenPrices(prompt=1, completion=1))],
)
async def test_a_budget_without_reported_usage_stops_the_run_with_an_error(
    chat_server: Any, tmp_path: Path, budget: Budget
) -> None:
    said = {"choices": [{"message": {"content": "5"}, "finish_reason": "stop"}]}
    chat_server.script = lambda sent, number: web.json_response(said)
    rows = [{"question": f"q{number}"} for number in range(20)]
    environment = LocalEnvironment(SingleTurnEnv(eval_dataset=rows, rubric=Rubric([right])))
    pin = EnvironmentPin(name="echo", info=environment.info)
    client = client_of(chat_server)
    plan = EvaluationPlan(concurrency=2, budget=budget)
    with pytest.raises(ModelError) as caught:
        await evaluate(environment, client, plan, tmp_path / "run", pin)
    await client.close()
    assert "-n" in (caught.value.hint or "")
    assert len(chat_server.requests) <= 4
    assert list(RunFolder.open(tmp_path / "run").rollouts())


async def test_a_cost_without_reported_usage_is_unknown(chat_server: Any, tmp_path: Path) -> None:
    said = {"choices": [{"message": {"content": "5"}, "finish_reason": "stop"}]}
    chat_server.script = lambda sent, number: web.json_response(said)
    environment = echo()
    pin = EnvironmentPin(name="echo", info=environment.info)
    client = client_of(chat_server)
    plan = EvaluationPlan(budget=Budget(prices=TokenPrices(prompt=1, completion=1)))
    result = await evaluate(environment, client, plan, tmp_path / "run", pin)
    await client.close()
    assert result.manifest.spending is not None
    assert result.manifest.spending.usd is None
    assert result.summary.usage.estimated


@pytest.mark.parametrize("more", [{"stream": True}, {"n": 2}])
async def test_unused_fields_are_not_requested(chat_server: Any, more: dict[str, Any]) -> None:
    client = client_of(chat_server)
    request = ASKED.model_copy(update={"sampling": SamplingArgs(**more)})
    with pytest.raises(ModelError):
        await client.complete(request)
    assert not chat_server.requests
    await client.close()


@pytest.mark.parametrize(
    ("written", "kept"),
    [
        (r"\ud83d", "\\ud83d"),
        (r"a \uDE00 b", "a \\ude00 b"),
        (r"\ud83d\ude00 \ud83d", "\U0001f600 \\ud83d"),
        (r"\ude00\ud83d", "\\ude00\\ud83d"),
        (r"\\ud83d", "\\ud83d"),
        (r"caf\u00e9 \udfff", "café \\udfff"),
    ],
)
def test_an_incomplete_emoji_is_kept_as_an_escape(written: str, kept: str) -> None:
    template = (
        '{"choices": [{"message": {"content": "%s", "reasoning_content": "%s"}, "finish_reason": "stop"}]}'
    )
    body = (template % (written, written)).encode()
    message = completion_of(Answer(200, {}, body), "http://x/v1", "m", ASKED).message
    assert (message["content"], message["reasoning_content"]) == (kept, kept)
    assert json.loads(json.dumps(message).encode()) == message
