"""Calls of tools and reasoning as local models write them.

What a template writes reads back, what is malformed hides nothing, and a conversation holds what was sampled.
"""

# ruff: noqa: E501 - a turn stands on a line, as it was written

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from wander import LocalEnvironment, Messages, MultiTurnEnv, Rubric, State, ToolEnv
from wander.clients.openai import ServedClient
from wander.errors import InvalidResponse
from wander.models.calls.turns import FORMATS
from wander.models.chat import ChatFormat, RewrittenHistory
from wander.models.client import TransformersClient
from wander.models.loading import load_model
from wander.models.policy import PolicyClient
from wander.models.sampling import Sample
from wander.train.rollouts.rows import trajectories_of
from wander.types import Rollout

from .tool_templates import FAMILIES, WITHOUT, Family, tokenizer_of

_FORMS: dict[str, ChatFormat] = {}
_TYPES = {
    "text": {"type": "string"},
    "count": {"type": "integer"},
    "share": {"type": "number"},
    "sure": {"type": "boolean"},
    "many": {"type": "array", "items": {}},
    "more": {"type": "object"},
}
TOOLS = [
    {"type": "function", "function": {"name": name, "description": "Looks.", "parameters": parameters}}
    for name, parameters in (
        ("add", {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}}),
        ("look_up", {"type": "object", "properties": _TYPES}),
    )
]
# No template escapes its own markers, and lone surrogates are no text.
_LETTERS = st.characters(exclude_categories=["Cs", "Cc"], exclude_characters="\u2028\u2029\x85")
_TEXTS = st.text(_LETTERS, max_size=20) | st.sampled_from(
    [
        'a, "b" (c)',
        "line\nbreak",
        "</tool_call>",
        'sin(x), {"name": "add"}',
        "it's \\d",
        "{",
        "[1, 2",
        "07",
        "true",
    ]
)
_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | _TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("kvw"), inner, max_size=3),
    max_leaves=5,
)
_ARGUMENTS = st.fixed_dictionaries(
    {},
    optional={
        "text": _TEXTS,
        "count": st.integers(-(10**12), 10**12),
        "share": st.floats(-1e6, 1e6),
        "sure": st.booleans(),
        "many": st.lists(_VALUES, max_size=3),
        "more": st.dictionaries(st.sampled_from("kvw"), _VALUES, max_size=3),
    },
)
_WORDS = st.sampled_from(["", "Let me see.", "I need two calls.", "2 < 3"])


def form_of(name: str) -> ChatFormat:
    if name not in _FORMS:
        tokenizer = tokenizer_of(FAMILIES[name])
        _FORMS[name] = ChatFormat(tokenizer, frozenset([tokenizer.eos_token_id]))
    return _FORMS[name]


def call(name: str, arguments: Any, number: int = 0) -> dict[str, Any]:
    said = arguments if isinstance(arguments, str) else json.dumps(arguments)
    return {"id": f"c{number:08d}", "type": "function", "function": {"name": name, "arguments": said}}


def made(message: dict[str, Any]) -> list[tuple[str, Any]]:
    """Name and arguments of the calls that could be read."""
    pairs = zip(message.get("tool_calls", ()), message.get("attempts", ()), strict=True)
    return [
        (each["function"]["name"], json.loads(each["function"]["arguments"]))
        for each, attempt in pairs
        if attempt["problem"] is None
    ]


def say(form: ChatFormat, text: str, asked: str = "Hello", *, tools: Any = TOOLS) -> dict[str, Any]:
    """Return the message that sampling this text gives."""
    prompt = form.encode(form.render([{"role": "user", "content": asked}], tools=tools))
    ids = [*form.encode(text), *form.end_ids]
    message = form.read(prompt, ids, (), tools, 0)
    for attempt in message.get("attempts", ()):
        first, last = attempt["span"]
        tokens = form.tokenizer.decode(ids[first:last])
        assert attempt["raw"] in tokens
        assert len(tokens) <= len(attempt["raw"]) + 2, "the span holds the attempt and no more"
    return message


def problems(message: dict[str, Any]) -> list[str | None]:
    return [attempt["problem"] for attempt in message.get("attempts", ())]


@pytest.mark.parametrize("name", FAMILIES)
def test_a_family_is_known_by_its_template(name: str) -> None:
    family, turns = FAMILIES[name], form_of(name).turns
    assert (turns.calls and turns.calls.name, turns.shows_calls) == (family.form, family.shows_calls)
    assert (turns.takes_tools, turns.separates) == (True, family.reasons)
    turns.require_tools()


@pytest.mark.parametrize("name", FAMILIES)
@given(data=st.data())
def test_a_rendered_turn_reads_back_to_itself(name: str, data: st.DataObject) -> None:
    family, form = FAMILIES[name], form_of(name)
    calls = data.draw(
        st.lists(st.tuples(st.sampled_from(["add", "look_up"]), _ARGUMENTS), max_size=family.most_calls)
    )
    if family.form == "qwen3_coder":  # values without types need the tool's
        calls = [("look_up", arguments) for _, arguments in calls]
    content = data.draw(_WORDS) if family.words or not calls else ""
    message: dict[str, Any] = {"role": "assistant", "content": content}
    if calls:
        message["tool_calls"] = [call(*each, number) for number, each in enumerate(calls)]
    if family.reasons and (
        thought := data.draw(st.sampled_from(["", "Hm.", 'Perhaps <tool_call>{"name"'])).strip()
    ):
        message["reasoning_content"] = thought
    if not calls and not content:
        return
    asked = [{"role": "user", "content": "Hello"}]
    turn = form.spoken([*asked, message], TOOLS)
    read = say(form, turn)
    assert problems(read) == [None] * len(calls)
    assert made(read) == calls
    assert read["content"].split() == content.split()
    assert read.get("reasoning_content") == message.get("reasoning_content")


@pytest.mark.parametrize("name", FAMILIES)
def test_sampled_tokens_are_kept_unchanged(name: str) -> None:
    """Also where the template would space the call otherwise."""
    family, form = FAMILIES[name], form_of(name)
    assert form.turns.calls is not None
    text = (
        form.turns.calls.write("add", {"a": 1, "b": 2}).replace('"a": 1', '"a":   1').replace("a=1", "a = 1")
    )
    messages: list[dict[str, Any]] = [{"role": "user", "content": "Hello"}]
    conversation = form.start(messages, TOOLS)
    ids = [*form.encode(text), *form.end_ids]
    form.append_completion(conversation, ids)
    messages += [
        form.read(conversation.ids[: conversation.open_at], ids, (), TOOLS, 0),
        {"role": "tool", "tool_call_id": "c00000000", "content": "3"},
    ]
    form.append_messages(conversation, messages, TOOLS)
    whole = form.tokenizer.decode(conversation.ids)
    prompt = form.render(messages[:1], tools=TOOLS)
    assert whole.startswith(prompt + text + family.end)
    assert whole[len(prompt) :].count("add") == 1
    rendered = form.render(messages, tools=TOOLS)
    assert whole.endswith(rendered[rendered.rindex(family.end, 0, rendered.rindex("3")) :])
    own = [token for token, mask in zip(conversation.ids, conversation.mask, strict=True) if mask]
    assert own == ids


def test_reasoning_that_a_template_drops_begins_a_new_sample() -> None:
    form = form_of("qwen3")
    messages = [{"role": "user", "content": "Hello"}]
    conversation = form.start(messages, TOOLS)
    text = '<think>\nAdd.\n</think>\n\n<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>'
    ids = [*form.encode(text), *form.end_ids]
    form.append_completion(conversation, ids)
    messages.append(form.read(conversation.ids[: conversation.open_at], ids, (), TOOLS, 0))
    assert messages[1]["reasoning_content"] == "Add."
    form.append_messages(conversation, [*messages, {"role": "tool", "content": "1"}], TOOLS)
    form.append_completion(conversation, [*form.encode("It is 1."), *form.end_ids])
    messages += [{"role": "tool", "content": "1"}, {"role": "assistant", "content": "It is 1."}]
    before = list(conversation.ids)
    with pytest.raises(RewrittenHistory):
        form.append_messages(conversation, [*messages, {"role": "user", "content": "And 2?"}], TOOLS)
    assert conversation.ids == before


def test_several_calls_of_a_template_that_takes_one_are_shown_as_text() -> None:
    form = form_of("llama3")
    text = '{"name": "add", "parameters": {"a": 1}}; {"name": "add", "parameters": {"a": 2}}'
    message = say(form, text)
    assert made(message) == [("add", {"a": 1}), ("add", {"a": 2})]
    shown = form.render([{"role": "user", "content": "Hello"}, message], tools=TOOLS)
    assert shown.count('"parameters": {"a": ') == 2


GOOD = {"a": 1, "b": 2}
MALFORMED = [
    # Hermes: a bad call between two good ones, text on both sides, markers within strings.
    (
        "qwen2.5",
        'First. <tool_call>{"name": "add", "arguments": {"a": 1, "b": 2}}</tool_call> then '
        '<tool_call>{"name": "add", "arguments": {"a": 1,}}</tool_call><tool_call>\n'
        '{"name": "add", "arguments": {"a": 1, "b": 2}}\n</tool_call> Last.',
        [None, "not valid JSON", None],
    ),
    ("qwen2.5", '<tool_call>{"name": "add", "arguments": {"a": 1, "b": 2}}', [None]),
    ("qwen2.5", '<tool_call>{"name": "add", "arguments": "{\\"a\\": 1, \\"b\\": 2}"}</tool_call>', [None]),
    ("qwen2.5", '<tool_call>[{"name": "add", "arguments": {"a": 1, "b": 2}}]</tool_call>', [None]),
    (
        "qwen2.5",
        '<tool_call>{"name": "add", "arguments": {"a": 1, "b": 2}}\n{"name": "add", "arguments": oh}</tool_call>',
        [None, "not valid JSON"],
    ),
    ("qwen2.5", "<tool_call>add(1, 2)</tool_call>", ["not valid JSON"]),
    ("qwen2.5", "<tool_call></tool_call>", ["it is empty"]),
    ("qwen2.5", '<tool_call>{"name": "add", "arguments": {"a": 1', ["not valid JSON"]),
    ("qwen2.5", '<tool_call>{"arguments": {"a": 1}}</tool_call>', ["it names no function"]),
    ("qwen2.5", '<tool_call>{"name": "add", "arguments": [1, 2]}</tool_call>', ["not a JSON object"]),
    ("qwen2.5", '<tool_call>{"name": "add", "arguments": {"a": NaN}}</tool_call>', ["`NaN` is not a JSON value"]),
    ("qwen2.5", '<tool_call>{"name": "add", "arguments": {"a": "\\ud800"}}</tool_call>', ["JSON cannot carry"]),
    ("qwen2.5", '<tool_call>["add"]</tool_call>', ["a call is a JSON object"]),
    ("qwen2.5", "<tool_call>" + '{"name":' * 3 + "[" * 3000, ["not valid JSON"]),
    # Qwen3-Coder
    ("qwen3-coder", "<function=add>\n<parameter=a>\n1\n</parameter>\n<parameter=b>2</parameter></function>", [None]),
    (
        "qwen3-coder",
        "<tool_call><function=add><parameter=a>\n1\n<parameter=b>\n2\n</function></tool_call>"
        "</function_invocation>",
        [None],
    ),
    (
        "qwen3-coder",
        "<tool_call>\n<function=add>\n<parameter=a>\n1\n</parameter>\n<parameter=b>\n2",
        ["`b` is not closed"],
    ),
    ("qwen3-coder", "<tool_call>\n<function=add>\nwhat\n</function>\n</tool_call>", ["other than parameters"]),
    ("qwen3-coder", "<tool_call>add</tool_call>", ["it names no function"]),
    ("qwen3-coder", "<tool_call>\n<function=add>\n", ["it is cut off"]),
    # LFM2
    ("lfm2", '<|tool_call_start|>[add(a=1, b=2), look_up(text="a, (b) \\"c\\"")]<|tool_call_end|>', [None, None]),
    ("lfm2", '<|tool_call_start|>[look_up(text="two\nlines", sure=true)]<|tool_call_end|>', [None]),
    ("lfm2", "<|tool_call_start|>[add(1, 2)]<|tool_call_end|>", [None]),
    ("lfm2", "<|tool_call_start|>[geo.find(from=1)]<|tool_call_end|>", [None]),
    ("lfm2", '<|tool_call_start|>[{"name": "add", "arguments": {"a": 1}}]<|tool_call_end|>', [None]),
    ("lfm2", "<|tool_call_start|>[add(a=07), add(a=1)]<|tool_call_end|>", ["`a` is not a literal", None]),
    (
        "lfm2",
        '<|tool_call_start|>[look_up(text="he said "hi""), add(a=1)]<|tool_call_end|>',
        ["`text` is not a literal", None],
    ),
    ("lfm2", "<|tool_call_start|>[nothing(1)]<|tool_call_end|>", ["`1` has no name"]),
    ("lfm2", "<|tool_call_start|>[add(a=add(a=1))]<|tool_call_end|>", ["`a` is not a literal"]),
    ("lfm2", "<|tool_call_start|>[add(a={1, 2})]<|tool_call_end|>", ["`a` is not a literal"]),
    ("lfm2", "<|tool_call_start|>[add]<|tool_call_end|>", ["not written as"]),
    ("lfm2", "<|tool_call_start|>[]<|tool_call_end|>", ["it is empty"]),
    ("lfm2", "<|tool_call_start|>[add(a=1), add(a=", [None, "not written as"]),
    # Mistral
    (
        "mistral-7",
        '[TOOL_CALLS] [{"name": "add", "arguments": {"a": 1}}, {"name": "add", "arguments": {"a"}}, '
        '{"name": "add", "arguments": {"a": 1}}]',
        [None, "not valid JSON", None],
    ),
    ("mistral-7", "[TOOL_CALLS]", ["it is empty"]),
    ("mistral-11", '[TOOL_CALLS]add[ARGS]{"a": 1}[TOOL_CALLS]add[ARGS]{"a"}', [None, "not valid JSON"]),
    ("mistral-11", '[TOOL_CALLS]add[ARGS]{"a": 1}[TOOL_CALLS]add{"a": 1}', [None, None]),
    ("mistral-11", "[TOOL_CALLS]add[ARGS][1]", ["not a JSON object"]),
    ("mistral-11", "[TOOL_CALLS][[", ["it is empty"]),
    # Llama 3 and bare JSON
    ("llama3", '<|python_tag|>{"type": "function", "name": "add", "parameters": {"a": 1}}', [None]),
    ("llama3", 'The set {1, 2} is {open.\n```json\n{"name": "add", "parameters": {"a": 1}}\n```', [None]),
    (
        "llama3",
        '{"name": "add", "parameters": {"a": 1,}}; {"name": "add", "parameters": {"a": 1}}',
        ["not valid JSON", None],
    ),
    ("plain", '[{"name": "add", "parameters": {"a": 1}}, {"name": "add", "parameters": {"a": 1}}]', [None, None]),
    ("plain", '{"name": "add", "parameters": {"more": {"name": "add", "parameters": {}}, }', ["not valid JSON"]),
]  # fmt: skip


@pytest.mark.parametrize(("family", "text", "expected"), MALFORMED)
def test_every_attempt_has_its_record_and_hides_no_other(
    family: str, text: str, expected: list[str | None]
) -> None:
    message = say(form_of(family), text)
    found = problems(message)
    assert len(found) == len(expected) == len(message["tool_calls"])
    for problem, wanted in zip(found, expected, strict=True):
        assert (problem is None) if wanted is None else wanted in (problem or "")
    assert len({each["id"] for each in message["tool_calls"]}) == len(found)
    # The parts, put together in order, are the text: nothing is lost and nothing is read twice.
    at = 0
    for attempt in message["attempts"]:
        at = text.index(attempt["raw"], at) + len(attempt["raw"])


def test_text_around_a_call_is_kept() -> None:
    message = say(form_of("qwen2.5"), MALFORMED[0][1])
    assert message["content"] == "First.\nthen\nLast."
    assert made(message) == [("add", GOOD), ("add", GOOD)]
    assert message["tool_calls"][1]["function"]["arguments"].startswith("<tool_call>")


@pytest.mark.parametrize(
    "text",
    ["f(x) = sin(x), {2}", 'A set: {"a": 1}.', '{"name": "Bob", "age": 4}', "<b>{", "[TOOL", "} ] )"],
)
@pytest.mark.parametrize("name", ["qwen2.5", "llama3", "lfm2", "mistral-11", "plain"])
def test_prose_is_not_a_call(name: str, text: str) -> None:
    assert say(form_of(name), text) == {"role": "assistant", "content": text}


def test_values_without_types_are_read_by_the_schema_of_their_tool() -> None:
    text = (
        "<tool_call>\n<function=look_up>\n<parameter=text>\n07\n</parameter>\n<parameter=count>\n7\n</parameter>\n"
        "<parameter=sure>\nTrue\n</parameter>\n<parameter=many>\n[1, '2']\n</parameter>\n</function>\n</tool_call>"
    )
    expected = {"text": "07", "count": 7, "sure": True, "many": [1, "2"]}
    assert made(say(form_of("qwen3-coder"), text)) == [("look_up", expected)]


@pytest.mark.parametrize(
    ("text", "reasoning", "content", "calls"),
    [
        ("<think>\nHm.\n</think>\n\nHello.", "Hm.", "Hello.", 0),
        ('<think>Try <tool_call>{"name": "add"}</tool_call>?</think>No.', None, "No.", 0),
        ('<think>Hm.<tool_call>{"name": "add", "arguments": {}}</tool_call>', "Hm.", "", 1),
        ("<think>Hm", "Hm", "", 0),
        ("<think>One.</think>So <think>two.</think>there.", "One.\ntwo.", "So there.", 0),
        ("Hello.</think>", None, "Hello.</think>", 0),
    ],
)
def test_reasoning_is_separate_and_contains_no_calls(
    text: str, reasoning: str | None, content: str, calls: int
) -> None:
    message = say(form_of("qwen3"), text)
    if reasoning is not None:
        assert message["reasoning_content"] == reasoning
    assert message["content"] == content
    assert len(message.get("tool_calls", ())) == calls


def test_reasoning_opened_by_the_prompt_is_separate_too() -> None:
    template = FAMILIES["qwen2.5"].template.replace(
        "assistant\n' }}{% endif %}", "assistant\n<think>\n' }}{% endif %}"
    )
    tokenizer = tokenizer_of(Family(template + "{# </think> #}", "hermes"))
    form = ChatFormat(tokenizer, frozenset([tokenizer.eos_token_id]))
    message = say(form, "Hm.\n</think>\n\nHello.")
    assert (message["reasoning_content"], message["content"]) == ("Hm.", "Hello.")


def test_without_tools_nothing_is_a_call() -> None:
    text = '<tool_call>{"name": "add", "arguments": {}}</tool_call>'
    assert say(form_of("qwen2.5"), text, tools=None) == {"role": "assistant", "content": text}


def test_a_template_without_tools_is_rejected_with_a_hint() -> None:
    tokenizer = tokenizer_of(Family(WITHOUT, "hermes"))
    form = ChatFormat(tokenizer, frozenset([tokenizer.eos_token_id]))
    with pytest.raises(InvalidResponse, match="does not support tools") as refused:
        form.turns.require_tools()
    assert "wander model tools" in str(refused.value.hint)
    with pytest.raises(InvalidResponse, match="does not support tools"):
        form.transcripts([{"role": "user", "content": "Hello"}, {"role": "assistant", "content": "3"}], TOOLS)
    tokenizer.chat_template = WITHOUT + "{{ tools | tojson if tools }}"
    form = ChatFormat(tokenizer, frozenset([tokenizer.eos_token_id]))
    with pytest.raises(InvalidResponse, match="writes calls in an unknown format"):
        form.turns.require_tools()


def test_unreadable_calls_are_not_learned() -> None:
    form = form_of("qwen2.5")
    bad = say(form, '<tool_call>{"name": "add"</tool_call>')
    messages = [
        {"role": "user", "content": "Hello"},
        bad,
        {"role": "tool", "tool_call_id": bad["tool_calls"][0]["id"], "content": "error"},
        {"role": "assistant", "content": "Sorry."},
    ]
    (whole,) = form.transcripts(messages, TOOLS)
    learned = [token for token, own in zip(whole.ids, whole.mask, strict=True) if own]
    assert form.tokenizer.decode(learned) == "Sorry.<|im_end|>"


def add(a: int, b: int) -> int:
    """Add."""
    return a + b


async def play(
    tiny: Path, kind: str, environment: Any, texts: list[str], template: str | None = None
) -> Rollout:
    """Play one rollout whose turns are these texts, sampled token by token."""
    loaded = load_model(tiny, device="cpu")
    loaded.tokenizer.chat_template = template or loaded.tokenizer.chat_template
    client: Any = (
        TransformersClient(loaded) if kind == "evaluation" else PolicyClient(loaded.model, loaded.tokenizer)
    )
    left = iter(texts)

    def sample(requests: Any, cache: Any = None, ended: Any = None) -> list[Sample]:
        ids = [*client.format.encode(next(left)), loaded.tokenizer.eos_token_id]
        return [Sample(ids=ids, logprobs=[-1.0] * len(ids), finish_reason="stop")]

    sampler = getattr(client, "engine", client).sampler
    sampler.sample, sampler.keeps_cache = sample, False
    sampler.context_length = client.context_length = 4096
    handle = LocalEnvironment(environment)
    (example,) = await handle.examples("train")
    rollout = await handle.rollout(client, example)
    await client.close()
    return rollout


@pytest.mark.parametrize("kind", ["evaluation", "training"])
async def test_a_tool_environment_answers_every_call_and_keeps_the_tokens(tiny: Path, kind: str) -> None:
    environment = ToolEnv([{"question": "1 and 2?"}], tools=[add], rubric=Rubric([lambda completion: 1.0]))
    first = (
        '<tool_call>{"name":"add",  "arguments": {"a": 1, "b": 2}}</tool_call>'
        '<tool_call>{"name": "add", "arguments": {"a": 1}</tool_call>'
        '<tool_call>{"name": "sub", "arguments": {}}</tool_call>'
    )
    rollout = await play(tiny, kind, environment, [first, "3"])
    assert (rollout.failure, rollout.stop_reason) == (None, "no_tools_called")
    answers = [message["content"] for message in rollout.completion if message["role"] == "tool"]
    assert answers[0] == "3"
    assert answers[1].startswith("error: the call cannot be read (not valid JSON")
    assert answers[2] == "error: there is no tool `sub`; the tools are add"
    assert rollout.metrics["tool_errors"] == 2
    (whole,) = trajectories_of(rollout)
    tokenizer = load_model(tiny, device="cpu").tokenizer
    learned = [token for token, own in zip(whole.completion_ids, whole.mask, strict=True) if own]
    assert tokenizer.decode(learned) == f"{first}<|end|>3<|end|>"
    assert Rollout.model_validate_json(rollout.model_dump_json()) == rollout


class Shortening(MultiTurnEnv):
    """Keeps of each answer its first word, and at the end the last exchange alone."""

    def env_response(self, messages: Messages, state: State) -> Messages:
        state.completion[-1]["content"] = messages[-1]["content"].split()[0]
        if len(state.turns) == 2:
            del state.completion[:-1]
        return [{"role": "user", "content": "Go on."}]


@pytest.mark.parametrize("kind", ["evaluation", "training"])
async def test_changed_or_removed_messages_start_another_sample(tiny: Path, kind: str) -> None:
    environment = Shortening([{"question": "Count."}], max_turns=3, rubric=Rubric([lambda completion: 1.0]))
    rollout = await play(tiny, kind, environment, ["one long answer", "two", "three"])
    assert rollout.failure is None
    tokenizer = load_model(tiny, device="cpu").tokenizer
    seen = [tokenizer.decode(part.prompt_ids) for part in trajectories_of(rollout)]
    assert seen == [
        "<|user|>Count.<|assistant|>",
        "<|user|>Count.<|assistant|>one<|end|><|user|>Go on.<|assistant|>",
        "<|user|>Count.<|assistant|>two<|end|><|user|>Go on.<|assistant|>",
    ]


@pytest.mark.parametrize("kind", ["evaluation", "training"])
async def test_a_model_without_tools_is_rejected_at_its_first_call(tiny: Path, kind: str) -> None:
    environment = ToolEnv([{"question": "1 and 2?"}], tools=[add], rubric=Rubric([lambda completion: 1.0]))
    rollout = await play(tiny, kind, environment, ["3"], WITHOUT)
    assert rollout.failure is not None
    assert (rollout.failure.boundary, rollout.failure.retryable) == ("model", False)
    assert "does not support tools" in rollout.failure.message


async def test_served_models_use_the_same_call_parser(chat_server: Any) -> None:
    client = ServedClient("m", chat_server.url, {}, turns=lambda: form_of("qwen3"))
    client.check_tools()
    said = [
        "<think>\nAdd.\n</think>\n\n"
        '<tool_call>{"name": "add", "arguments": {"a": 1, "b": 2}}</tool_call><tool_call>{</tool_call>',
        "<think>\nDone.\n</think>\n\n3",
    ]
    chat_server.script = lambda body, number: said[number - 1]
    environment = ToolEnv([{"question": "1 and 2?"}], tools=[add], rubric=Rubric([lambda completion: 1.0]))
    (example,) = environment.dataset()
    rollout = await environment.rollout(client, example)
    await client.close()
    first, *results, last = rollout.completion
    assert (first["reasoning_content"], first["content"], made(first)) == ("Add.", "", [("add", GOOD)])
    assert results[0]["content"] == "3"
    assert "the call cannot be read" in results[1]["content"]
    assert (last["reasoning_content"], last["content"]) == ("Done.", "3")
    asked = chat_server.requests[1]
    assert (asked["tool_choice"], asked["skip_special_tokens"]) == ("none", False)
    assert asked["messages"][1]["reasoning_content"] == "Add."
    assert "attempts" not in asked["messages"][1]


@given(text=st.text(st.sampled_from('{}[]()",:=<>/ntool_calfpr\\ \n1'), max_size=60))
def test_parsing_calls_never_raises(text: str) -> None:
    for form in FORMATS:
        opening = form.opens[0] if form.opens else ""
        for written in (text, opening + text, text + opening + text):
            last = 0
            for found in form.scan(written, TOOLS):
                assert last <= found.start < found.end <= len(written)
                last = found.end
