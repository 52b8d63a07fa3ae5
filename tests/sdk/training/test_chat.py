from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from wander.errors import InvalidResponse
from wander.models.chat import (
    PLAIN_TEMPLATE,
    ChatFormat,
    Conversation,
    content_text,
    copies_content,
    renders_each_alone,
)
from wander.models.loading import LoadedModel, load_model
from wander.models.sampling import end_of_turn_ids
from wander.models.tokenizer import TEMPLATE

CHATML = (
    "{% for message in messages %}"
    "{{ '<|' + message['role'] + '|>\n' + message['content'] + '<|end|>' + '\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|assistant|>\n' }}{% endif %}"
)
TRIMMING = CHATML.replace("message['content']", "message['content'] | trim")
FORGETFUL = (
    "{% for message in messages %}{{ '<|' + message['role'] + '|>' }}"
    "{% if message['role'] == 'assistant' and not loop.last %}{{ message['content'].split('</think>')[-1] }}"
    "{% else %}{{ message['content'] }}{% endif %}{{ '<|end|>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)
COUNTING = "{{ messages | length }}" + CHATML
ENDLESS = CHATML.replace("'<|end|>' + '\n'", "'\n'")


@pytest.fixture
def loaded(tiny: Path) -> LoadedModel:
    return load_model(tiny, device="cpu")


def form_of(loaded: LoadedModel, template: str | None = None) -> ChatFormat:
    if template is not None:
        loaded.tokenizer.chat_template = template
    return ChatFormat(loaded.tokenizer, end_of_turn_ids(loaded.model, loaded.tokenizer))


def talk(*contents: str) -> list[dict[str, Any]]:
    roles = ["user", "assistant"] * len(contents)
    return [{"role": role, "content": content} for role, content in zip(roles, contents, strict=False)]


def grown(form: ChatFormat, messages: list[dict[str, Any]], completions: list[list[int]]) -> Conversation:
    conversation = form.start(messages[:1])
    for number, ids in enumerate(completions):
        form.append_completion(conversation, ids)
        form.append_messages(conversation, messages[: 2 * number + 3])
    return conversation


OPENED = "{{ bos_token or '<|system|>' }}" + CHATML
FIRST = CHATML.replace("message['role'] +", "message['role'] + (loop.first | string) +")
REMEMBERING = "{% set ns = namespace(seen='') %}" + CHATML.replace(
    "{% endfor %}", "{% set ns.seen = ns.seen + message['role'] %}{{ ns.seen }}{% endfor %}"
)
SHORTENED = CHATML.replace("in messages %}", "in messages[-3:] %}")
CHOSEN = CHATML.replace("in messages %}", "in messages if message['content'] %}")
LOCAL = CHATML.replace("{{ '<|'", "{% set said = message['content'] %}{% if said %}!{% endif %}{{ '<|'")


@pytest.mark.parametrize(
    ("template", "joins"),
    [
        (None, True),
        (PLAIN_TEMPLATE, True),
        *((each, True) for each in (CHATML, TRIMMING, ENDLESS, LOCAL)),
        *((each, False) for each in (FORGETFUL, COUNTING, OPENED, FIRST, REMEMBERING, SHORTENED, CHOSEN)),
        *((each, False) for each in (CHATML + CHATML, "{{ messages[0].content }}")),
    ],
)
def test_messages_are_rendered_separately_only_if_independent(
    loaded: LoadedModel, template: str | None, joins: bool
) -> None:
    form = form_of(loaded, template)
    assert not renders_each_alone("{{ ")
    assert form._joins is joins
    messages = [{"role": "system", "content": ""}, *talk("a", "<b> ", "\n", "{{ c }}", "a")]
    for count in (2, 4, 6):
        for prompt in (True, False):
            whole = form._apply(form._plain(messages[:count], as_text=False), None, prompt)
            assert form.render(messages[:count], prompt=prompt) == whole


@pytest.mark.parametrize("template", [TEMPLATE, PLAIN_TEMPLATE, CHATML, ENDLESS])
def test_content_that_is_rendered_unchanged_is_copied(template: str) -> None:
    assert copies_content(template)
    whole = template.replace("message['content']", "message | string")
    for other in (
        TRIMMING,
        LOCAL,
        FORGETFUL,
        whole,
        CHATML.replace("message['content']", "message[key]"),
        "{{ ",
    ):
        assert not copies_content(other)


@pytest.mark.parametrize("template", [None, CHATML])
def test_an_extended_conversation_equals_the_rendered_one(loaded: LoadedModel, template: str | None) -> None:
    form = form_of(loaded, template)
    end = loaded.tokenizer.eos_token_id
    messages = talk("Machine 1.", "<pull>3</pull>", "It paid 1.0. Pull again.", "<pull>0</pull>", "Done.")
    completions = [[*form.encode(messages[i]["content"]), end] for i in (1, 3)]
    conversation = grown(form, messages, completions)
    assert loaded.tokenizer.decode(conversation.ids) == form.render(messages)
    sampled = [token for token, own in zip(conversation.ids, conversation.mask, strict=True) if own]
    assert sampled == completions[0] + completions[1]


def test_sampled_ids_are_kept_even_if_the_tokenizer_splits_differently(loaded: LoadedModel) -> None:
    form = form_of(loaded)
    spelled = [token for letter in "<pull>2</pull>" for token in form.encode(letter)]
    assert spelled != form.encode("<pull>2</pull>")
    messages = talk("Machine 1.", "<pull>2</pull>", "It paid 0.5. Pull again.")
    conversation = grown(form, messages, [[*spelled, loaded.tokenizer.eos_token_id]])
    start = len(form.start(messages[:1]).ids)
    assert conversation.ids[start : start + len(spelled)] == spelled


def test_a_truncated_completion_is_closed_by_the_environment(loaded: LoadedModel) -> None:
    form = form_of(loaded, CHATML)
    messages = talk("Machine 1.", "<pull>", "It paid 0. Pull again.")
    conversation = grown(form, messages, [form.encode("<pull>")])
    assert loaded.tokenizer.decode(conversation.ids) == form.render(messages)
    ends = [own for token, own in zip(conversation.ids, conversation.mask, strict=True)
            if token == loaded.tokenizer.eos_token_id]  # fmt: skip
    assert ends == [0, 0, 0]


def test_a_template_may_trim_messages(loaded: LoadedModel) -> None:
    form = form_of(loaded, TRIMMING)
    end = loaded.tokenizer.eos_token_id
    said = [*form.encode(" <pull>1</pull>\n"), end]
    conversation = grown(form, talk("Machine 1.", " <pull>1</pull>\n", "It paid 0.2."), [said])
    assert [t for t, own in zip(conversation.ids, conversation.mask, strict=True) if own] == said
    assert loaded.tokenizer.decode(conversation.ids).endswith(
        "\n<|user|>\nIt paid 0.2.<|end|>\n<|assistant|>\n"
    )


@pytest.mark.parametrize("template", [FORGETFUL, COUNTING])
def test_a_template_that_rewrites_history_is_rejected(loaded: LoadedModel, template: str) -> None:
    form = form_of(loaded, template)
    messages = talk("Machine 1.", "<think>hm</think><pull>1</pull>", "It paid 0.2.")
    said = [*form.encode(messages[1]["content"]), loaded.tokenizer.eos_token_id]
    with pytest.raises(InvalidResponse, match="rewrites earlier messages"):
        grown(form, messages, [said])


@pytest.mark.parametrize("template", [None, CHATML])
def test_transcripts_learn_only_assistant_tokens_and_their_ends(
    loaded: LoadedModel, template: str | None
) -> None:
    form = form_of(loaded, template)
    end = loaded.tokenizer.eos_token_id
    messages = talk("Machine 1.", "<pull>3</pull>", "It paid 1.0. Pull again.", "<pull>0</pull>")
    whole = form.transcript(messages)
    learned = [token for token, own in zip(whole.ids, whole.mask, strict=True) if own]
    assert learned == [*form.encode("<pull>3</pull>"), end, *form.encode("<pull>0</pull>"), end]
    assert form.render(messages, prompt=False).startswith(loaded.tokenizer.decode(whole.ids))


def test_transcripts_need_an_answer_that_the_template_closes(loaded: LoadedModel) -> None:
    with pytest.raises(InvalidResponse, match="at least one assistant message"):
        form_of(loaded).transcript(talk("Machine 1."))
    with pytest.raises(InvalidResponse, match="does not close"):
        form_of(loaded, ENDLESS).transcript(talk("Machine 1.", "<pull>3</pull>"))


def test_a_tokenizer_without_template_gets_a_plain_one(loaded: LoadedModel) -> None:
    loaded.tokenizer.chat_template = None
    text = form_of(loaded).render(talk("Hello"))
    assert text == "<|user|>\nHello<|end|>\n<|assistant|>\n"


def test_content_parts_are_joined_and_images_are_rejected() -> None:
    assert content_text([{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]) == "ab"
    assert content_text(None) == ""
    with pytest.raises(InvalidResponse, match="image_url"):
        content_text([{"type": "image_url", "image_url": {}}])


def test_a_template_that_raises_is_reported(loaded: LoadedModel) -> None:
    form = form_of(loaded, "{{ raise_exception('roles must alternate') }}")
    with pytest.raises(InvalidResponse, match="roles must alternate"):
        form.render(talk("Hello"))
