"""Scripted players: `expert` follows the links of a question, and `random` reads any article."""

from __future__ import annotations

import json
import re
from collections.abc import Callable

from wander.clients import ModelRequest
from wander.parsers import message_text
from wander.seeding import derived_rng
from wander.types import Message

Player = Callable[[ModelRequest], Message]

STARTS = (
    r"in which the (.+) stands",
    r"founder of (.+?)(?: born)?\?",
    r"year was (.+) born",
    r"taught (.+)\?",
)
LINKS = (r"stands in (\w+)\.", r"founded in \d+ by ([^.]+)\.")


def call(request: ModelRequest, name: str, **arguments: str) -> Message:
    """Return a message that calls a tool."""
    function = {"name": name, "arguments": json.dumps(arguments)}
    calls = [{"id": f"call_{request.turn}", "type": "function", "function": function}]
    return {"role": "assistant", "content": "", "tool_calls": calls}


def answer(text: str) -> Message:
    """Return a message with the answer."""
    return {"role": "assistant", "content": f"<answer>{text}</answer>"}


def expert(request: ModelRequest) -> Message:
    """Search the article where the question starts, then follow its links."""
    question = message_text(next(each for each in request.own_messages if each["role"] == "user"))
    start = next(found[1] for pattern in STARTS if (found := re.search(pattern, question)))
    last = message_text(request.messages[-1])
    if request.turn == 0:
        return call(request, "search", query=start)
    if request.turn == 1:
        return call(request, "read", title=start)
    for pattern in LINKS:
        if found := re.search(pattern, last):
            return call(request, "read", title=found[1])
    wanted = r"born in (\d+)" if "born" in question else r"learned from ([^.]+)\."
    return answer(re.findall(wanted, last)[0])


def random(request: ModelRequest) -> Message:
    """Search a word of the question, read an article, and answer with a year or a name in it."""
    rng = derived_rng("wiki_search player", request.seed)
    last = message_text(request.messages[-1])
    if request.turn == 0:
        return call(request, "search", query=rng.choice(re.findall(r"[A-Z]\w+", last)))
    if request.turn == 1:
        titles = json.loads(last)
        return call(request, "read", title=rng.choice(titles)) if titles else answer("none")
    return answer(rng.choice(re.findall(r"\d+|[A-Z]\w+ [A-Z]\w+", last) or ["none"]))
