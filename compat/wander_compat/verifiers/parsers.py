"""Parsers of the classic API: how an answer is found in a completion.

They read text exactly as upstream does, since published rewards rest on that. `wander.parsers` has other
rules for reasoning and for several tags.
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
    """Return the text."""
    return text


class Parser:
    """Finds the answer in a completion; this one takes the text as it is, through `extract_fn`."""

    def __init__(self, extract_fn: Extract = identity) -> None:
        self.logger = logging.getLogger(f"verifiers.parsers.{type(self).__name__}")
        self.extract_fn = extract_fn

    def parse(self, text: str) -> Any:
        """Return what `extract_fn` makes of a text."""
        return self.extract_fn(text)

    def parse_answer(self, completion: Any) -> Any:
        """Return the answer of the last assistant message, or of a text; None when there is none."""
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
        """Return the messages that the model wrote."""
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
        """Return a reward function that accepts any form."""

        def format_reward_func(completion: Any, **kwargs: Any) -> float:
            return 1.0

        return format_reward_func

    def _mean_over_messages(self, judged: Callable[[str], float]) -> Callable[..., float]:
        """Return a reward function: the mean of `judged` over the assistant messages, 0 without any."""

        def format_reward_func(completion: Any, **kwargs: Any) -> float:
            messages = self.get_assistant_messages(completion)
            if not messages:
                return 0.0
            return sum(judged(self._text_of_message(message)) for message in messages) / len(messages)

        return format_reward_func


class ThinkParser(Parser):
    """Takes what follows the last `</think>`, and nothing when the tag is missing."""

    def parse(self, text: str) -> Any:
        """Return the text after the reasoning through `extract_fn`."""
        _, tag, tail = text.rpartition("</think>")
        return self.extract_fn(tail.strip() if tag else "")

    def get_format_reward_func(self) -> Callable[..., float]:
        """Return a reward function: the share of messages with one `<think>` at the start and an answer."""

        def judged(text: str) -> float:
            once = text.count("<think>") == text.count("</think>") == 1
            return float(once and text.strip().startswith("<think>") and not text.endswith("</think>"))

        return self._mean_over_messages(judged)


class MaybeThinkParser(Parser):
    """Takes what follows the last `</think>`, or everything when the tag is missing."""

    def parse(self, text: str) -> Any:
        """Return the text without its reasoning through `extract_fn`."""
        return self.extract_fn(text.rpartition("</think>")[2].strip())


class XMLParser(Parser):
    """Reads fields such as `<answer>...</answer>`; a tuple names tags that may stand for one another."""

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
        """Return an object with one attribute a tag: its text, or None where it is missing."""
        found = SimpleNamespace()
        for names in self._fields:
            for name in names:
                setattr(found, name, _tag_text(text, name, strip=strip, last=last))
        return found

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
        """Return the form, to be shown in a prompt."""
        shown = [names[0] if len(names) == 1 else f"[ {' | '.join(names)} ]" for names in self._fields]
        return "\n".join(f"<{name}>\n...\n</{name}>" for name in shown)

    def format(self, **kwargs: Any) -> str:
        """Write the fields in order; raises `ValueError` when one is missing."""
        lines = []
        for names in self._fields:
            given = next((name for name in names if name in kwargs), None)
            if given is None:
                raise ValueError(f"Missing value for field `{names[0]}` (one of {', '.join(names)})")
            lines.append(f"<{names[0]}>\n{kwargs[given]}\n</{names[0]}>")
        return "\n".join(lines)

    def get_format_reward_func(self) -> Callable[..., float]:
        """Return a reward function that judges the form of each assistant message, from 0 to 1."""
        return self._mean_over_messages(self._format_score)

    def _format_score(self, text: str) -> float:
        """0.4 for the share of fields, 0.2 for spacing, 0.2 each for starting and ending with a field.

        Once any field can be read, another counts as soon as one of its tags is there. Spacing is judged
        after the tags were read, which ignores spaces, so that part is always given.
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
    """Return what stands between a tag's opening and closing, the first time or the last."""
    tag = re.escape(name)
    found = re.findall(rf"<{tag}>\s*(.*?)\s*</{tag}>", text, re.DOTALL)
    if not found:
        return None
    value: str = found[-1 if last else 0]
    return value.strip() if strip else value
