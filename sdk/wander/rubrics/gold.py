"""Scripts that play an example correctly, as declared by its environment."""

from __future__ import annotations

import json
from collections.abc import Collection
from typing import Any

from wander.clients.base import ModelRequest
from wander.clients.scripted import Reply, Script
from wander.errors import ModelError
from wander.parsers import Parser, XMLParser
from wander.types import Example


def script_of(
    gold: Any, example: Example, parser: Parser, turn_limit: int | None, players: Collection[str]
) -> Script | list[Reply] | None:
    """Return the script that plays an example correctly, or None if it is unknown.

    `gold` is the return value of `Environment.gold`. If it is None and the environment has a single turn, the
    script is made from the answer column.
    """
    if gold is None:
        text = write_answer(parser, example) if turn_limit == 1 else None
        return None if text is None else [text]
    if isinstance(gold, dict) and gold and gold.keys() == set(players):
        return _one_script_per_player({player: _script(script) for player, script in gold.items()})
    return _script(gold)


def _one_script_per_player(scripts: dict[str, Script | list[Reply]]) -> Script:
    """Return a script that plays each of an environment's players with its own script."""

    def play(request: ModelRequest) -> Any:
        script = scripts[str(request.player)]
        if callable(script):
            return script(request)
        moves_made = sum(message.get("role") == "assistant" for message in request.messages)
        if moves_made >= len(script):
            raise ModelError(f"`{request.player}` has only {len(script)} gold completions, but moves again")
        return script[moves_made]

    return play


def _script(gold: Any) -> Script | list[Reply]:
    if isinstance(gold, str | dict):
        return [gold]
    return gold if callable(gold) else list(gold)


def write_answer(parser: Parser, example: Example) -> str | None:
    """Return a completion that the parser reads as the example's answer, or None if no format works."""
    answer = example.answer
    if answer in ("", None):
        return None
    text = answer if isinstance(answer, str) else json.dumps(answer)
    for written in _writings(parser, text):
        parsed = parser.parse_answer([{"role": "assistant", "content": written}])
        if parsed is not None and parsed in (answer, text):
            return written
    return None


def _writings(parser: Parser, answer: str) -> list[str]:
    boxed = f"\\boxed{{{answer}}}"
    writings = [] if isinstance(parser, XMLParser) else [answer, boxed, f"#### {answer}"]
    if isinstance(parser, XMLParser):
        values = {name: "The answer follows." for name in parser.get_fields()}
        for written in (answer, boxed):
            writings.append(parser.format(**{**values, parser.answer_field: written}))
    return [*writings, *(f"<think>\nThe answer follows.\n</think>\n{writing}" for writing in writings)]
