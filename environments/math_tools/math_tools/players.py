"""Scripted players: `expert` calls the right tools, `careless` has a bad habit, `random` calls any tool."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

from wander.clients import ModelRequest
from wander.errors import ModelError
from wander.parsers import message_text
from wander.seeding import derived_rng
from wander.types import Message

Player = Callable[[ModelRequest], Message]


def call(request: ModelRequest, name: str, **arguments: Any) -> Message:
    """Return a message that calls a tool."""
    function = {"name": name, "arguments": json.dumps(arguments)}
    calls = [{"id": f"call_{request.turn}", "type": "function", "function": function}]
    return {"role": "assistant", "content": "", "tool_calls": calls}


def answer(result: object) -> Message:
    """Return a message with the answer."""
    return {"role": "assistant", "content": f"<answer>{result}</answer>"}


def question_in(request: ModelRequest) -> str:
    """Return the last question of the user; examples that are shown come before it."""
    return [message_text(each) for each in request.messages if each["role"] == "user"][-1]


def expert(request: ModelRequest) -> Message:
    """Return the next step of the calculation."""
    question, last = question_in(request), message_text(request.messages[-1])
    a, b, *more = map(int, re.findall(r"\d+", question))
    factorise, remainder = "prime factors" in question, "remainder" in question
    if request.turn == 0:
        operation = "*" if more else question.split()[3]
        return call(request, "calculate", a=a, operation=operation, b=b)
    if request.turn == 1 and more:
        return call(request, "calculate", a=int(last), operation="%" if remainder else "+", b=more[0])
    if request.turn == 2 and factorise:
        return call(request, "prime_factors", n=int(last))
    return answer(sum(json.loads(last)) if factorise else last)


def careless(wrong_prob: float = 0.5, seed: int = 0) -> Player:
    """Return an expert that, with that probability, begins with a sum instead of the right operation."""
    if not 0 <= wrong_prob <= 1:
        raise ModelError(f"`wrong_prob` must be between 0 and 1, got {wrong_prob}")

    def play(request: ModelRequest) -> Message:
        message = expert(request)
        rng = derived_rng("careless math_tools player", seed, request.seed)
        if request.turn or rng.random() >= wrong_prob:
            return message
        asked = json.loads(message["tool_calls"][0]["function"]["arguments"])
        return call(request, "calculate", **{**asked, "operation": "+"})

    return play


def random(request: ModelRequest) -> Message:
    """Calculate something with the numbers of the question, and answer with what comes out."""
    rng = derived_rng("math_tools player", request.seed)
    numbers = list(map(int, re.findall(r"\d+", question_in(request))))
    if request.turn == 0:
        operation = rng.choice(["+", "-", "*", "//", "%"])
        return call(request, "calculate", a=rng.choice(numbers), operation=operation, b=rng.choice(numbers))
    return answer(message_text(request.messages[-1]))
