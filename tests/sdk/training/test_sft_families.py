"""Fine-tuning of the families of models that people start from: exact masks, and two steps of each.

Their tokenizers cannot be downloaded in a test. What matters here is written out: their special tokens, how
their chat templates lay a conversation out, and a random model of their architecture.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import (
    AutoModelForCausalLM,
    Lfm2Config,
    LlamaConfig,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen3Config,
)
from wander.models.chat import ChatFormat
from wander.models.loading import load_model, weights_digest
from wander.models.sampling import end_of_turn_ids
from wander.train.config import SFTSettings
from wander.train.sft import IGNORED, tokenize_rows, train_sft

TURN = "{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>\n' }}"
OPEN = "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
CHATML = "{% for m in messages %}" + TURN + "{% endfor %}" + OPEN
WITH_DEFAULT_SYSTEM = (
    "{% if messages[0]['role'] != 'system' %}{{ '<|im_start|>system\nYou are helpful.<|im_end|>\n' }}"
    "{% endif %}" + CHATML
)
TOOLS = (
    "{% if tools %}{{ '<|im_start|>system\n# Tools' }}{% for t in tools %}{{ '\n' + (t | tojson) }}"
    "{% endfor %}{{ '<|im_end|>\n' }}{% endif %}"
)
CALLS = (
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] }}"
    "{% for c in m['tool_calls'] or [] %}{{ '\n<tool_call>\n' + (c['function'] | tojson) }}"
    "{{ '\n</tool_call>' }}{% endfor %}{{ '<|im_end|>\n' }}{% endfor %}"
)
# Earlier thinking is dropped, and the last turn is given an empty one where it has none.
QWEN3 = (
    "{% set ns = namespace(last=0) %}{% for m in messages %}{% if m['role'] == 'user' %}"
    "{% set ns.last = loop.index0 %}{% endif %}{% endfor %}{% for m in messages %}"
    "{% set said = m['content'].split('</think>')[-1].lstrip('\n') %}"
    "{% set thought = m['content'].split('</think>')[0].split('<think>')[-1].strip('\n') "
    "if '</think>' in m['content'] else '' %}{{ '<|im_start|>' + m['role'] + '\n' }}"
    "{% if m['role'] == 'assistant' and loop.index0 > ns.last %}"
    "{{ '<think>\n' + thought + '\n</think>\n\n' + said }}{% else %}{{ said }}{% endif %}"
    "{{ '<|im_end|>\n' }}{% endfor %}" + OPEN
)
HEADERS = (
    "{{ bos_token }}{% for m in messages %}{{ '<|start_header_id|>' + m['role'] + '<|end_header_id|>\n\n'"
    " + (m['content'] | trim) + '<|eot_id|>' }}{% endfor %}{% if add_generation_prompt %}"
    "{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}"
)
SHAPE = {
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "max_position_embeddings": 512,
    "tie_word_embeddings": True,
}


@dataclass(frozen=True)
class Family:
    """What is particular to a family of models."""

    config: Any
    template: str
    end: str = "<|im_end|>"
    begin: str | None = None
    specials: tuple[str, ...] = ("<|im_start|>",)
    shape: dict[str, Any] = field(default_factory=dict)
    rewrites: bool = False


FAMILIES = {
    "smollm2": Family(LlamaConfig, WITH_DEFAULT_SYSTEM),
    "qwen2.5": Family(Qwen2Config, TOOLS + WITH_DEFAULT_SYSTEM, specials=("<|im_start|>", "<|endoftext|>")),
    "qwen3": Family(Qwen3Config, QWEN3, shape={"head_dim": 8}, rewrites=True),
    "llama3": Family(
        LlamaConfig,
        HEADERS,
        end="<|eot_id|>",
        begin="<|begin_of_text|>",
        specials=("<|start_header_id|>", "<|end_header_id|>"),
    ),
    "lfm2": Family(
        Lfm2Config,
        "{{ bos_token }}" + CHATML,
        begin="<|startoftext|>",
        shape={"layer_types": ["conv", "full_attention"], "block_auto_adjust_ff_dim": False},
    ),
}
MESSAGES = [
    {"role": "system", "content": "Play well."},
    {"role": "user", "content": "0 1 2"},
    {"role": "assistant", "content": "<think>middle</think>4"},
    {"role": "user", "content": "O X 2"},
    {"role": "assistant", "content": "<think>corner</think>8"},
]


def tokenizer_of(family: Family) -> PreTrainedTokenizerFast:
    raw = Tokenizer(models.BPE())
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    raw.decoder = decoders.ByteLevel()
    specials = [one for one in (family.begin, family.end, *family.specials) if one is not None]
    trainer = trainers.BpeTrainer(
        vocab_size=330,
        special_tokens=specials,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    raw.train_from_iterator([message["content"] for message in MESSAGES] * 3, trainer)
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=raw, eos_token=family.end, pad_token=family.end, bos_token=family.begin
    )
    tokenizer.chat_template = family.template
    return tokenizer


@pytest.fixture(params=FAMILIES)
def family(request: pytest.FixtureRequest) -> Family:
    return FAMILIES[request.param]


@pytest.fixture
def folder(family: Family, tmp_path: Path) -> Path:
    """A random model of the family with its tokenizer, in Hugging Face form."""
    tokenizer = tokenizer_of(family)
    torch.manual_seed(0)
    config = family.config(
        **SHAPE | family.shape, vocab_size=len(tokenizer), eos_token_id=tokenizer.eos_token_id
    )
    place = tmp_path / "base"
    AutoModelForCausalLM.from_config(config).save_pretrained(place)
    tokenizer.save_pretrained(place)
    return place


def learned_and_read(
    folder: Path, messages: list[dict[str, Any]], tools: Any = None
) -> list[tuple[str, str]]:
    """Return, for each sample, the text that is learned and the whole."""
    loaded = load_model(folder, device="cpu")
    dataset, too_long = tokenize_rows([{"messages": messages, "tools": tools}], loaded, 400)
    assert too_long == 0
    found = []
    for ids, labels in zip(dataset["input_ids"], dataset["labels"], strict=True):
        assert all(label in (IGNORED, token) for token, label in zip(ids, labels, strict=True))
        learned = [label for label in labels if label != IGNORED]
        found.append((loaded.tokenizer.decode(learned), loaded.tokenizer.decode(ids)))
    return found


def test_exactly_the_format_that_the_model_samples_is_learned(family: Family, folder: Path) -> None:
    loaded = load_model(folder, device="cpu")
    form = ChatFormat(loaded.tokenizer, end_of_turn_ids(loaded.model, loaded.tokenizer))
    first, second = (MESSAGES[place]["content"] + family.end for place in (2, 4))
    found = learned_and_read(folder, MESSAGES)
    if not family.rewrites:
        assert [learned for learned, _ in found] == [first + second]
        rendered = form.render(MESSAGES, prompt=False)
        assert found[0][1] == rendered[: rendered.rindex(family.end) + len(family.end)]
        return
    assert [learned for learned, _ in found] == [first, second]
    for place, (learned, whole) in zip((2, 4), found, strict=True):
        assert whole == form.render(MESSAGES[:place]) + learned
    assert "middle" not in found[1][1], "earlier thinking is gone, as the model sees it then"


def test_two_steps_change_the_weights_and_the_model_loads_again(
    family: Family, folder: Path, tmp_path: Path
) -> None:
    settings = SFTSettings(
        model={"path": str(folder), "device": "cpu"},
        batch={"rows": 2, "max_length": 400},
        schedule={"steps": 2, "learning_rate": 1e-3},
    )
    rows = [{"messages": [*MESSAGES[:-1], {"role": "assistant", "content": f"move {n}"}]} for n in range(4)]
    result = train_sft(rows, settings, tmp_path / "out")
    assert result.steps == 2
    assert result.rows == 4, "a conversation counts once, in however many samples it is learned"
    assert weights_digest(result.model) != weights_digest(folder)
    again = load_model(result.model, device="cpu")
    assert again.tokenizer.chat_template == family.template
    logits = again.model(torch.tensor([again.tokenizer.encode("0 1 2")])).logits
    assert torch.isfinite(logits).all()


def test_tool_calls_are_learned_in_the_format_of_the_template(tmp_path: Path) -> None:
    family = Family(Qwen2Config, TOOLS + CALLS + OPEN)
    tokenizer = tokenizer_of(family)
    size = len(tokenizer) + 1  # read again, it has the padding of Qwen's tokenizers too
    config = Qwen2Config(**SHAPE, vocab_size=size, eos_token_id=tokenizer.eos_token_id)
    AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    call = {"id": "1", "type": "function", "function": {"name": "look", "arguments": '{"at": 4}'}}
    messages = [
        {"role": "user", "content": "Where?"},
        {"role": "assistant", "content": "Let me see.", "tool_calls": [call]},
        {"role": "tool", "content": "4", "tool_call_id": "1"},
        {"role": "assistant", "content": "There."},
    ]
    tools = [{"type": "function", "function": {"name": "look", "parameters": {}}}]
    ((learned, whole),) = learned_and_read(tmp_path, messages, tools)
    assert learned.startswith("Let me see.\n<tool_call>\n")
    assert learned.endswith("</tool_call><|im_end|>There.<|im_end|>")
    assert '"name": "look"' in learned
    assert whole.startswith("<|im_start|>system\n# Tools\n")
    (_, without) = learned_and_read(tmp_path, messages)[0]
    assert "# Tools" not in without
