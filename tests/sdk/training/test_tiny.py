from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from wander.errors import ConfigError
from wander.models.chat import PLAIN_TEMPLATE, ChatFormat
from wander.models.loading import load_model, model_name, resolve_model, weights_digest
from wander.models.sampling import end_of_turn_ids
from wander.models.tiny import TinySize, create_tiny, give_tools
from wander.models.tokenizer import parts, tools_message, train_tokenizer
from wander.models.transcripts import transcript_of
from wander.types import Rollout

SMALL = TinySize(hidden=32, layers=1, heads=2, key_value_heads=1, intermediate=32, vocabulary=300)


def board_transcripts(count: int = 40) -> list[list[dict[str, Any]]]:
    marks = ["X", "O", "0", "4", "8"]
    return [
        [
            {"role": "system", "content": "You play as X. Answer <move>number</move>."},
            {"role": "user", "content": " ".join(marks[(i + j) % 5] for j in range(9))},
            {"role": "assistant", "content": f"<think>take corner {i % 9}</think><move>{i % 9}</move>"},
        ]
        for i in range(count)
    ]


def test_cells_tags_and_phrases_are_single_tokens() -> None:
    tokenizer = train_tokenizer(board_transcripts())
    pieces = [tokenizer.decode([i]) for i in tokenizer.encode("<think>take corner 4</think><move>4</move>")]
    assert pieces == ["<think>", "take corner ", "4", "</think>", "<move>", "4", "</move>"]
    assert [tokenizer.decode([i]) for i in tokenizer.encode("X O 4 8")] == ["X ", "O ", "4 ", "8"]


def test_words_are_spelled_in_characters_if_requested() -> None:
    texts = ["moon river", "river moon", "over the moon", "moon moon river"] * 4
    transcripts = [
        [
            {"role": "system", "content": "Spell it."},
            {"role": "user", "content": text},
            {"role": "assistant", "content": f"<word>{text[::-1]}</word>"},
        ]
        for text in texts + [f"{letter}moon" for letter in "abcdefghijklmnopqrstuvwxyz" * 10]
    ]

    def pieces(text: str, **how: bool) -> list[str]:
        tokenizer = train_tokenizer(transcripts, 300, **how)
        return [tokenizer.decode([each]) for each in tokenizer.encode(text)]

    assert pieces("<word>moonz</word>", characters=True) == ["<word>", *"moonz", "</word>"]
    assert pieces("Spell it.", characters=True) == ["Spell it."], "what every prompt has stays whole"
    assert len(pieces("moonz")) < 5


def test_parts_cover_the_text_in_order() -> None:
    text = "You play as X. A<b>1 | 2</b>, 34\nO'Brien <x"
    assert "".join(piece for _, piece in parts(text)) == text
    assert ("tag", "<b>") in parts(text)
    assert ("cell", "1 | ") in parts(text)


@given(st.text(max_size=80))
def test_any_text_is_tokenized_and_decoded_unchanged(text: str) -> None:
    tokenizer = _tokenizer()
    assert tokenizer.decode(tokenizer.encode(text)) == text


_made: list[Any] = []


def _tokenizer() -> Any:
    if not _made:
        _made.append(train_tokenizer(board_transcripts()))
    return _made[0]


def test_the_seed_determines_the_weights(tmp_path: Path) -> None:
    texts = board_transcripts()
    one = create_tiny(texts, tmp_path / "one", seed=3, size=SMALL)
    two = create_tiny(texts, tmp_path / "two", seed=3, size=SMALL)
    other = create_tiny(texts, tmp_path / "other", seed=4, size=SMALL)
    assert weights_digest(one) == weights_digest(two) != weights_digest(other)
    assert (one / "tokenizer.json").read_bytes() == (two / "tokenizer.json").read_bytes()


def test_creating_a_model_does_not_change_the_random_state(tmp_path: Path) -> None:
    torch.manual_seed(1)
    expected = torch.rand(3)
    torch.manual_seed(1)
    create_tiny(board_transcripts(), tmp_path / "model", size=SMALL)
    assert torch.equal(torch.rand(3), expected)


def test_default_size_has_about_a_million_parameters(tmp_path: Path) -> None:
    model = load_model(create_tiny(board_transcripts(), tmp_path / "model"), device="cpu").model
    assert 700_000 < model.num_parameters() < 1_200_000


def test_an_existing_folder_is_rejected_and_kept(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "mine.txt").write_text("keep")
    with pytest.raises(ConfigError, match="already exists"):
        create_tiny(board_transcripts(), tmp_path / "model", size=SMALL)
    assert (tmp_path / "model" / "mine.txt").read_text() == "keep"
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_the_tokenizer_needs_transcripts_and_enough_tokens() -> None:
    with pytest.raises(ConfigError, match="at least one transcript"):
        train_tokenizer([])
    with pytest.raises(ConfigError, match="no room"):
        train_tokenizer(board_transcripts(), vocabulary=200)


def test_generation_markers_match_our_mask(tmp_path: Path) -> None:
    loaded = load_model(create_tiny(board_transcripts(), tmp_path / "model", size=SMALL), device="cpu")
    form = ChatFormat(loaded.tokenizer, end_of_turn_ids(loaded.model, loaded.tokenizer))
    messages = [
        *board_transcripts(1)[0],
        {"role": "user", "content": "O X 4"},
        {"role": "assistant", "content": "8"},
    ]
    whole = form.transcript(messages)
    theirs = loaded.tokenizer.apply_chat_template(
        messages, return_assistant_tokens_mask=True, return_dict=True
    )
    assert theirs["input_ids"] == whole.ids
    assert theirs["assistant_masks"] == whole.mask


TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "add",
            "description": "Return the sum of two numbers, exactly.",
            "parameters": {"type": "object", "properties": {"a": {"type": "integer"}, "b": {}}},
        },
    }
]


def adding(first: int, second: int) -> Rollout:
    call = {"name": "add", "arguments": f'{{"a": {first}, "b": {second}}}'}
    return Rollout(
        example_id="0",
        index=0,
        seed=0,
        prompt=[{"role": "user", "content": f"How much is {first} and {second}?"}],
        completion=[
            {"role": "assistant", "content": "", "tool_calls": [{"type": "function", "function": call}]},
            {"role": "tool", "content": str(first + second)},
            {"role": "assistant", "content": f"It is {first + second}."},
        ],
        tools=TOOLS,
    )


def test_tools_and_their_calls_are_few_tokens(tmp_path: Path) -> None:
    rollouts = [adding(number, 99 - number) for number in range(60)]
    folder = create_tiny([transcript_of(one) for one in rollouts], tmp_path / "model", size=SMALL)
    loaded = load_model(folder, device="cpu")
    form = ChatFormat(loaded.tokenizer, end_of_turn_ids(loaded.model, loaded.tokenizer))
    form.turns.require_tools()
    one = rollouts[3]
    messages = [*one.prompt, *one.completion]
    asked = form.start(messages[:1], TOOLS)
    assert asked.text == "<|system|>" + tools_message(TOOLS)[0]["content"] + form.render(messages[:1])
    assert len(asked.ids) < 15
    (whole,) = form.transcripts(messages, TOOLS)
    assert len(whole.ids) < 45
    learned = [token for token, own in zip(whole.ids, whole.mask, strict=True) if own]
    call = '<tool_call>{"name": "add", "arguments": {"a": 3, "b": 96}}</tool_call>'
    assert loaded.tokenizer.decode(learned) == f"{call}<|end|>It is 99.<|end|>"
    assert form.read(asked.ids, form.encode(call), (), TOOLS, 0)["attempts"][0]["arguments"] == {
        "a": 3,
        "b": 96,
    }


def test_tools_are_added_to_a_template_without_changing_weights(tmp_path: Path) -> None:
    base = create_tiny(board_transcripts(), tmp_path / "base", size=SMALL)
    with pytest.raises(ConfigError, match="already has tools in its chat template"):
        give_tools(base, tmp_path / "again")
    loaded = load_model(base, device="cpu")
    loaded.tokenizer.chat_template = PLAIN_TEMPLATE
    loaded.tokenizer.save_pretrained(base)
    made = give_tools(base, tmp_path / "made")
    assert weights_digest(made) == weights_digest(base)
    form = ChatFormat(load_model(made, device="cpu").tokenizer, frozenset())
    messages = [{"role": "system", "content": "Play."}, {"role": "user", "content": "1"}]
    assert form.render(messages) == ChatFormat(loaded.tokenizer, frozenset()).render(messages)
    told = form.render(messages, tools=TOOLS)
    assert told.startswith("<|system|>\nPlay.\n\nYou can call these functions:")
    assert '"name": "add"' in told


def test_model_names_resolve_to_descriptive_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = create_tiny(board_transcripts(), tmp_path / "ttt-grpo" / "model", size=SMALL)
    assert resolve_model(folder) == (str(folder), "ttt-grpo")
    assert model_name(tmp_path / "ttt-grpo") == "ttt-grpo"
    with pytest.raises(ConfigError, match="does not contain a model"):
        resolve_model(tmp_path)
    with pytest.raises(ConfigError, match="no folder"):
        resolve_model("./nowhere")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match="no folder"):
        resolve_model("ttt-grpo/modle")
    assert resolve_model("elsewhere/model") == ("elsewhere/model", "elsewhere/model")


def test_weights_digest_changes_with_the_bytes(tmp_path: Path) -> None:
    assert weights_digest(tmp_path) is None
    (tmp_path / "model.safetensors").write_bytes(b"one")
    first = weights_digest(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"two")
    assert first is not None
    assert weights_digest(tmp_path) != first


def test_any_even_width_has_heads_of_about_64_and_of_an_even_size(tmp_path: Path) -> None:
    heads = {hidden: TinySize.of_width(hidden, 2, 300).heads for hidden in (8, 64, 72, 96, 128, 200)}
    assert heads == {8: 1, 64: 1, 72: 1, 96: 2, 128: 2, 200: 4}
    with pytest.raises(ConfigError, match="width 33 is odd"):
        TinySize.of_width(33, 2, 300)
    create_tiny(board_transcripts(), tmp_path / "tiny", size=TinySize.of_width(24, 1, 300))
