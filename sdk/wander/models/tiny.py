"""Creation of models: the tiny policy, and models with tools added to their chat template.

The tiny policy is a Llama with about a million parameters that can learn an environment on two CPU cores.
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
"""Standard deviation of the initial weights. Llama's 0.02 is meant for large widths: after 300 steps on
tic-tac-toe games its loss was 0.438, compared with 0.372 for 0.05 and 0.374 for 0.08."""


@dataclass(frozen=True)
class TinySize:
    """The shape of a tiny policy; the defaults give 0.9 million parameters with 350 tokens."""

    hidden: int = 128
    layers: int = 4
    heads: int = 2
    """Number of attention heads. It is small, because attention over many narrow heads takes as much time on
    a CPU as all matrices."""
    key_value_heads: int = 2
    intermediate: int = 384
    vocabulary: int = 512
    """Maximum size of the vocabulary; a small environment needs fewer tokens."""
    context: int = 1024
    """Maximum number of tokens in a conversation."""
    characters: bool = False
    """Whether words are spelled with a token for each letter."""

    @classmethod
    def of_width(cls, hidden: int, layers: int, vocabulary: int, *, characters: bool = False) -> TinySize:
        """Return the shape for a width, with heads of about 64 units; rotary positions need an even number of
        units."""
        fitting = [heads for heads in range(1, hidden) if hidden % (2 * heads) == 0]
        if not fitting:
            raise ConfigError(f"the width {hidden} is odd", hint="use an even width")
        heads = min(fitting, key=lambda heads: (abs(hidden / heads - 64), heads))
        return cls(hidden, layers, heads, heads, 3 * hidden, vocabulary, characters=characters)


def create_tiny(
    transcripts: Sequence[Sequence[Message]],
    folder: str | Path,
    *,
    seed: int = 0,
    size: TinySize | None = None,
) -> Path:
    """Write an untrained tiny policy in Hugging Face format and return its folder.

    Its tokenizer is trained on the environment's transcripts. Its weights depend only on `seed`, the size and
    the vocabulary. The folder appears only when it is complete. Raises `ConfigError` if the folder already
    exists.
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
    """Write a copy of a model with tools in its chat template and return its folder.

    The new template is the model's own, extended in three ways: it describes the tools in the system message,
    writes calls in the format of Hermes models, and shows their results as user messages. Raises
    `ConfigError` if the template already has tools or cannot be extended.
    """
    from wander.models.calls.turns import PREAMBLE
    from wander.models.chat import ChatFormat
    from wander.models.loading import load_model

    folder = Path(folder)
    require_new(folder)
    loaded = load_model(name, device="cpu", dtype="auto")
    form = ChatFormat(loaded.tokenizer, frozenset([loaded.tokenizer.eos_token_id]))
    if form.turns.takes_tools and form.turns.calls is not None:
        raise ConfigError(f"`{name}` already has tools in its chat template", hint="use it unchanged")
    loaded.tokenizer.chat_template = PREAMBLE + form.original
    try:
        ChatFormat(loaded.tokenizer, form.end_ids).turns.require_tools()
    except InvalidResponse as error:
        raise ConfigError(f"cannot add tools to the chat template of `{name}`: {error}") from error
    with replace_folder(folder) as place, quiet_libraries():
        loaded.model.save_pretrained(place)
        loaded.tokenizer.save_pretrained(place)
    return folder


def require_new(folder: Path) -> None:
    """Raise `ConfigError` for a folder that exists and is not empty."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ConfigError(
            f"`{folder}` already exists", hint="choose another folder with " + name_option("out")
        )
