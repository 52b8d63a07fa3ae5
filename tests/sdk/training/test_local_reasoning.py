"""Local and served models: reasoning is read as their chat template and their special tokens have it."""

from __future__ import annotations

from typing import Any

import pytest
from wander.clients.base import ModelRequest
from wander.clients.openai import ServedClient
from wander.models.chat import ChatFormat
from wander.parsers import MaybeThinkParser, ThinkParser, XMLParser

from .tool_templates import END, START, WITHOUT, Family, tokenizer_of

PREFILLED = WITHOUT.replace("assistant\n'", "assistant\n<think>\n'") + "{# </think> #}"
BRACKETS = WITHOUT + "{# [THINK] [/THINK] #}"
HARMONY = (
    "{% for m in messages %}{{ '<|start|>' + m.role + '<|message|>' + m.content + '<|end|>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|start|>assistant' }}{% endif %}{# <|channel|>analysis #}"
)
FORMS = {
    "prefilled": Family(PREFILLED, "hermes"),
    "special tokens": Family(BRACKETS, "hermes", (START, END, "[THINK]", "[/THINK]")),
    "channels": Family(
        HARMONY,
        "hermes",
        ("<|start|>", "<|end|>", "<|message|>", "<|channel|>", "<|return|>"),
        "<|return|>",
    ),
}
SAID = {
    "prefilled": ("\\boxed{3}?\n</think>\n", "\\boxed{3}?"),
    "special tokens": ("[THINK]\\boxed{3}?[/THINK]", "[THINK]\\boxed{3}?"),
    "channels": (
        "<|channel|>analysis<|message|>\\boxed{3}?<|end|><|start|>assistant<|channel|>final<|message|>",
        "<|channel|>analysis<|message|>\\boxed{3}?",
    ),
}
ASKED = [{"role": "user", "content": "2 + 3?"}]
ANSWER = "<answer>5</answer>"


def form_of(name: str) -> ChatFormat:
    tokenizer = tokenizer_of(FORMS[name])
    return ChatFormat(tokenizer, frozenset([tokenizer.eos_token_id]))


def read(name: str, text: str) -> dict[str, Any]:
    form = form_of(name)
    return form.read(form.encode(form.render(ASKED)), form.encode(text), (), None, 0)


@pytest.mark.parametrize("name", FORMS)
def test_finished_reasoning_is_not_the_answer(name: str) -> None:
    message = read(name, SAID[name][0] + ANSWER)
    assert XMLParser(["answer"]).parse_answer([message]) == "5"
    assert ThinkParser().parse_answer([message]) == ANSWER
    assert ThinkParser().get_format_reward_func()([message]) == 1.0


@pytest.mark.parametrize("name", FORMS)
def test_unfinished_reasoning_leaves_no_answer(name: str) -> None:
    message = read(name, SAID[name][1])
    assert MaybeThinkParser().parse_answer([message]) == ""
    assert ThinkParser().get_format_reward_func()([message]) == 0.0


@pytest.mark.parametrize("name", FORMS)
@pytest.mark.parametrize("finished", [True, False])
async def test_a_served_model_is_parsed_equally(chat_server: Any, name: str, finished: bool) -> None:
    chat_server.script = lambda sent, number: SAID[name][0] + ANSWER if finished else SAID[name][1]
    client = ServedClient("m", chat_server.url, {}, turns=lambda: form_of(name))
    response = await client.complete(ModelRequest(rollout_id="0/0", turn=0, messages=ASKED))
    await client.close()
    assert XMLParser(["answer"]).parse_answer([response.message]) == ("5" if finished else None)
    assert MaybeThinkParser().parse_answer([response.message]) == (ANSWER if finished else "")
