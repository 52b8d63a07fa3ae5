"""Separation of a model's reasoning from its answer, in all forms that models and servers produce.

- A server may return reasoning in a separate field (`reasoning_content`). The content is then the answer.
- Otherwise the reasoning is in the text, between tags (`<think>`, `[THINK]`, `<reasoning>`...) or in
  gpt-oss's channels. The opening tag is missing if the chat template put it into the prompt.
- If reasoning starts and does not end, there is no answer, because the model may still change its mind.
- A tag that is only mentioned in code, in quotes or in a sentence neither starts nor ends reasoning.

Every function accepts any text, never raises an error, and takes time linear in the text's length.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from dataclasses import dataclass, field
from typing import Any

from wander.types import Message

TAGS = frozenset({"think", "thinking", "thought", "thoughts", "reasoning"})
"""Names of tags around reasoning."""
_NAMES = "|".join(sorted(TAGS, key=len, reverse=True))
_SPECIAL = {
    "<|start_thinking|>": "<|end_thinking|>",  # Cohere
    "<|begin_of_thought|>": "<|end_of_thought|>",  # OpenThinker
    "<unused94>": "<unused95>",  # MedGemma
    "<seed:think>": "</seed:think>",  # Seed-OSS
    "◁think▷": "◁/think▷",  # Kimi
}
"""Other pairs of markers, in lower case."""
_MARK = re.compile(
    rf"<\s{{0,4}}(?P<ends>/?)\s{{0,4}}(?P<tag>{_NAMES})(?:\s[^<>]*)?(?<!/)>|\[(?P<closes>/?)(?-i:THINK)\]"
    rf"|(?P<special>{'|'.join(map(re.escape, [*_SPECIAL, *_SPECIAL.values()]))})",
    re.IGNORECASE,
)
_FENCE = re.compile(r"(?:^|(?<=[>\]]))[ \t]*(?:```|~~~)", re.MULTILINE)
_QUOTES = "`'\"“”‘’"
_NOUN = re.compile(r"[ \t]*(?:tags?|blocks?|tokens?|elements?|sections?|markers?|fields?)\b", re.IGNORECASE)
_IN_SENTENCE = re.compile(r"[\w,][ \t]+\Z")
_CHANNEL = re.compile(
    r"<\|channel\|>\s*(\w+)[^<]*(?:<\|constrain\|>[^<]*)?<\|message\|>"
    r"((?:(?!<\|(?:end|return|call|start|channel)\|>).)*)",
    re.DOTALL,
)
"""Pattern of a message in a gpt-oss channel: its name and content."""
_BARE_CHANNEL, _BARE_FINAL = re.compile(r"\s*(?:analysis|commentary)"), "assistantfinal"
"""Patterns of the same if a server removed the special tokens: `analysis...assistantfinal...`."""


@dataclass
class Reading:
    """A text, separated into reasoning and answer."""

    answer: str
    """Text after the last reasoning, or before it if no text follows; empty if reasoning did not end."""
    outside: str
    """All text outside of reasoning; empty if reasoning did not end."""
    blocks: int = 0
    """Number of blocks of reasoning."""
    at_start: bool = False
    """Whether the text starts with reasoning."""
    opening: str = ""
    """Marker in the prompt that opened the first reasoning; empty if the text itself contains it."""


def answer_text(message: Message) -> str:
    """Return the text of a message without its reasoning; empty if the reasoning did not end."""
    return without_reasoning(message_text(message))


def without_reasoning(text: str) -> str:
    """Return a text without its reasoning; empty if the reasoning did not end."""
    return read_reasoning(text).answer


def has_reasoning(message: Message) -> bool:
    """Return whether a message has reasoning in separate fields."""
    if any(message.get(name) for name in ("reasoning_content", "reasoning_details", "thinking_blocks")):
        return True
    content = message.get("content")
    return isinstance(content, list) and any(map(_is_reasoning_part, content))


def message_text(message: Message) -> str:
    """Return the text of a message: its content, or its joined text parts; empty if it has neither."""
    content = message.get("content")
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        return ""
    parts = (part.get("text") for part in content if isinstance(part, dict) and not _is_reasoning_part(part))
    return "".join(text for text in parts if isinstance(text, str))


def read_reasoning(text: str) -> Reading:
    """Separate a text into reasoning and answer."""
    if messages := read_channels(text):
        final = next((content for name, content in reversed(messages) if name == "final"), "")
        thoughts = sum(name != "final" for name, _ in messages)
        return Reading(final, final, thoughts, messages[0][0] != "final")
    if _BARE_FINAL in text and _BARE_CHANNEL.match(text):
        final = text.rpartition(_BARE_FINAL)[2]
        return Reading(final, final, blocks=1, at_start=True)
    marks = list(_MARK.finditer(text))
    return _Reader(text).read(marks) if marks else Reading(text, text)


def read_channels(text: str) -> list[tuple[str, str]]:
    """Return the messages in a gpt-oss text as channel and content; empty for any other text."""
    return _CHANNEL.findall(text) if "<|channel|>" in text else []


@dataclass
class _Reader:
    """Reads the markers of a text in order."""

    text: str
    pieces: list[str] = field(default_factory=list)
    """Pieces of text outside of reasoning."""
    start: int = 0
    """Start of the current piece."""
    blocks: int = 0
    at_start: bool = False
    opening: str = ""
    inside: str | None = None
    """Name of the open tag."""
    mentioned: str | None = None
    """Name of the last opening tag that was only mentioned, on the current line."""

    def read(self, marks: list[re.Match[str]]) -> Reading:
        fences = [fence.start() for fence in _FENCE.finditer(self.text)]
        blank, seen = True, 0
        for mark in marks:
            name, closing = _name_of(mark)
            if self.inside is not None:
                if closing and name == self.inside:
                    self.inside, self.start, seen, blank = None, mark.end(), mark.end(), True
                continue
            between = self.text[seen : mark.start()]
            blank, seen = blank and not between.strip(), mark.end()
            if "\n" in between:
                self.mentioned = None
            passed = bisect_left(fences, mark.start())
            before, after = passed - bisect_left(fences, self.start), len(fences) - passed
            if (before % 2 and after % 2) or not self._is_mark(mark, name, closing, blank):
                blank = False
                continue
            self.blocks += 1
            if self.blocks == 1:
                self.at_start, self.opening = closing or blank, _opening_of(name) if closing else ""
            if closing:  # the end of reasoning that started in the prompt, or of a block around another block
                self.pieces, self.start, blank = [], mark.end(), True
            else:
                self.pieces.append(self.text[self.start : mark.start()])
                self.inside = name
        if self.inside is not None:
            return Reading("", "", self.blocks, self.at_start, self.opening)
        self.pieces.append(self.text[self.start :])
        answer = next((piece for piece in reversed(self.pieces) if piece.strip()), "")
        return Reading(answer, "".join(self.pieces), self.blocks, self.at_start, self.opening)

    def _is_mark(self, mark: re.Match[str], name: str, closing: bool, blank: bool) -> bool:
        """Return whether a tag outside of reasoning starts or ends reasoning, and is not only mentioned."""
        if mark["special"]:
            return True
        before, after = (
            self.text[max(0, mark.start() - 1) : mark.start()],
            self.text[mark.end() : mark.end() + 24],
        )
        quoted = before != "" and before in _QUOTES
        if closing:
            partner, self.mentioned = self.mentioned == name, None
            return not (partner or (quoted and after[:1] in _QUOTES and after) or _NOUN.match(after))
        if blank:
            return True
        line = self.text[max(0, mark.start() - 24) : mark.start()]
        in_sentence = bool(_IN_SENTENCE.search(line)) and after[:1] in (" ", "\t")
        if quoted or in_sentence or _NOUN.match(after) or (after and after[0] in ",.;:)]!?'\"`"):
            self.mentioned = name
            return False
        return True


def _opening_of(name: str) -> str:
    return "[THINK]" if name == "[think]" else name if name in _SPECIAL else f"<{name}>"


def _name_of(mark: re.Match[str]) -> tuple[str, bool]:
    """Return the name of a marker, and whether it is a closing marker."""
    if mark["tag"]:
        return mark["tag"].lower(), bool(mark["ends"])
    if mark["special"]:
        word = mark["special"].lower()
        return (word, False) if word in _SPECIAL else (_OPENS[word], True)
    return "[think]", bool(mark["closes"])


_OPENS = {closing: opening for opening, closing in _SPECIAL.items()}


def _is_reasoning_part(part: Any) -> bool:
    """Return whether a content part contains reasoning (as from Mistral or bridges to Anthropic)."""
    return isinstance(part, dict) and part.get("type") in ("thinking", "reasoning", "redacted_thinking")
