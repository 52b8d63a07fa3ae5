"""Tool environments: what a model writes never ends a rollout, and results keep their order."""

from __future__ import annotations

import asyncio
import decimal
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from wander.clients.base import ModelRequest
from wander.clients.openai import OpenAIClient
from wander.clients.replay import ReplayClient
from wander.clients.scripted import ScriptedClient
from wander.envs.tool.env import ToolEnv
from wander.envs.tool.results import tool_content
from wander.errors import ConfigError, SandboxError, ToolError
from wander.rubrics import Rubric

ROWS = [{"question": "go", "answer": "3"}]


def call(name, arguments, call_id="c1"):
    text = arguments if isinstance(arguments, str) else json.dumps(arguments)
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": text}}


def calls(*entries):
    return {"content": None, "tool_calls": list(entries)}


def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


async def shout(text: str) -> str:
    """Say it loudly."""
    await asyncio.sleep(0)
    return text.upper()


def fail(reason: str) -> str:
    """Fail."""
    raise ValueError(reason)


def leave() -> str:
    """Leave the program."""
    raise SystemExit(3)


def right(completion, answer) -> float:
    return float((completion[-1].get("content") or "") == answer)


def env(**kwargs):
    kwargs.setdefault("tools", [add, shout, fail, leave])
    return ToolEnv(dataset=ROWS, rubric=Rubric([right]), **kwargs)


async def played(environment, replies, **kwargs):
    client = replies if isinstance(replies, ScriptedClient) else ScriptedClient(replies)
    return await environment.rollout(client, environment.dataset()[0], **kwargs)


def contents(rollout):
    return [message["content"] for message in rollout.completion if message["role"] == "tool"]


async def test_calls_are_answered_in_order_until_none_is_made():
    seen: list[ModelRequest] = []
    script = iter([calls(call("shout", {"text": "hi"}, "x"), call("add", {"a": 1, "b": "2"}, "y")), "3"])

    def answer(request):
        seen.append(request)
        return next(script)

    rollout = await played(env(), ScriptedClient(answer))
    assert rollout.failure is None
    assert rollout.stop_reason == "no_tools_called"
    assert [message["role"] for message in rollout.completion] == ["assistant", "tool", "tool", "assistant"]
    assert [m["tool_call_id"] for m in rollout.completion if m["role"] == "tool"] == ["x", "y"]
    assert contents(rollout) == ["HI", "3"]
    assert rollout.reward == 1.0
    assert rollout.metrics == {
        "right": 1.0,
        "total_tool_calls": 2.0,
        "tool_errors": 0.0,
        "add_calls": 1.0,
        "shout_calls": 1.0,
        "fail_calls": 0.0,
        "leave_calls": 0.0,
    }
    assert [tool["function"]["name"] for tool in seen[0].tools] == ["add", "shout", "fail", "leave"]


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        (call("add", '{"a": 1,'), "not valid JSON"),
        (call("add", "[1, 2]"), "must be a JSON object"),
        (call("add", {"a": 1}), "b: Field required"),
        (call("add", {"a": "one", "b": 2}), "a: Input should be a valid integer"),
        (call("subtract", {"a": 1}), "there is no tool `subtract`; the tools are add, shout, fail, leave"),
        (call("", {}), "there is no tool ``"),
        (call("fail", {"reason": "because"}), "error: ValueError: because"),
        (call("leave", {}), "error: SystemExit: 3"),
        ({"id": "c1", "type": "function"}, "there is no tool"),
        ({"function": {"name": "add", "arguments": None}}, "a: Field required"),
        ("just text", "there is no tool"),
        (None, "there is no tool"),
        ({"id": 7, "function": {"name": ["add"], "arguments": {}}}, "there is no tool"),
    ],
)
async def test_every_error_of_a_call_is_returned_to_the_model(wrong, told):
    rollout = await played(env(), [calls(wrong), calls(call("add", {"a": 1, "b": 2}, "c2")), "3"])
    assert rollout.failure is None
    assert rollout.reward == 1.0
    assert told in contents(rollout)[0]
    assert contents(rollout)[1] == "3"
    assert rollout.metrics["tool_errors"] == 1.0
    assert rollout.metrics["total_tool_calls"] == 2.0


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=5),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(
                st.sampled_from(["id", "function", "name", "arguments", "type"]), inner, max_size=4
            )
        ),
        max_leaves=8,
    )
)
def test_no_shape_of_tool_calls_fails_a_rollout(shape):
    rollout = asyncio.run(played(env(max_turns=2), [{"content": "", "tool_calls": shape}, "3"]))
    assert rollout.failure is None


async def test_double_encoded_arguments_are_decoded():
    encoded = json.dumps(json.dumps({"a": 1, "b": 2}))
    rollout = await played(env(), [calls(call("add", encoded)), "3"])
    assert contents(rollout) == ["3"]
    kept = rollout.completion[0]["tool_calls"][0]["function"]["arguments"]
    assert json.loads(kept) == {"a": 1, "b": 2}


async def test_the_conversation_stays_acceptable_to_strict_endpoints():
    wrong = [
        call("add", '{"a": 1,', "same"),
        call("add", {"a": 1, "b": 2}, "same"),
        {"function": {"name": "no such tool!", "arguments": {"a": 1}}},
    ]
    rollout = await played(env(), [calls(*wrong), "3"])
    message, *answers = rollout.completion[:4]
    for kept in message["tool_calls"]:
        assert isinstance(json.loads(kept["function"]["arguments"]), dict)
        assert kept["function"]["name"].replace("_", "").isalnum()
    ids = [kept["id"] for kept in message["tool_calls"]]
    assert len(set(ids)) == 3
    assert [answer["tool_call_id"] for answer in answers] == ids
    assert '{"a": 1,' in answers[0]["content"], "the model reads what it wrote"
    assert rollout.turns[0].message["tool_calls"] == wrong, "the turn keeps what the model wrote"


async def test_generated_call_ids_are_unique():
    calls_made = calls(call("add", {"a": 1, "b": 2}, "call_0_1"), call("add", {"a": 1, "b": 2}, ""))
    rollout = await played(env(), [calls_made, "3"])
    ids = [kept["id"] for kept in rollout.completion[0]["tool_calls"]]
    assert ids[0] == "call_0_1"
    assert len(ids[1]) == 9
    assert ids[1].isalnum()


async def test_declared_errors_end_the_rollout():
    rollout = await played(env(stop_errors=[ValueError]), [calls(call("fail", {"reason": "broken"})), "3"])
    assert rollout.reward is None
    assert (rollout.failure.boundary, rollout.failure.type) == ("tool", "ToolError")
    assert "ValueError: broken" in rollout.failure.message


@pytest.mark.parametrize("error", [ToolError("gone"), SandboxError("gone", retryable=True)])
async def test_a_failure_that_names_its_boundary_ends_the_rollout(error):
    def use() -> str:
        raise error

    rollout = await played(env(tools=[use]), [calls(call("use", {})), "3"])
    assert rollout.failure == error.failure()


async def test_authors_can_format_errors():
    environment = env(error_formatter=lambda error: f"oh no: {type(error).__name__}")
    rollout = await played(environment, [calls(call("add", "{"), call("fail", {"reason": "x"}, "c2")), "3"])
    assert contents(rollout) == ["oh no: InvalidArguments", "oh no: ValueError"]


@pytest.mark.parametrize("hook", ["error_formatter", "update_tool_args", "offered", "no_tools_called"])
async def test_an_error_in_a_hook_fails_only_its_rollout(hook):
    def broken(*_):
        raise RuntimeError("hook broke")

    environment = env()
    setattr(environment, hook, broken)
    if hook == "no_tools_called":
        environment._stops = [(hook, broken), *environment._stops]
    rollout = await played(environment, [calls(call("fail", {"reason": "x"})), "3"])
    assert rollout.failure.boundary == "environment"
    assert "hook broke" in rollout.failure.message


async def test_turns_are_limited_to_ten():
    rollout = await played(env(), [calls(call("add", {"a": 1, "b": 2}))] * 20)
    assert rollout.stop_reason == "max_turns_reached"
    assert len(rollout.turns) == 10


async def test_an_answer_in_the_last_turn_is_an_answer():
    rollout = await played(env(max_turns=1), ["3"])
    assert rollout.stop_reason == "no_tools_called"


async def test_concurrent_calls_keep_the_order_of_the_calls():
    running: list[int] = []
    most = 0

    async def wait(steps: int) -> int:
        nonlocal most
        running.append(steps)
        most = max(most, len(running))
        for _ in range(steps):
            await asyncio.sleep(0)
        running.remove(steps)
        return steps

    several = calls(*(call("wait", {"steps": steps}, str(steps)) for steps in (9, 1, 5)))
    for concurrent, expected in ((False, 1), (True, 3)):
        most = 0
        rollout = await played(env(tools=[wait], concurrent_calls=concurrent), [several, "3"])
        assert contents(rollout) == ["9", "1", "5"]
        assert most == expected


async def test_concurrent_calls_fail_like_single_calls():
    environment = env(stop_errors=[ValueError], concurrent_calls=True)
    both = calls(call("add", {"a": 1, "b": 2}), call("fail", {"reason": "broken"}, "c2"))
    rollout = await played(environment, [both, "3"])
    assert rollout.failure.boundary == "tool"


async def test_content_parts_pass_through_untouched():
    parts = [
        {"type": "text", "text": "look"},
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}},
    ]

    def look() -> list[dict]:
        """Look."""
        return parts

    question = [{"role": "user", "content": parts}]
    environment = ToolEnv(dataset=[{"prompt": question}], tools=[look])
    seen = []

    def answer(request):
        seen.append(request.messages)
        return calls(call("look", {})) if len(seen) == 1 else {"content": parts}

    rollout = await played(environment, ScriptedClient(answer))
    assert seen[0] == question
    assert seen[1][-1]["content"] == parts
    assert rollout.completion[-1]["content"] == parts
    assert rollout.failure is None


class Named:
    def __str__(self):
        return "a named thing"


@pytest.mark.parametrize(
    ("value", "content"),
    [
        ("text", "text"),
        (None, ""),
        (3, "3"),
        (True, "true"),
        ({"b": 1, "a": [2]}, '{"b": 1, "a": [2]}'),
        ([], "[]"),
        ({"z", "a", "m"}, '["a", "m", "z"]'),
        ((1, "é"), '[1, "é"]'),
        (decimal.Decimal("1.50"), "1.5"),
        (Named(), '"a named thing"'),
        ("half \ud800", "half ?"),
        ([{"type": "text"}], '[{"type": "text"}]'),
        ([{"type": ["x"]}], '[{"type": ["x"]}]'),
    ],
)
def test_results_become_content(value, content):
    assert tool_content(value, "tool") == content


async def test_a_result_without_a_text_is_an_error_of_the_tool():
    def give() -> object:
        return object()

    rollout = await played(env(tools=[give]), [calls(call("give", {})), "3"])
    (content,) = contents(rollout)
    assert content.startswith("error: TypeError: `give`")
    assert "`object`" in content


async def test_tools_are_added_and_removed():
    environment = env(tools=[add])
    with pytest.raises(ConfigError, match="already is a tool `add`"):
        environment.add_tool(add)
    environment.add_tool(shout)
    environment.remove_tool(add)
    environment.remove_tool("shout")
    with pytest.raises(ConfigError, match="no tool `add` to remove"):
        environment.remove_tool(add)
    rollout = await played(environment, ["3"])
    assert rollout.metrics["add_calls"] == 0.0


def test_environments_may_share_a_rubric():
    rubric = Rubric([right])
    for tools in ([add], [add, shout]):
        ToolEnv(dataset=ROWS, rubric=rubric, tools=tools)
    names = [each.name for each in rubric.describe()]
    assert names == ["right", "total_tool_calls", "tool_errors", "add_calls", "shout_calls"]


async def test_a_recorded_rollout_is_replayed_with_its_mistakes():
    environment = env()
    replies = [calls(call("add", '{"a": 1,')), calls(call("add", {"a": 1, "b": 2})), "3"]
    first = await played(environment, replies)
    again = await environment.rollout(ReplayClient([first]), environment.dataset()[0])
    assert again.completion == first.completion
    assert (again.reward, again.metrics, again.info) == (first.reward, first.metrics, first.info)


async def test_tools_are_called_over_an_openai_compatible_endpoint(chat_server):
    """A strict endpoint refuses a conversation with arguments that are no JSON; ours never holds any."""

    def reply(body, number):
        for message in body["messages"]:
            for made in message.get("tool_calls") or []:
                assert isinstance(json.loads(made["function"]["arguments"]), dict)
        broken = {"role": "assistant", "content": None, "tool_calls": [call("add", '{"a": 1,')]}
        right_call = {"role": "assistant", "content": None, "tool_calls": [call("add", {"a": 1, "b": 2})]}
        return [broken, right_call, "3"][number - 1]

    chat_server.script = reply
    client = OpenAIClient("m", chat_server.url, "key")
    environment = env()
    rollout = await environment.rollout(client, environment.dataset()[0])
    await client.close()
    assert rollout.failure is None
    assert rollout.reward == 1.0
    assert [tool["function"]["name"] for tool in chat_server.requests[0]["tools"]][:2] == ["add", "shout"]
    assert contents(rollout)[1] == "3"


async def test_the_offered_tools_are_recorded():
    rollout = await env().rollout(ScriptedClient(["3"]), env().dataset()[0])
    assert [tool["function"]["name"] for tool in rollout.tools] == ["add", "shout", "fail", "leave"]
