"""Scripted players: `expert` knows which files to read, `random` answers with a word that it read."""

from __future__ import annotations

import json
import re
from collections.abc import Callable

from wander.clients import ModelRequest
from wander.parsers import message_text
from wander.seeding import derived_rng
from wander.types import Message

Player = Callable[[ModelRequest], Message]


def call(request: ModelRequest, tool: str, **arguments: str) -> Message:
    """Return a message that calls a tool."""
    function = {"name": tool, "arguments": json.dumps(arguments)}
    calls = [{"id": f"call_{request.turn}", "type": "function", "function": function}]
    return {"role": "assistant", "content": "", "tool_calls": calls}


def answer(text: object) -> Message:
    """Return a message with the answer."""
    return {"role": "assistant", "content": f"<answer>{text}</answer>"}


def question_in(request: ModelRequest) -> str:
    """Return the question of the user."""
    return message_text(next(each for each in request.own_messages if each["role"] == "user"))


def expert(request: ModelRequest) -> Message:
    """Find the service's files, read the right one, and look up the team if that is asked for."""
    question, last = question_in(request), message_text(request.messages[-1])
    if request.turn == 0:
        return call(request, "find_files", name=re.findall(r"\w+-\w+", question)[0])
    if request.turn == 1:
        log, settings = sorted(last.splitlines(), key=lambda path: path.endswith("settings.ini"))
        return call(request, "read_file", path=log if "ERROR" in question else settings)
    if "port" in question:
        return answer(re.findall(r"port = (\d+)", last)[0])
    if "ERROR" in question:
        return answer(last.count(" ERROR "))
    if team := re.search(r"team = (\w+)", last):
        return call(request, "read_file", path=f"/teams/{team[1]}.txt")
    return answer(re.findall(r"on call: (\w+)", last)[0])


def random(request: ModelRequest) -> Message:
    """Read some file of the service, and answer with a word of it."""
    rng, last = derived_rng("mcp_files player", request.seed), message_text(request.messages[-1])
    if request.turn == 0:
        return call(request, "find_files", name=re.findall(r"\w+-\w+", last)[0])
    if request.turn == 1:
        return call(request, "read_file", path=rng.choice(last.splitlines()))
    return answer(rng.choice(re.findall(r"\w+", last)))
