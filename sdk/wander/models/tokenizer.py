"""A small tokenizer for a single environment, with few tokens per turn and tokens for the important pieces.

Small policies are slow on long prompts, and most text of an environment consists of fixed phrases around a
few cells, digits and tags. The vocabulary therefore has tokens for every tag, for every phrase that is
frequent in the transcripts, and for each single digit or capital letter with the punctuation after it (`4 |
`). All other text is byte-level BPE, so any text can be encoded.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from wander.errors import ConfigError
from wander.models.calls.turns import calls_in
from wander.models.chat import content_text
from wander.types import Message

PAD, END = "<|pad|>", "<|end|>"
ROLES = ("system", "user", "assistant", "tool")
SPECIAL = [PAD, END, *(f"<|{role}|>" for role in ROLES)]

TEMPLATE = (
    "{%- if tools %}{{- '<|system|>' }}"
    "{%- for tool in tools %}{%- set f = tool.function %}"
    "{{- f.name + '(' + (f.parameters.properties | default({}) | join(', ')) + '): '"
    " + (f.description | default('')) + '\n' }}{%- endfor %}"
    "{%- endif %}"
    "{%- for message in messages %}"
    "{%- if message['role'] == 'assistant' %}"
    "{{- '<|assistant|>' }}{% generation %}{{- message['content'] }}"
    "{%- for call in message['tool_calls'] or [] %}{%- set f = call.function %}"
    '{{- \'<tool_call>{"name": "\' + f.name + \'", "arguments": \' + (f.arguments | tojson)'
    " + '}</tool_call>' }}{%- endfor %}"
    "{{- '<|end|>' }}{% endgeneration %}"
    "{%- else %}{{- '<|' + message['role'] + '|>' + message['content'] }}{%- endif %}"
    "{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|assistant|>' }}{%- endif %}"
)
"""Chat template that never rewrites earlier text, because each message only appends. Generation markers allow
TRL to create its own mask. A tool is a line, which becomes one or two tokens if the transcripts contain it
(`tools_message`)."""


def said(message: Message) -> str:
    """Return the text that the template renders for a message after its role: its content and tool calls."""
    text = content_text(message.get("content"))
    for name, arguments in calls_in(message):
        written = json.dumps({"name": name, "arguments": arguments}, ensure_ascii=False)
        text += f"<tool_call>{written}</tool_call>"
    return text


def tools_message(tools: Sequence[dict[str, Any]] | None) -> list[Message]:
    """Return the text that the template renders for tools, as a message; an empty list without tools."""
    lines = []
    for function in (tool["function"] for tool in tools or ()):
        names = ", ".join((function.get("parameters") or {}).get("properties") or {})
        lines.append(f"{function['name']}({names}): {function.get('description') or ''}\n")
    return [{"role": "system", "content": "".join(lines)}] if lines else []


_PARTS = re.compile(
    r"(?P<tag></?[A-Za-z_]\w*>)"
    r"|(?P<cell>(?:[0-9]|(?<![A-Za-z])[A-Z](?![A-Za-z']))[^A-Za-z0-9<]*)"
    r"|(?P<phrase>(?:(?!</?[A-Za-z_]\w*>|[0-9]|(?<![A-Za-z])[A-Z](?![A-Za-z'])).)+)",
    re.DOTALL,
)
BYTES = 256
SHORTEST_PHRASE = 3
"""Minimum number of characters in a phrase. Shorter pieces would split words wherever they occur."""


def parts(text: str) -> list[tuple[str, str]]:
    """Split a text into (kind, piece): `tag`, `cell` (a digit or lone capital with the punctuation after it)
    and `phrase` (what stands between them).
    """  # fmt: skip
    return [(match.lastgroup or "phrase", match.group()) for match in _PARTS.finditer(text)]


def frequent_pieces(texts: Sequence[str], limit: int) -> list[str]:
    """Return at most `limit` tags, cells and phrases that deserve their own token, most useful first.

    A piece must occur in at least two percent of the texts. Its usefulness is the number of bytes that it
    saves over all texts.
    """
    counts: Counter[str] = Counter()
    spread: Counter[str] = Counter()
    tags: set[str] = set()
    for text in texts:
        pieces = parts(text)
        counts.update(piece for _, piece in pieces)
        spread.update({piece for _, piece in pieces})
        tags.update(piece for kind, piece in pieces if kind == "tag")
    enough = max(2, len(texts) // 50)
    worth = {
        piece: counts[piece] * len(piece.encode())
        for piece in counts
        if spread[piece] >= enough
        and (piece in tags or len(piece) >= SHORTEST_PHRASE or (len(piece) > 1 and not piece.isalpha()))
    }
    ranked = sorted(worth, key=lambda piece: (piece not in tags, -worth[piece], piece))
    return ranked[:limit]


def train_tokenizer(
    transcripts: Iterable[Sequence[Message]], vocabulary: int = 512, *, characters: bool = False
) -> Any:
    """Return a `PreTrainedTokenizerFast` with at most `vocabulary` tokens for an environment's transcripts.

    With `characters`, all other text is spelled with a token for each byte, which is a letter in English. The
    same transcripts give the same tokenizer. Raises `ConfigError` without transcripts, or if the vocabulary
    is too small for the 256 bytes and the special tokens.
    """
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    texts = [said(message) for transcript in transcripts for message in transcript]
    if not texts:
        raise ConfigError("a tokenizer needs at least one transcript")
    room = vocabulary - BYTES - len(SPECIAL)
    if room < 0:
        raise ConfigError(f"a vocabulary of {vocabulary} has no room for {BYTES + len(SPECIAL)} base tokens")
    pieces = frequent_pieces(texts, room)
    rest = texts
    if pieces:
        longest_first = sorted(pieces, key=len, reverse=True)
        cut = re.compile("|".join(re.escape(piece) for piece in longest_first))
        rest = [fragment for text in texts for fragment in cut.split(text) if fragment]
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.train_from_iterator(
        rest,
        trainers.BpeTrainer(
            vocab_size=BYTES + len(SPECIAL) if characters else vocabulary - len(pieces),
            special_tokens=SPECIAL,
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            min_frequency=2,
            show_progress=False,
        ),
    )
    tokenizer.add_tokens([AddedToken(piece, normalized=False) for piece in pieces])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=PAD,
        eos_token=END,
        additional_special_tokens=SPECIAL[2:],
        chat_template=TEMPLATE,
        padding_side="left",
        clean_up_tokenization_spaces=False,
    )
