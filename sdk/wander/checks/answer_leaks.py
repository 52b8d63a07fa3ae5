"""Where an answer stands before the model has given it: in the prompt, or in what a tool returns."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from statistics import fmean
from typing import Any

from wander.parsers import message_text
from wander.types import Example, Message, Record, Rollout

SHARE = 0.5
"""How much oftener an answer has to stand in its own prompt than the other examples' answers do: a prompt
that lists every choice, or shows solved examples, tells nothing."""
_MOST_OTHERS = 10
_LEAST = 3
"""Letters of an answer that are no coincidence."""
_LABEL = (
    r"\b(?:answers?|solution|target|ground[ _-]?truth|gold|expected|correct|label|result)\w*[\"'*_`)\]\s]*"
    r"(?:\bis\b|\bare\b|=|:|->|→)+[\"'*_`(\[{<\s]*"
)


class ToldAnswer(Record):
    """How often prompts hold their answer, counted over the rows that were read."""

    labelled: float = 0.0
    """Share of prompts that hold it after a word like `answer:`, less the share that holds another's so."""
    held: float = 0.0
    """The same for prompts that hold it anywhere, among answers long enough to be no coincidence."""
    example_id: str | None = None
    rows: int = 0


def find_told(examples: Sequence[Example]) -> ToldAnswer:
    """Compare every prompt with its own answer and with those of other examples."""
    read = [(each, _text(each.prompt), _answer(each.answer)) for each in examples]
    rows = [row for row in read if row[2]]
    found = ToldAnswer(rows=len(rows))
    first: dict[str, str] = {}
    for name, pattern, least in (("labelled", _LABEL, 1), ("held", "", _LEAST)):
        shares = []
        for place, (example, prompt, answer) in enumerate(rows):
            if len(answer) < least:
                shares.append(0.0)
                continue
            own = _holds(prompt, answer, pattern)
            if own:
                first.setdefault(name, example.example_id)
            others = [other for _, _, other in rows[place + 1 :] + rows[:place] if other != answer]
            luck = [_holds(prompt, other, pattern) for other in others[:_MOST_OTHERS]]
            shares.append(own - (fmean(luck) if luck else 0.0))
        setattr(found, name, fmean(shares) if shares else 0.0)
    told = "labelled" if found.labelled >= SHARE else "held" if found.held >= SHARE else ""
    found.example_id = first.get(told)
    return found


def find_telling_tool(rollout: Rollout) -> str | None:
    """Return the name of a tool that gave the answer to a model that had not said it, and let it go on."""
    answer = _answer(rollout.answer)
    said = _text(rollout.prompt)
    if len(answer) < _LEAST or _holds(said, answer):
        return None
    names: dict[str, str] = {}
    for message in rollout.completion[:-1]:  # of the last one nobody can make use
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
