"""Scripted players: `expert` knows the statement for every order, and `random` changes something."""

from __future__ import annotations

import json
from collections.abc import Callable

from wander.clients import ModelRequest
from wander.parsers import message_text
from wander.seeding import derived_rng
from wander.types import Message

from database_session.shop import TASKS, fill, statement_for

Player = Callable[[ModelRequest], Message]


def order_in(request: ModelRequest) -> str:
    """Return the order of the user."""
    return message_text(next(each for each in request.own_messages if each["role"] == "user"))


def call(request: ModelRequest, statement: str) -> Message:
    """Return a message that runs a statement."""
    function = {"name": "sql", "arguments": json.dumps({"statement": statement})}
    calls = [{"id": f"call_{request.turn}", "type": "function", "function": function}]
    return {"role": "assistant", "content": "", "tool_calls": calls}


def expert(request: ModelRequest) -> Message:
    """Run the statement for the order."""
    statement = statement_for(order_in(request))
    if request.turn or statement is None:
        return {"role": "assistant", "content": "done"}
    return call(request, statement)


def random(request: ModelRequest) -> Message:
    """Run the statement of any order."""
    if request.turn:
        return {"role": "assistant", "content": "done"}
    rng = derived_rng("database_session player", request.seed)
    return call(request, fill(rng.choice(rng.choice(TASKS)), rng)[1])
