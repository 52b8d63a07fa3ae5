"""Where a model's reasoning ends and its answer begins, in every form that models and servers give.

- A server may give reasoning in a field of its own (`reasoning_content`). Then the content is the answer.
- Else it is in the text, between tags (`<think>`, `[THINK]`, `<reasoning>`...) or in gpt-oss's channels. The
  opening tag is missing if the chat template wrote it into the prompt.
- Reasoning that was begun and not ended leaves no answer: what the model says there may still change.
- A tag that is only mentioned, in code, in quotes or in a sentence, opens and closes nothing.

Every function takes any text, never raises, and takes time linear in its length.
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
"""Other pairs of marks, in lower case."""
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
"""gpt-oss: name and content of a message in a channel."""
_BARE_CHANNEL, _BARE_FINAL = re.compile(r"\s*(?:analysis|commentary)"), "assistantfinal"
"""The same if a server has removed the special tokens: `analysis...assistantfinal...`."""


@dataclass
class Reading:
    """A text, told apart into reasoning and answer."""

    answer: str
    """The text after the last reasoning, or before it if nothing follows; empty if it was not ended."""
    outside: str
    """All text outside reasoning; empty if the reasoning was not ended."""
    blocks: int = 0
    """Number of pieces of reasoning."""
    at_start: bool = False
    """Whether the text begins with reasoning."""
    opening: str = ""
    """The mark in the prompt that opened its first reasoning; empty if there is none."""


def answer_text(message: Message) -> str:
    """Return the text of a message without its reasoning; empty if the model had not ended that."""
    return without_reasoning(message_text(message))


def without_reasoning(text: str) -> str:
    """Return a text without its reasoning; empty if the model had not ended that."""
    return read_reasoning(text).answer


def has_reasoning(message: Message) -> bool:
    """Tell whether a message has reasoning in fields of its own."""
    if any(message.get(name) for name in ("reasoning_content", "reasoning_details", "thinking_blocks")):
        return True
    content = message.get("content")
    return isinstance(content, list) and any(map(_is_reasoning_part, content))


def message_text(message: Message) -> str:
    """Return the text of a message: its content, or its text parts joined; empty if it has none."""
    content = message.get("content")
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        return ""
    parts = (part.get("text") for part in content if isinstance(part, dict) and not _is_reasoning_part(part))
    return "".join(text for text in parts if isinstance(text, str))


def read_reasoning(text: str) -> Reading:
    """Tell reasoning and answer of a text apart."""
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
    """Return the messages of a text of gpt-oss: channel and content of each; empty for any other text."""
    return _CHANNEL.findall(text) if "<|channel|>" in text else []


@dataclass
class _Reader:
    """Reads the marks of a text in their order."""

    text: str
    pieces: list[str] = field(default_factory=list)
    """The text outside reasoning."""
    start: int = 0
    """Where the current piece begins."""
    blocks: int = 0
    at_start: bool = False
    opening: str = ""
    inside: str | None = None
    """The name of the tag that is open."""
    mentioned: str | None = None
    """The name of the opening tag that was mentioned last, on the line that the reader is at."""

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
            if closing:  # of reasoning that began in the prompt, or of a block around another one
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
        """Tell whether a tag outside reasoning opens or closes some, and is not just mentioned."""
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
    """Return the name of a mark, and whether it closes."""
    if mark["tag"]:
        return mark["tag"].lower(), bool(mark["ends"])
    if mark["special"]:
        word = mark["special"].lower()
        return (word, False) if word in _SPECIAL else (_OPENS[word], True)
    return "[think]", bool(mark["closes"])


_OPENS = {closing: opening for opening, closing in _SPECIAL.items()}


def _is_reasoning_part(part: Any) -> bool:
    """Tell whether a content part holds reasoning (Mistral, Anthropic's bridges)."""
    return isinstance(part, dict) and part.get("type") in ("thinking", "reasoning", "redacted_thinking")
