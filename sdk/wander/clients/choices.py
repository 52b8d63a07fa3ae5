"""The choices of an environment: drawn at random in ordinary play, enumerated in an exhaustive evaluation.

A line is a sequence of an environment's choices. The host requests a line with `Client.line`. The rollout
records its choices and their alternatives under `LINE`, so a recorded line can be replayed like any other
rollout.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from wander.errors import EnvironmentFault
from wander.types import Rollout, State, canonical_json

Option = TypeVar("Option")

LINE = "line_of_play"
"""Key of `Rollout.info` with the `choices` that were made, and the `options` of each choice."""


def ask_for_line(choices: Sequence[Any]) -> dict[str, Any]:
    """Return the value of `Client.line` that requests these choices.

    After the last of them, the environment takes the first option of every choice.
    """
    return {"choices": list(choices)}


def ask_for_recorded(line: Mapping[str, Any]) -> dict[str, Any]:
    """Return the value of `Client.line` that replays a recorded line.

    It equals the request of the evaluation: the choices up to the last that is not a first option.
    """
    choices = list(line.get("choices", ()))
    options = list(line.get("options", ()))
    while choices and len(options) >= len(choices) and options[len(choices) - 1][:1] == choices[-1:]:
        choices.pop()
    return ask_for_line(choices)


def choose(state: State, options: Sequence[Option], drawn: Callable[[], Option]) -> Option:
    """Return the option that the requested line prescribes, or the result of `drawn` in ordinary play."""
    requested = state["host"].line if "host" in state else None
    if requested is None:
        return drawn()
    if not options:
        raise EnvironmentFault("`choose` got no options")
    record = state["public"].setdefault(LINE, {"choices": [], "options": []})
    number = len(record["choices"])
    if number < len(requested["choices"]):
        # Options are compared as JSON, because the requested choice may have been sent between processes.
        wanted = canonical_json(requested["choices"][number])
        matches = [option for option in options if canonical_json(option) == wanted]
        if not matches:
            raise EnvironmentFault(
                f"the line requires {wanted}, which is not among the options {canonical_json(list(options))}"
            )
        chosen = matches[0]
    else:
        chosen = options[0]
    record["choices"].append(chosen)
    record["options"].append(list(options))
    return chosen


def line_of(rollout: Rollout) -> dict[str, Any]:
    """Return the `choices` of a rollout and the `options` of each; both may be empty."""
    line = rollout.info.get(LINE) or {}
    return {"choices": list(line.get("choices", [])), "options": list(line.get("options", []))}
