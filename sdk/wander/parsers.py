"""Parsers: how an answer is found in what a model wrote.

Everything here takes malformed output in its stride: a parser never raises on text, and takes time linear in
its length.
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
    """Finds the answer in a completion: the text without reasoning, passed through `extract_fn` if given.

    Reasoning that was begun and not ended leaves no answer (`wander.reasoning`).
    """

    def __init__(self, extract_fn: Callable[[str], Any] | None = None) -> None:
        self.extract_fn = extract_fn

    def parse(self, text: str) -> Any:
        """Return what `extract_fn` makes of a text."""
        return text if self.extract_fn is None else self.extract_fn(text)

    def parse_answer(self, completion: Messages | str) -> Any | None:
        """Return the answer of the last assistant message, or None if there is no such message."""
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
        """Return the results of tools."""
        return [message for message in completion if message.get("role") == "tool"]

    def get_system_messages(self, completion: Messages) -> Messages:
        """Return the system messages."""
        return [message for message in completion if message.get("role") == "system"]

    def get_format_reward_func(self) -> FormatReward:
        """Return a reward function that judges the form: the mean over assistant messages, from 0 to 1.

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
        """Return a message as one text, its reasoning between tags as if the model had written them."""
        text = message_text(message)
        reading = read_reasoning(text)
        if reading.blocks or not has_reasoning(message):
            return reading.opening + text
        tag, reasoning = self.reasoning_tag, message.get("reasoning_content") or "..."
        return f"<{tag}>\n{reasoning}\n</{tag}>\n{text}"

    @property
    def reasoning_tag(self) -> str:
        """The tag between which `written` puts reasoning."""
        return "think"

    def format_score(self, text: str) -> float:
        """Return how well one text keeps the form, from 0 to 1; a plain parser accepts any."""
        return 1.0


class ThinkParser(Parser):
    """Takes what follows the reasoning, and nothing if there is no reasoning."""

    def parse(self, text: str) -> Any:
        """Return the text after the reasoning, stripped, through `extract_fn`; empty without reasoning."""
        reading = read_reasoning(text)
        return super().parse(reading.answer.strip() if reading.blocks else "")

    def parse_answer(self, completion: Messages | str) -> Any | None:
        """Return the answer of the last assistant message, or None if there is no such message."""
        if isinstance(completion, str):
            return self.parse(completion)
        messages = self.get_assistant_messages(completion)
        return self.parse(self.written(messages[-1])) if messages else None

    def format_score(self, text: str) -> float:
        """1.0 for one piece of reasoning at the start with something after it, else 0.0."""
        reading = read_reasoning(text)
        return 1.0 if reading.blocks == 1 and reading.at_start and reading.answer.strip() else 0.0


class MaybeThinkParser(Parser):
    """Takes what follows the reasoning, or everything if there is no reasoning."""

    def parse(self, text: str) -> Any:
        """Return the text without its reasoning, stripped, through `extract_fn`."""
        return super().parse(without_reasoning(text).strip())


class XMLParser(Parser):
    """Reads fields such as `<answer>...</answer>`.

    A field is a tag name, or a tuple of tag names that may stand for one another; the first is the one that
    `format` writes. `answer_field` names the field that holds the answer; its alternatives count too.
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
        """Return an object with one attribute for each tag: the field's text, or None if it is missing.

        Takes the first occurrence of a field, or with `last` the last one. A field without its closing tag is
        missing. Tags inside reasoning do not count, unless the field is the reasoning (`think`).
        """
        return SimpleNamespace(**_found(text, self._names, strip, last))

    def parse_answer(self, completion: Messages | str) -> Any | None:
        """Return the answer field of the last assistant message that has one, or None.

        The last occurrence in a message counts.
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
        """Return the expected form, to be shown in a prompt."""
        lines = []
        for names in self._fields:
            shown = names[0] if len(names) == 1 else f"[ {' | '.join(names)} ]"
            lines.append(f"<{shown}>\n...\n</{shown}>")
        return "\n".join(lines)

    def format(self, **values: Any) -> str:
        """Write the fields in order; raises `ValueError` when one is missing or unknown."""
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
        """Score the form of one text from 0 to 1.

        0.4 for the share of fields that are there, and 0.2 each for well-formed tags, for starting with the
        first field and for ending with the last one. A text without any field scores 0.
        """
        text = text.strip()
        found = _found(text, self._names, False, True)
        present = [any(found[name] is not None for name in names) for names in self._fields]
        if not any(present):
            return 0.0
        well_formed = all(text.count(f"<{name}>") == text.count(f"</{name}>") for name in self._names)
        starts = any(text.startswith(f"<{name}>") for name in self._fields[0])
        ends = any(text.endswith(f"</{name}>") for name in self._fields[-1])
        return 0.4 * sum(present) / len(present) + 0.2 * (well_formed + starts + ends)

    @property
    def reasoning_tag(self) -> str:
        """The field for reasoning, if there is one."""
        return next((name for name in self._names if name in TAGS), "think")

    def _answer(self, text: str) -> Any | None:
        if getattr(self.parse, "__func__", None) is XMLParser.parse:  # then nobody asks for the other fields
            values = list(_found(text, self._answers, True, True).values())
        else:
            found = self.parse(text, last=True)
            values = [getattr(found, name) for name in self._answers]
        value = next((value for value in values if value is not None), None)
        return None if value is None else Parser.parse(self, value)


def _found(text: str, names: Sequence[str], strip: bool, last: bool) -> dict[str, str | None]:
    """Return what stands in the first, or last, occurrence of each field; None if it is missing."""
    found: dict[str, str | None] = {}
    outside = read_reasoning(text).outside
    for name in names:
        occurrences = find_tagged(text if name in TAGS else outside, name)
        value = occurrences[-last] if occurrences else None
        found[name] = value.strip() if value is not None and strip else value
    return found


def find_tagged(text: str, name: str) -> list[str]:
    """Return what stands between each `</name>` and the nearest `<name>` before it, unstripped.

    An opening tag that is followed by another one was only mentioned, so it does not swallow any text.
    """
    opening, closing = f"<{name}>", f"</{name}>"
    found: list[str] = []
    begin = 0
    while (end := text.find(closing, begin)) >= 0:
        start = text.rfind(opening, begin, end)
        if start >= 0:
            found.append(text[start + len(opening) : end])
        begin = end + len(closing)
    return found
