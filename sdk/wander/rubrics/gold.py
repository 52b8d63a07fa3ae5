"""How an environment says that an example is played right, as a script."""

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
    """Return the script for what `Environment.gold` returned, or as the answer column suggests.

    None where neither says how.
    """
    if gold is None:
        text = write_answer(parser, example) if turn_limit == 1 else None
        return None if text is None else [text]
    if isinstance(gold, dict) and gold and gold.keys() == set(players):
        return _each_as_its_own({player: _script(script) for player, script in gold.items()})
    return _script(gold)


def _each_as_its_own(scripts: dict[str, Script | list[Reply]]) -> Script:
    """Return the player that plays each of an environment's players by a script of its own."""

    def play(request: ModelRequest) -> Any:
        script = scripts[str(request.player)]
        if callable(script):
            return script(request)
        said = sum(message.get("role") == "assistant" for message in request.messages)
        if said >= len(script):
            raise ModelError(
                f"the gold completions of `{request.player}` are {len(script)}, and it is asked again"
            )
        return script[said]

    return play


def _script(gold: Any) -> Script | list[Reply]:
    if isinstance(gold, str | dict):
        return [gold]
    return gold if callable(gold) else list(gold)


def write_answer(parser: Parser, example: Example) -> str | None:
    """Return a completion in which the parser finds the example's answer, or None when none of ours does."""
    answer = example.answer
    if answer in ("", None):
        return None
    text = answer if isinstance(answer, str) else json.dumps(answer)
    for written in _writings(parser, text):
        found = parser.parse_answer([{"role": "assistant", "content": written}])
        if found is not None and found in (answer, text):
            return written
    return None


def _writings(parser: Parser, answer: str) -> list[str]:
    boxed = f"\\boxed{{{answer}}}"
    writings = [] if isinstance(parser, XMLParser) else [answer, boxed, f"#### {answer}"]
    if isinstance(parser, XMLParser):
        values = {name: "The answer follows." for name in parser.get_fields()}
        for written in (answer, boxed):
            writings.append(parser.format(**{**values, parser.answer_field: written}))
    return [*writings, *(f"<think>\nThe answer follows.\n</think>\n{each}" for each in writings)]
