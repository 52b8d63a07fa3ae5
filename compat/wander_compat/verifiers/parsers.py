"""Parsers of the classic API, which extract an answer from a completion.

They read text exactly like upstream, because published rewards depend on it. `wander.parsers` has different
rules for reasoning and for repeated tags.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

from wander_compat.verifiers.messages.conversion import field_of, text_of

Extract = Callable[[str], Any]


def identity(text: str) -> str:
    """Return the text unchanged."""
    return text


class Parser:
    """Extracts the answer from a completion. This base class passes the text through `extract_fn`."""

    def __init__(self, extract_fn: Extract = identity) -> None:
        self.logger = logging.getLogger(f"verifiers.parsers.{type(self).__name__}")
        self.extract_fn = extract_fn

    def parse(self, text: str) -> Any:
        """Return the result of `extract_fn` for a text."""
        return self.extract_fn(text)

    def parse_answer(self, completion: Any) -> Any:
        """Return the answer in the last assistant message or in a text, or None if it is missing."""
        if isinstance(completion, str):
            return self.parse(completion)
        messages = self.get_assistant_messages(completion)
        return self.parse(self._text_of_message(messages[-1])) if messages else None

    def _messages_of_role(self, completion: Any, role: str) -> list[Any]:
        if isinstance(completion, str):
            return []
        return [message for message in completion if field_of(message, "role") == role]

    def _text_of_message(self, message: Any) -> str:
        return text_of(field_of(message, "content", ""))

    def get_assistant_messages(self, completion: Any) -> list[Any]:
        """Return the model's messages."""
        return self._messages_of_role(completion, "assistant")

    def get_user_messages(self, completion: Any) -> list[Any]:
        """Return the user's messages."""
        return self._messages_of_role(completion, "user")

    def get_tool_messages(self, completion: Any) -> list[Any]:
        """Return the results of tools."""
        return self._messages_of_role(completion, "tool")

    def get_system_messages(self, completion: Any) -> list[Any]:
        """Return the system messages."""
        return self._messages_of_role(completion, "system")

    def get_format_reward_func(self) -> Callable[..., float]:
        """Return a reward function that accepts any format."""

        def format_reward_func(completion: Any, **kwargs: Any) -> float:
            return 1.0

        return format_reward_func

    def _mean_over_messages(self, judged: Callable[[str], float]) -> Callable[..., float]:
        """Return a reward function: the mean of `judged` over the assistant messages, or 0 without any."""

        def format_reward_func(completion: Any, **kwargs: Any) -> float:
            messages = self.get_assistant_messages(completion)
            if not messages:
                return 0.0
            return sum(judged(self._text_of_message(message)) for message in messages) / len(messages)

        return format_reward_func


class ThinkParser(Parser):
    """Takes the text after the last `</think>`, or nothing if the tag is missing."""

    def parse(self, text: str) -> Any:
        """Return the text after the reasoning, passed through `extract_fn`."""
        _, tag, tail = text.rpartition("</think>")
        return self.extract_fn(tail.strip() if tag else "")

    def get_format_reward_func(self) -> Callable[..., float]:
        """Return a reward function: the share of messages with one `<think>` at the start and an answer."""

        def judged(text: str) -> float:
            once = text.count("<think>") == text.count("</think>") == 1
            return float(once and text.strip().startswith("<think>") and not text.endswith("</think>"))

        return self._mean_over_messages(judged)


class MaybeThinkParser(Parser):
    """Takes the text after the last `</think>`, or all of it if the tag is missing."""

    def parse(self, text: str) -> Any:
        """Return the text without its reasoning, passed through `extract_fn`."""
        return self.extract_fn(text.rpartition("</think>")[2].strip())


class XMLParser(Parser):
    """Reads fields such as `<answer>...</answer>`. A tuple names alternative tags of one field."""

    def __init__(
        self,
        fields: Sequence[str | tuple[str, ...]],
        answer_field: str = "answer",
        extract_fn: Extract = identity,
    ) -> None:
        super().__init__(extract_fn)
        self.answer_field = answer_field
        self._fields = [_alternatives(field) for field in fields]
        first = self.get_fields()
        if len(set(first)) != len(first):
            raise ValueError(f"field names must be unique, got {', '.join(first)}")

    def parse(self, text: str, strip: bool = True, last: bool = False) -> Any:
        """Return an object with one attribute per tag: its text, or None if it is missing."""
        parsed = SimpleNamespace()
        for names in self._fields:
            for name in names:
                setattr(parsed, name, _tag_text(text, name, strip=strip, last=last))
        return parsed

    def parse_answer(self, completion: Any) -> Any:
        """Return the answer field of the last assistant message that has one, or None."""
        if isinstance(completion, str):
            return self._answer_of_parsed(self.parse(completion, last=True))
        for message in reversed(self.get_assistant_messages(completion)):
            answer = self._answer_of_parsed(self.parse(self._text_of_message(message)))
            if answer is not None:
                return answer
        return None

    def _answer_of_parsed(self, parsed: Any) -> Any:
        return getattr(parsed, self.answer_field, None)

    def get_fields(self) -> list[str]:
        """Return the first name of every field, in order."""
        return [names[0] for names in self._fields]

    def get_format_str(self) -> str:
        """Return the format for use in a prompt."""
        shown = [names[0] if len(names) == 1 else f"[ {' | '.join(names)} ]" for names in self._fields]
        return "\n".join(f"<{name}>\n...\n</{name}>" for name in shown)

    def format(self, **kwargs: Any) -> str:
        """Format the fields in order. Raises `ValueError` if one is missing."""
        lines = []
        for names in self._fields:
            name_given = next((name for name in names if name in kwargs), None)
            if name_given is None:
                raise ValueError(f"Missing value for field `{names[0]}` (one of {', '.join(names)})")
            lines.append(f"<{names[0]}>\n{kwargs[name_given]}\n</{names[0]}>")
        return "\n".join(lines)

    def get_format_reward_func(self) -> Callable[..., float]:
        """Return a reward function that scores the format of each assistant message, from 0 to 1."""
        return self._mean_over_messages(self._format_score)

    def _format_score(self, text: str) -> float:
        """Return 0.4 for the share of fields, 0.2 for spacing, and 0.2 each for starting and ending with a
        field.

        If any field can be read, other fields count as soon as one of their tags is present. Spacing is
        checked after the tags were read, which ignores spaces, so this part is always granted.
        """
        text = text.strip()
        score = 0.2
        if any(_tag_text(text, name) is not None for names in self._fields for name in names):
            there = [any(f"<{n}>" in text or f"</{n}>" in text for n in names) for names in self._fields]
            score += 0.4 * sum(there) / len(there)
        if self._fields:
            score += 0.2 * any(text.startswith(f"<{name}>") for name in self._fields[0])
            score += 0.2 * any(text.endswith(f"</{name}>") for name in self._fields[-1])
        return score


def _alternatives(field: Any) -> tuple[str, ...]:
    names = (field,) if isinstance(field, str) else field
    if not isinstance(names, tuple) or not all(isinstance(name, str) for name in names):
        raise TypeError(f"a field is a name or a tuple of names, not `{field!r}`")
    if not names:
        raise ValueError("a field needs at least one name")
    return names


def _tag_text(text: str, name: str, *, strip: bool = True, last: bool = False) -> str | None:
    """Return the text between a tag's opening and closing, for its first or last occurrence."""
    tag = re.escape(name)
    matches = re.findall(rf"<{tag}>\s*(.*?)\s*</{tag}>", text, re.DOTALL)
    if not matches:
        return None
    value: str = matches[-1 if last else 0]
    return value.strip() if strip else value
