"""Scripted players: `expert` knows the problems, and `random` returns its argument or a constant."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable

from wander.clients import ModelRequest
from wander.parsers import message_text
from wander.seeding import derived_rng

from code_exec.problems import PROBLEMS, argument, task

Player = Callable[[ModelRequest], str]


def expert(request: ModelRequest) -> str:
    """Return the source of the problem's own function."""
    asked = message_text(request.messages[-1])
    for problem in PROBLEMS.values():
        for number in range(2, 26):
            if task(problem, number) == asked:
                source = inspect.getsource(problem)
                name = argument(problem)
                call = f"def solve({name}):\n    return {problem.__name__}({name}, {number})"
                return f"```python\nfrom typing import Any\n\n{source}\n\n{call}\n```"
    return "I do not know that problem."


def random(request: ModelRequest) -> str:
    """Return a function that returns its argument or a constant."""
    name = re.findall(r"solve\((\w+)\)", message_text(request.messages[-1]))[0]
    result = derived_rng("code_exec player", request.seed).choice(
        [name, "0", "[]", "None", f"len(str({name}))"]
    )
    return f"```python\ndef solve({name}):\n    return {result}\n```"
