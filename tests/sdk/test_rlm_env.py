"""Recursive language models: a long context in a REPL, calls of the model by code, and their replay."""

from __future__ import annotations

import asyncio
import json
import random
import re
import tempfile

import pytest
from hypothesis import given
from hypothesis import strategies as st
from wander.clients.base import ModelResponse
from wander.clients.replay import ReplayClient
from wander.clients.scripted import ScriptedClient
from wander.clients.sub_calls import main_rollout_id
from wander.envs.rlm.env import RLMEnv
from wander.envs.rlm.prompts import FinalAnswerParser, code_blocks, final_text, final_variable
from wander.envs.rlm.repl import ReplLimits
from wander.envs.rlm.session import SubCallLimits
from wander.errors import ConfigError, ContextOverflow, EndpointUnreachable, RunError
from wander.models.batching import Batcher
from wander.rubrics import Rubric
from wander.types import Rollout, SamplingArgs, Usage
from wander.wire.run_record import read_sub_calls

QUESTION = "Which vault opens with the code word?"


def long_context() -> str:
    """200,000 characters of log lines, one of which matters."""
    rng = random.Random(3)
    lines = [f"{number:05d} vault {rng.randrange(1000)} stays shut" for number in range(10_000)]
    lines[7_321] = "07321 vault 42 opens with the code word"
    return "\n".join(lines)[:200_000].ljust(200_000, ".")


def correct(completion, answer, parser) -> float:
    return float(parser.parse_answer(completion) == answer)


def env(context="short", answer="42", **kwargs):
    row = {"question": QUESTION, "context": context, "answer": answer}
    kwargs.setdefault("rubric", Rubric([correct]))
    return RLMEnv(dataset=[row], **kwargs)


def block(code: str) -> str:
    return f"```repl\n{code}\n```"


async def played(environment, replies, **kwargs):
    client = replies if not isinstance(replies, list) else main_script(replies)
    return await environment.rollout(client, environment.dataset()[0], **kwargs)


def main_script(replies, sub=None):
    """Answer the rollout's turns from a list, and sub-calls with `sub(request)`."""

    def answer(request):
        if main_rollout_id(request.rollout_id) != request.rollout_id:
            return (sub or (lambda _: "sub answer"))(request)
        return replies[request.turn]

    return ScriptedClient(answer)


@pytest.fixture(autouse=True)
def _no_process_is_left(tmp_path, monkeypatch):
    # A folder of its own: tests that run beside this one make such folders too.
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    monkeypatch.setenv("TMPDIR", str(folder))
    yield
    assert list(folder.glob("wander-repl-*")) == []


async def test_a_question_over_200_000_characters_is_answered_through_the_repl():
    context = long_context()
    assert len(context) == 200_000

    def reader(request):
        found = re.search(r"vault (\d+) opens", request.messages[-1]["content"])
        return f"<think>let me see</think>{found[1]}" if found else "nothing"

    replies = [
        "Let me look.\n" + block("pieces = [context[i:i + 20_000] for i in range(0, len(context), 20_000)]"),
        block(
            "answers = llm_query_batched(['Which vault opens?'] * len(pieces), pieces)\n"
            "found = [each for each in answers if each != 'nothing']\nprint(found)"
        ),
        block("vault = found[0]") + "\nFINAL_VAR(vault)",
    ]
    seen = []

    def script(request):
        seen.append(request)
        return replies[request.turn] if "/sub:" not in request.rollout_id else reader(request)

    environment = env(context)
    rollout = await played(environment, ScriptedClient(script))
    assert rollout.failure is None
    assert rollout.reward == 1.0
    assert rollout.stop_reason == "final_answer_given"
    assert rollout.metrics == {
        "correct": 1.0,
        "repl_calls": 3.0,
        "sub_calls": 10.0,
        "context_chars": 200_000.0,
    }
    assert rollout.completion[3]["content"] == "cell 2 finished\n<output>\n['42']\n</output>"
    main = [request for request in seen if "/sub:" not in request.rollout_id]
    assert len(main) == 3
    longest = max(len(json.dumps(request.messages)) for request in main)
    assert longest < 5_000, "the context never enters the conversation"
    assert QUESTION in main[0].messages[-1]["content"]
    assert "a text of 200,000 characters" in main[0].messages[-1]["content"]
    again = await environment.rollout(ReplayClient([stored(rollout)]), environment.dataset()[0])
    assert again.completion == rollout.completion
    assert again.info == rollout.info
    assert (again.reward, again.metrics) == (rollout.reward, rollout.metrics)


def stored(rollout: Rollout) -> Rollout:
    """The rollout as it comes back from its file."""
    return Rollout.model_validate_json(rollout.model_dump_json())


async def test_the_repl_may_be_a_tool():
    def call(name, arguments, call_id="c"):
        return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}

    replies = [
        {"tool_calls": [call("repl", '{"code": "print(len(context))"}', "a"), call("repl", "{", "b")]},
        {"tool_calls": [call("python", "{}"), call("repl", '{"code": 3}', "d")]},
        "the answer is 42",
    ]
    seen = []

    def script(request):
        seen.append(request)
        return replies[request.turn]

    rollout = await played(env(interface="tool", answer="the answer is 42"), ScriptedClient(script))
    assert rollout.failure is None
    assert seen[0].tools[0]["function"]["name"] == "repl"
    tools = [message["content"] for message in rollout.completion if message["role"] == "tool"]
    assert tools[0] == "cell 1 finished\n<output>\n5\n</output>"
    assert "not valid JSON" in tools[1]
    assert "there is no tool `python`" in tools[2]
    assert "`repl` takes `code`" in tools[3]
    assert rollout.reward == 1.0


async def test_an_answer_from_the_tool_ends_the_rollout():
    function = {"name": "repl", "arguments": json.dumps({"code": "FINAL(42)\nprint('bye')"})}
    calls = [{"id": each, "type": "function", "function": function} for each in ("a", "b")]
    rollout = await played(env(interface="tool"), [{"tool_calls": calls}])
    roles = [message["role"] for message in rollout.completion]
    assert roles == ["assistant", "tool", "tool", "user"]
    assert "not run: the final answer was given before" in rollout.completion[2]["content"]
    assert (rollout.reward, rollout.stop_reason) == (1.0, "final_answer_given")


async def test_variables_persist_from_turn_to_turn():
    replies = [block("x = 20"), block("y = x + 1") + " and " + block("print(2 * y)"), "FINAL(42)"]
    rollout = await played(env(), replies)
    assert "cell 3 finished\n<output>\n42\n" in rollout.completion[3]["content"]
    assert rollout.metrics["repl_calls"] == 3.0


async def test_blocks_after_a_failed_one_are_not_run():
    rollout = await played(env(), [block("1/0") + block("print('no')") + block("print('no')"), "FINAL(42)"])
    shown = rollout.completion[1]["content"]
    assert "cell 1 raised an exception" in shown
    assert "ZeroDivisionError" in shown
    assert shown.endswith("2 more of your blocks were not run")
    assert rollout.reward == 1.0


async def test_a_message_without_code_or_answer_gets_instructions():
    rollout = await played(
        env(), ["hm", "FINAL_VAR(nothing)", block("x = 1") + "\nFINAL_VAR(y)", "FINAL(42)"]
    )
    answers = [message["content"] for message in rollout.completion if message["role"] == "user"]
    assert "neither code to run nor a final answer" in answers[0]
    assert answers[1] == "there is no variable `nothing`"
    assert answers[2].endswith("there is no variable `y`")
    assert rollout.reward == 1.0


async def test_a_lost_process_is_reported_and_the_context_is_restored():
    replies = [block("x = 1\nimport os; os._exit(1)"), block("print(context, 'x' in globals())"), "FINAL(42)"]
    rollout = await played(env(), replies)
    assert "cell 1 ended the REPL's process; the REPL starts again" in rollout.completion[1]["content"]
    assert "short False" in rollout.completion[3]["content"]


async def test_a_cell_has_a_time_limit():
    limits = ReplLimits(cell_seconds=0.2)
    rollout = await played(env(repl=limits), [block("while True: pass"), "FINAL(42)"])
    assert "cell 1 stopped after 0.2 seconds" in rollout.completion[1]["content"]


async def test_turns_are_limited():
    rollout = await played(env(max_turns=2), [block("1"), block("2"), block("3")])
    assert rollout.stop_reason == "max_turns_reached"
    assert rollout.reward == 0.0
    assert rollout.info["rlm"]["final_answer"] is None


@pytest.mark.parametrize(
    "context", [["one", "two"], {"a": [1, None], "b": "é"}, "plain"], ids=["list", "dictionary", "text"]
)
async def test_contexts_are_text_or_json(context):
    rollout = await played(env(context), [block("print(context)"), "FINAL(42)"])
    assert str(context) in rollout.completion[1]["content"]
    assert "The variable `context` is a" in rollout.prompt[-1]["content"]


async def test_an_example_without_context_is_a_failure_of_the_environment():
    environment = RLMEnv(dataset=[{"question": "q", "text": "in another column"}])
    rollout = await played(environment, ["FINAL(1)"])
    assert rollout.failure.boundary == "environment"
    assert "has no `context`" in rollout.failure.message
    named = RLMEnv(dataset=[{"question": "q", "text": "other"}], context_column="text")
    assert (await played(named, [block("print(context)"), "FINAL(1)"])).failure is None


async def test_a_subclass_may_compute_the_context():
    class Computed(RLMEnv):
        def setup_state(self, state):
            state["context"] = "computed " * 3
            return super().setup_state(state)

    environment = Computed(dataset=[{"question": "q"}])
    rollout = await played(environment, [block("print(context)"), "FINAL(1)"])
    assert "computed computed computed" in rollout.completion[1]["content"]
    assert rollout.info["rlm"]["context_chars"] == 27


async def test_the_prompt_of_the_author_is_kept():
    parts = [{"type": "text", "text": "look"}, {"type": "image_url", "image_url": {"url": "data:,"}}]
    prompt = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": parts}]
    environment = RLMEnv(dataset=[{"prompt": prompt, "context": "c"}])
    rollout = await played(environment, ["FINAL(1)"])
    assert rollout.prompt[0]["content"].endswith("\n\nBe brief.")
    assert rollout.prompt[1]["content"][:2] == parts
    assert "`context`" in rollout.prompt[1]["content"][2]["text"]
    own = RLMEnv(dataset=[{"question": "q", "context": "c"}], repl_instructions="Use the REPL.")
    assert (await played(own, ["FINAL(1)"])).prompt[0]["content"] == "Use the REPL."


async def test_a_sub_call_with_a_context_gets_its_own_repl():
    def sub(request):
        depth = request.rollout_id.rpartition("sub:")[2].count(".") + 1
        if depth == 2:
            return f"plain answer to {request.messages[-1]['content']}"
        return [block("x = llm_query('deeper', context[:3])\nprint(x)"), block("FINAL_VAR('x')")][
            request.turn
        ]

    code = block("answer = llm_query('a question', context)\nprint(answer)")
    environment = env("abcdef", answer="plain answer to deeper\n\nabc", sub_calls=SubCallLimits(depth=2))
    client = main_script([code, "FINAL_VAR(answer)"], sub)
    rollout = await played(environment, client)
    assert rollout.failure is None
    assert rollout.reward == 1.0
    calls = read_sub_calls(rollout)
    assert [(call.path, call.depth, call.turn) for call in calls] == [("1", 1, 0), ("1.1", 2, 0)]
    assert calls[0].prompt[0]["role"] == "system"
    assert "a text of 6 characters" in calls[0].prompt[1]["content"]
    assert [message["role"] for message in calls[0].completion] == ["assistant", "user", "assistant", "user"]
    assert rollout.metrics["repl_calls"] == 3.0
    assert rollout.metrics["sub_calls"] == 2.0
    again = await environment.rollout(ReplayClient([stored(rollout)]), environment.dataset()[0])
    assert (again.completion, again.info) == (rollout.completion, rollout.info)


async def test_code_at_the_last_depth_cannot_make_sub_calls():
    environment = env(sub_calls=SubCallLimits(depth=0))
    rollout = await played(environment, [block("llm_query('x')"), "FINAL(42)"])
    assert "RuntimeError: code at this depth may not ask the model" in rollout.completion[1]["content"]
    assert "llm_query" not in rollout.prompt[0]["content"]
    assert rollout.reward == 1.0


async def test_sub_calls_have_a_budget():
    limits = SubCallLimits(calls=3)
    code = (
        "print(llm_query('a'))\n"
        "try:\n    llm_query_batched(['b'] * 3)\nexcept RuntimeError as error:\n    print(error)"
    )
    rollout = await played(
        env(sub_calls=limits), [block(code), block("llm_query_batched(['c'] * 2)"), "FINAL(42)"]
    )
    assert (
        "the budget allows 3 sub-calls; 2 are left and 3 were asked for" in rollout.completion[1]["content"]
    )
    assert "['sub answer', 'sub answer']" in rollout.completion[3]["content"]
    assert rollout.metrics["sub_calls"] == 3.0


async def test_sub_calls_have_a_budget_of_tokens_and_count_in_the_usage():
    def script(request):
        usage = Usage(prompt_tokens=10, completion_tokens=4)
        text = [block("print(llm_query_batched(['a', 'b']))"), block("llm_query('c')"), "FINAL(42)"]
        content = "x" if "/sub:" in request.rollout_id else text[request.turn]
        return ModelResponse(message={"role": "assistant", "content": content}, usage=usage)

    environment = env(sub_calls=SubCallLimits(tokens=8))
    rollout = await played(environment, ScriptedClient(script))
    assert "the budget of 8 tokens for sub-calls is spent" in rollout.completion[3]["content"]
    assert rollout.usage == Usage(prompt_tokens=50, completion_tokens=20)
    (grouped,) = await environment.rollout_group(
        ScriptedClient(script), environment.dataset()[0], indices=[0]
    )
    assert grouped.usage == rollout.usage


async def test_a_sub_conversation_without_an_answer_is_an_exception_in_the_code():
    limits = SubCallLimits(depth=2, turns=2)
    client = main_script([block("llm_query('q', 'piece')"), "FINAL(42)"], lambda _: block("1"))
    rollout = await played(env(sub_calls=limits), client)
    assert "the sub-call gave no final answer within 2 turns" in rollout.completion[1]["content"]
    assert rollout.reward == 1.0


async def test_an_overlong_sub_call_is_an_exception_in_the_code():
    def sub(request):
        raise ContextOverflow("too long")

    environment = env()
    code = block(
        "try:\n    llm_query('x' * 100)\nexcept RuntimeError as error:\n    print('shorter:', error)"
    )
    rollout = await played(environment, main_script([code, "FINAL(42)"], sub))
    assert (
        "shorter: sub-call 1: the prompt is longer than the model takes" in rollout.completion[1]["content"]
    )
    assert read_sub_calls(rollout)[0].failure.type == "ContextOverflow"
    again = await environment.rollout(ReplayClient([stored(rollout)]), environment.dataset()[0])
    assert again.completion == rollout.completion


async def test_an_endpoint_that_fails_in_a_sub_call_fails_the_rollout():
    def sub(request):
        if request.rollout_id.endswith("sub:2"):
            raise EndpointUnreachable("gone", retryable=True)
        return "fine"

    environment = env()
    code = block("llm_query_batched(['a', 'b', 'c'])")
    rollout = await played(environment, main_script([code, "FINAL(42)"], sub))
    assert (rollout.failure.boundary, rollout.failure.type) == ("model", "EndpointUnreachable")
    assert rollout.failure.retryable
    assert [call.answer for call in read_sub_calls(rollout)] == ["fine", None, "fine"]


async def test_sub_calls_have_their_own_sampling_settings():
    seen = {}

    def script(request):
        seen[request.rollout_id] = request
        return (
            block("llm_query('x')") if request.turn == 0 and "/sub" not in request.rollout_id else "FINAL(42)"
        )

    environment = env(sub_sampling=SamplingArgs(max_tokens=5))
    await played(environment, ScriptedClient(script), sampling=SamplingArgs(max_tokens=7), rollout_id="r")
    assert seen["r"].sampling.max_tokens == 7
    assert seen["r/sub:1"].sampling.max_tokens == 5
    assert seen["r/sub:1"].seed != seen["r"].seed


async def test_random_numbers_are_the_same_in_every_rollout_of_an_example():
    code = block("import random\nprint(random.random())")
    environment = env()
    first, second, other = [
        (await played(environment, [code, "FINAL(42)"], index=index, run_seed=run_seed)).completion[1]
        for index, run_seed in ((0, 1), (1, 1), (0, 2))
    ]
    assert first == second
    assert first != other


async def test_canceling_a_rollout_ends_its_processes():
    asked = asyncio.Event()

    async def script(request):
        if request.turn == 1:
            asked.set()
            await asyncio.sleep(600)
        return block("x = 1")

    playing = asyncio.create_task(played(env(), ScriptedClient(script)))
    await asked.wait()
    playing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await playing


@pytest.mark.parametrize("hook", ["env_response", "final_answer_given", "setup_state", "tools", "close_repl"])
async def test_an_error_in_a_hook_fails_only_its_rollout(hook):
    def broken(self, *_):
        raise RuntimeError("hook broke")

    environment = type("Broken", (RLMEnv,), {hook: broken})(dataset=[{"question": "q", "context": "c"}])
    rollout = await played(environment, ["hm", "FINAL(1)"])
    assert rollout.failure.boundary == "environment"
    assert "hook broke" in rollout.failure.message


async def test_batches_do_not_wait_for_rollouts_that_run_code():
    """A policy under training answers when every rollout waits; one whose code asks is waiting too."""
    sizes = []

    def run(requests, tell):
        sizes.append(len(requests))
        return [
            "sub answer"
            if "/sub:" in request.rollout_id
            else [block("print(llm_query_batched(['a', 'b']))"), "FINAL(42)"][request.turn]
            for request in requests
        ]

    class Batched(ScriptedClient):
        def __init__(self):
            super().__init__(self.submit)
            self.batcher = Batcher(run, order=lambda r: r.rollout_id, max_batch_size=8, quiet_seconds=None)

        def begin(self, rollout_id):
            self.batcher.begin(rollout_id)

        def end(self, rollout_id):
            self.batcher.end(rollout_id)

        async def submit(self, request):
            return await self.batcher.submit(request.rollout_id, request)

    environment, client = env(), Batched()
    example = environment.dataset()[0]
    async with asyncio.timeout(60):
        rollouts = await asyncio.gather(
            *(environment.rollout(client, example, index=index) for index in range(3))
        )
    client.batcher.close()
    assert [rollout.reward for rollout in rollouts] == [1.0, 1.0, 1.0]
    assert sum(sizes) == 3 * 4


def test_invalid_arguments_are_rejected():
    with pytest.raises(ConfigError, match="`interface` must be"):
        env(interface="telepathy")


def test_a_damaged_record_is_reported():
    rollout = Rollout(
        example_id="1", index=0, seed=0, prompt=[], completion=[], info={"rlm": {"sub_calls": [1]}}
    )
    with pytest.raises(RunError, match="sub-calls of rollout `1/0` cannot be read"):
        ReplayClient([rollout])


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("FINAL(42)", "42"),
        ("So:\n  FINAL(a (nested) answer)\n", "a (nested) answer"),
        ('FINAL("quoted")', "quoted"),
        ("FINAL(two\nlines)", "two\nlines"),
        ("FINAL()", ""),
        ("<think>FINAL(no)</think>FINAL(yes)", "yes"),
        ("I will write FINAL(x) later", None),
        ("```repl\nFINAL(x)\n```", None),
        ("FINAL_VAR(x)", None),
        ("nothing", None),
    ],
)
def test_final_answers_are_read_from_text(text, answer):
    assert final_text(text) == answer
    assert FinalAnswerParser().parse_answer([{"role": "assistant", "content": text}]) == answer
    assert FinalAnswerParser().parse_answer(text) == answer


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("FINAL_VAR(x)", "x"),
        ('  FINAL_VAR("x_1")', "x_1"),
        ("FINAL_VAR(x.y)", None),
        ("see FINAL_VAR(x)", None),
    ],
)
def test_final_variables_are_read_from_text(text, name):
    assert final_variable(text) == name


@pytest.mark.parametrize(
    ("text", "blocks"),
    [
        ("```repl\na\n```", ["a"]),
        ("```python\na\nb\n```\ntext\n``` repl\nc\n```", ["a\nb", "c"]),
        ("```repl\nunfinished", ["unfinished"]),
        ("```\nno language\n```", []),
        ("```repl\n\n```", []),
        ("<think>```repl\na\n```</think>", []),
    ],
)
def test_code_is_read_from_text(text, blocks):
    assert code_blocks(text) == blocks


@given(st.text())
def test_any_text_is_read(text):
    assert isinstance(code_blocks(text), list)
    assert final_text(text) is None or "FINAL(" in text
    assert final_variable(text) is None or "FINAL_VAR(" in text


def test_the_parser_finds_nothing_in_an_empty_text():
    parser = FinalAnswerParser(extract_fn=str.upper)
    assert parser.parse_answer([]) is None
    assert parser.parse_answer([{"role": "user", "content": "hello"}]) is None
    assert parser.parse_answer([{"role": "user", "content": "<final_answer>so</final_answer>"}]) == "SO"
