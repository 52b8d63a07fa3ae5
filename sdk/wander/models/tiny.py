"""Models that are made here.

The tiny policy is a Llama of about a million parameters that learns an environment on two CPU cores. Another
model can be given a chat template with tools.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from wander.errors import ConfigError, InvalidResponse, name_option, require_extra
from wander.models.quiet import quiet_libraries
from wander.models.tokenizer import train_tokenizer
from wander.system.folders import replace_folder
from wander.types import Message

INITIAL_SPREAD = 0.06
"""Standard deviation of the first weights. Llama's 0.02 is for large widths: after 300 steps on tic-tac-toe
games its loss was 0.438, where 0.05 and 0.08 had reached 0.372 and 0.374."""


@dataclass(frozen=True)
class TinySize:
    """The shape of a tiny policy; the defaults give 0.9 million parameters with 350 tokens."""

    hidden: int = 128
    layers: int = 4
    heads: int = 2
    """Few and wide: on a CPU, attention over many narrow heads costs as much as all matrices."""
    key_value_heads: int = 2
    intermediate: int = 384
    vocabulary: int = 512
    """At most; a small environment needs fewer."""
    context: int = 1024
    """Longest conversation in tokens."""
    characters: bool = False
    """Words are spelled, a token for each letter."""

    @classmethod
    def of_width(cls, hidden: int, layers: int, vocabulary: int, *, characters: bool = False) -> TinySize:
        """Return the shape of this width: heads of about 64, of an even size as rotary positions want it."""
        fitting = [heads for heads in range(1, hidden) if hidden % (2 * heads) == 0]
        if not fitting:
            raise ConfigError(f"a width of {hidden} is odd", hint="take an even one")
        heads = min(fitting, key=lambda heads: (abs(hidden / heads - 64), heads))
        return cls(hidden, layers, heads, heads, 3 * hidden, vocabulary, characters=characters)


def create_tiny(
    transcripts: Sequence[Sequence[Message]],
    folder: str | Path,
    *,
    seed: int = 0,
    size: TinySize | None = None,
) -> Path:
    """Write an untrained tiny policy in Hugging Face form and return its folder.

    Its tokenizer is trained on the environment's transcripts; its weights depend on `seed`, the size and the
    vocabulary only. The folder appears whole or not at all; an existing one is refused with `ConfigError`.
    """
    with require_extra("transformers", needed_for="making a tiny policy"):
        import torch
        from transformers import LlamaConfig, LlamaForCausalLM
    folder = Path(folder)
    require_new(folder)
    size = size or TinySize()
    tokenizer = train_tokenizer(transcripts, size.vocabulary, characters=size.characters)
    tokenizer.model_max_length = size.context
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=size.hidden,
        intermediate_size=size.intermediate,
        num_hidden_layers=size.layers,
        num_attention_heads=size.heads,
        num_key_value_heads=size.key_value_heads,
        max_position_embeddings=size.context,
        tie_word_embeddings=True,
        initializer_range=INITIAL_SPREAD,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = LlamaForCausalLM(config)
    with replace_folder(folder) as place, quiet_libraries():
        model.save_pretrained(place)
        tokenizer.save_pretrained(place)
    return folder


def give_tools(name: str | Path, folder: str | Path) -> Path:
    """Write a model with a chat template that has tools in it and return its folder.

    The template is the model's own, which is then told of the tools in the system message, writes calls as
    Hermes models do and reads their results as a user's messages. Raises `ConfigError` for a model that has
    tools, and for one whose template cannot take them so.
    """
    from wander.models.calls.turns import PREAMBLE
    from wander.models.chat import ChatFormat
    from wander.models.loading import load_model

    folder = Path(folder)
    require_new(folder)
    loaded = load_model(name, device="cpu", dtype="auto")
    form = ChatFormat(loaded.tokenizer, frozenset([loaded.tokenizer.eos_token_id]))
    if form.turns.takes_tools and form.turns.calls is not None:
        raise ConfigError(f"`{name}` has tools in its chat template already", hint="use it as it is")
    loaded.tokenizer.chat_template = PREAMBLE + form.original
    try:
        ChatFormat(loaded.tokenizer, form.end_ids).turns.require_tools()
    except InvalidResponse as error:
        raise ConfigError(f"the chat template of `{name}` cannot be given tools: {error}") from error
    with replace_folder(folder) as place, quiet_libraries():
        loaded.model.save_pretrained(place)
        loaded.tokenizer.save_pretrained(place)
    return folder


def require_new(folder: Path) -> None:
    """Raise `ConfigError` for a folder that exists and is not empty."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ConfigError(
            f"`{folder}` exists already", hint="choose another folder with " + name_option("out")
        )
