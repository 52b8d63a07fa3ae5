"""Parsers, which extract the answer from a model's text.

All functions tolerate malformed text: a parser never raises an error for a text, and takes time linear in its
length.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

from wander.reasoning import TAGS, answer_text, has_reasoning, message_text, read_reasoning, without_reasoning
from wander.types import Message, Messages

__all__ = ["MaybeThinkParser", "Parser", "ThinkParser", "XMLParser", "answer_text", "message_text"]

FormatReward = Callable[..., float]


class Parser:
    """Extracts the answer from a completion: its text without reasoning, converted by `extract_fn` if given.

    If reasoning starts and does not end, there is no answer (`wander.reasoning`).
    """

    def __init__(self, extract_fn: Callable[[str], Any] | None = None) -> None:
        self.extract_fn = extract_fn

    def parse(self, text: str) -> Any:
        """Return the result of `extract_fn` for a text, or the text itself."""
        return text if self.extract_fn is None else self.extract_fn(text)

    def parse_answer(self, completion: Messages | str) -> Any | None:
        """Return the answer in the last assistant message, or None without an assistant message."""
        if isinstance(completion, str):
            return self.parse(without_reasoning(completion))
        messages = self.get_assistant_messages(completion)
        return self.parse(answer_text(messages[-1])) if messages else None

    def get_assistant_messages(self, completion: Messages) -> Messages:
        """Return the messages that the model wrote."""
        return [message for message in completion if message.get("role") == "assistant"]

    def get_user_messages(self, completion: Messages) -> Messages:
        """Return the messages of the user, which in a multi-turn rollout is the environment."""
        return [message for message in completion if message.get("role") == "user"]

    def get_tool_messages(self, completion: Messages) -> Messages:
        """Return the tool results."""
        return [message for message in completion if message.get("role") == "tool"]

    def get_system_messages(self, completion: Messages) -> Messages:
        """Return the system messages."""
        return [message for message in completion if message.get("role") == "system"]

    def get_format_reward_func(self) -> FormatReward:
        """Return a reward function that scores the format: the mean over assistant messages, from 0 to 1.

        A completion without an assistant message scores 0.
        """

        def format_reward_func(completion: Messages | str, **_: Any) -> float:
            if isinstance(completion, str):
                completion = [{"role": "assistant", "content": completion}]
            messages = self.get_assistant_messages(completion)
            if not messages:
                return 0.0
            return sum(self.format_score(self.written(message)) for message in messages) / len(messages)

        return format_reward_func

    def written(self, message: Message) -> str:
        """Return a message as a single text, with its reasoning between tags as if the model had written
        them."""
        text = message_text(message)
        reading = read_reasoning(text)
        if reading.blocks or not has_reasoning(message):
            return reading.opening + text
        tag, reasoning = self.reasoning_tag, message.get("reasoning_content") or "..."
        return f"<{tag}>\n{reasoning}\n</{tag}>\n{text}"

    @property
    def reasoning_tag(self) -> str:
        """Name of the tag that `written` puts around reasoning."""
        return "think"

    def format_score(self, text: str) -> float:
        """Return how well a text matches the format, from 0 to 1; a plain parser accepts any text."""
        return 1.0


class ThinkParser(Parser):
    """Takes the text after the reasoning; the answer is empty without reasoning."""

    def parse(self, text: str) -> Any:
        """Return the stripped text after the reasoning, converted by `extract_fn`; empty without
        reasoning."""
        reading = read_reasoning(text)
        return super().parse(reading.answer.strip() if reading.blocks else "")

    def parse_answer(self, completion: Messages | str) -> Any | None:
        """Return the answer in the last assistant message, or None without an assistant message."""
        if isinstance(completion, str):
            return self.parse(completion)
        messages = self.get_assistant_messages(completion)
        return self.parse(self.written(messages[-1])) if messages else None

    def format_score(self, text: str) -> float:
        """Return 1.0 for a single block of reasoning at the start with text after it, else 0.0."""
        reading = read_reasoning(text)
        return 1.0 if reading.blocks == 1 and reading.at_start and reading.answer.strip() else 0.0


class MaybeThinkParser(Parser):
    """Takes the text after the reasoning, or the whole text without reasoning."""

    def parse(self, text: str) -> Any:
        """Return the stripped text without its reasoning, converted by `extract_fn`."""
        return super().parse(without_reasoning(text).strip())


class XMLParser(Parser):
    """Reads fields such as `<answer>...</answer>`.

    A field is a tag name, or a tuple of equivalent tag names; `format` writes the first name.
    `answer_field` names the field with the answer; its alternative names are also accepted.
    """

    def __init__(
        self,
        fields: Sequence[str | Sequence[str]],
        answer_field: str = "answer",
        extract_fn: Callable[[str], Any] | None = None,
    ) -> None:
        super().__init__(extract_fn)
        self.answer_field = answer_field
        self._fields = [tuple(field) if isinstance(field, tuple | list) else (field,) for field in fields]
        self._names = names = [name for field in self._fields for name in field]
        if any(not isinstance(name, str) for name in names):
            raise TypeError(f"field names must be text, got {names}")
        if not all(self._fields) or not all(names):
            raise ValueError("every field of an XML parser needs a name")
        if len(set(names)) != len(names):
            raise ValueError(f"field names must be unique, got {', '.join(names)}")
        same = next((field for field in self._fields if answer_field in field), ())
        self._answers = sorted(same, key=lambda name: name != answer_field)

    def parse(self, text: str, strip: bool = True, last: bool = False) -> SimpleNamespace:
        """Return an object with an attribute for each tag: the field's text, or None if it is missing.

        Reads the first occurrence of a field, or the last with `last`. A field without its closing tag is
        missing. Tags inside reasoning do not count, unless the field is the reasoning itself (`think`).
        """
        return SimpleNamespace(**_read_fields(text, self._names, strip, last))

    def parse_answer(self, completion: Messages | str) -> Any | None:
        """Return the answer field of the last assistant message that contains it, or None.

        If a message contains the field several times, the last occurrence counts.
        """
        if isinstance(completion, str):
            return self._answer(completion)
        for message in reversed(self.get_assistant_messages(completion)):
            answer = self._answer(message_text(message))
            if answer is not None:
                return answer
        return None

    def get_fields(self) -> list[str]:
        """Return the first name of every field, in order."""
        return [names[0] for names in self._fields]

    def get_format_str(self) -> str:
        """Return the expected format, for use in a prompt."""
        lines = []
        for names in self._fields:
            shown = names[0] if len(names) == 1 else f"[ {' | '.join(names)} ]"
            lines.append(f"<{shown}>\n...\n</{shown}>")
        return "\n".join(lines)

    def format(self, **values: Any) -> str:
        """Write the fields in order; raises `ValueError` if a field is missing or unknown."""
        lines = []
        for names in self._fields:
            given = [name for name in names if name in values]
            if not given:
                raise ValueError(f"the field `{names[0]}` is missing: pass `{names[0]}=...`")
            lines.append(f"<{names[0]}>\n{values[given[0]]}\n</{names[0]}>")
        unknown = sorted(set(values) - set(self._names))
        if unknown:
            raise ValueError(f"`{unknown[0]}` is not one of the fields {', '.join(self.get_fields())}")
        return "\n".join(lines)

    def format_score(self, text: str) -> float:
        """Return how well a text matches the format, from 0 to 1.

        0.4 is multiplied by the share of fields that are present. Well-formed tags, starting with the first
        field, and ending with the last field add 0.2 each. A text without any field scores 0.
        """
        text = text.strip()
        values = _read_fields(text, self._names, False, True)
        present = [any(values[name] is not None for name in names) for names in self._fields]
        if not any(present):
            return 0.0
        well_formed = all(text.count(f"<{name}>") == text.count(f"</{name}>") for name in self._names)
        starts = any(text.startswith(f"<{name}>") for name in self._fields[0])
        ends = any(text.endswith(f"</{name}>") for name in self._fields[-1])
        return 0.4 * sum(present) / len(present) + 0.2 * (well_formed + starts + ends)

    @property
    def reasoning_tag(self) -> str:
        """Name of the field for reasoning, or `think` without such a field."""
        return next((name for name in self._names if name in TAGS), "think")

    def _answer(self, text: str) -> Any | None:
        # `parse` is not overridden, so other fields are not needed
        if getattr(self.parse, "__func__", None) is XMLParser.parse:
            values = list(_read_fields(text, self._answers, True, True).values())
        else:
            fields = self.parse(text, last=True)
            values = [getattr(fields, name) for name in self._answers]
        value = next((value for value in values if value is not None), None)
        return None if value is None else Parser.parse(self, value)


def _read_fields(text: str, names: Sequence[str], strip: bool, last: bool) -> dict[str, str | None]:
    """Return the text of each field's first or last occurrence; None if the field is missing."""
    values: dict[str, str | None] = {}
    outside = read_reasoning(text).outside
    for name in names:
        occurrences = find_tagged(text if name in TAGS else outside, name)
        value = occurrences[-last] if occurrences else None
        values[name] = value.strip() if value is not None and strip else value
    return values


def find_tagged(text: str, name: str) -> list[str]:
    """Return the text between each `</name>` and the nearest `<name>` before it, unstripped.

    An opening tag that is followed by another opening tag was only mentioned, so it does not include any
    text.
    """
    opening, closing = f"<{name}>", f"</{name}>"
    contents: list[str] = []
    begin = 0
    while (end := text.find(closing, begin)) >= 0:
        start = text.rfind(opening, begin, end)
        if start >= 0:
            contents.append(text[start + len(opening) : end])
        begin = end + len(closing)
    return contents
