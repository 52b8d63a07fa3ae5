"""Finds answers that the model can see before it gives them: in the prompt, or in a tool's output."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from statistics import fmean
from typing import Any

from wander.parsers import message_text
from wander.types import Example, Message, Record, Rollout

SHARE = 0.5
"""Threshold of the check: the minimum difference between how often prompts contain their own answer and how
often they contain the answers of other examples. A prompt that lists every choice, or shows solved examples,
is therefore not reported as a leak."""
_MOST_OTHERS = 10
_LEAST = 3
"""Minimum length of an answer whose occurrence cannot be a coincidence."""
_LABEL = (
    r"\b(?:answers?|solution|target|ground[ _-]?truth|gold|expected|correct|label|result)\w*[\"'*_`)\]\s]*"
    r"(?:\bis\b|\bare\b|=|:|->|→)+[\"'*_`(\[{<\s]*"
)


class LeakedAnswer(Record):
    """Frequency with which prompts contain their answer, over the rows that were read."""

    labeled: float = 0.0
    """Share of prompts with their answer after a word like `answer:`, minus the share with another's answer
    there."""
    held: float = 0.0
    """The same share for the answer anywhere in the prompt, counting only sufficiently long answers."""
    example_id: str | None = None
    rows: int = 0


def find_leaked_answer(examples: Sequence[Example]) -> LeakedAnswer:
    """Compare every prompt with its own answer and with those of other examples."""
    texts = [(example, _text(example.prompt), _answer(example.answer)) for example in examples]
    rows = [row for row in texts if row[2]]
    leak = LeakedAnswer(rows=len(rows))
    first: dict[str, str] = {}
    for name, pattern, least in (("labeled", _LABEL, 1), ("held", "", _LEAST)):
        shares = []
        for position, (example, prompt, answer) in enumerate(rows):
            if len(answer) < least:
                shares.append(0.0)
                continue
            has_own = _holds(prompt, answer, pattern)
            if has_own:
                first.setdefault(name, example.example_id)
            others = [other for _, _, other in rows[position + 1 :] + rows[:position] if other != answer]
            chance = [_holds(prompt, other, pattern) for other in others[:_MOST_OTHERS]]
            shares.append(has_own - (fmean(chance) if chance else 0.0))
        setattr(leak, name, fmean(shares) if shares else 0.0)
    kind = "labeled" if leak.labeled >= SHARE else "held" if leak.held >= SHARE else ""
    leak.example_id = first.get(kind)
    return leak


def find_leaking_tool(rollout: Rollout) -> str | None:
    """Return the name of a tool that revealed the answer to a model before the model gave it."""
    answer = _answer(rollout.answer)
    prompt = _text(rollout.prompt)
    if len(answer) < _LEAST or _holds(prompt, answer):
        return None
    names: dict[str, str] = {}
    for message in rollout.completion[:-1]:  # nobody can use an answer in the last message
        for call in message.get("tool_calls") or []:
            names[call.get("id", "")] = call["function"]["name"]
        if message.get("role") == "tool" and _holds(message_text(message).casefold(), answer):
            return names.get(str(message.get("tool_call_id")), "?")
        if message.get("role") == "assistant" and _holds(json.dumps(message, default=str).casefold(), answer):
            return None
    return None


def _text(messages: Sequence[Message]) -> str:
    return "\n".join(message_text(message) for message in messages).casefold()


def _answer(answer: Any) -> str:
    text = (
        answer if isinstance(answer, str) else json.dumps(answer, default=str) if answer is not None else ""
    )
    return text.strip().casefold()


def _holds(text: str, answer: str, before: str = "") -> bool:
    return re.search(f"{before}(?<!\\w){re.escape(answer)}(?!\\w)", text) is not None
