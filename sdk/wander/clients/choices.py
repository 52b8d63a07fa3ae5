"""What an environment may answer: drawn in ordinary play, walked one by one in an exhaustive evaluation.

A line is one sequence of an environment's choices. The host asks for it by `Client.line`. The rollout
publishes under `LINE` what it took and what else it could have taken, so a recorded line is replayed like any
other rollout.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from wander.errors import BoundaryError, EnvironmentFault
from wander.types import Rollout, State, canonical_json

Option = TypeVar("Option")

LINE = "line_of_play"
"""Key of `Rollout.info`: `choices` taken, and the `options` of each."""
PENDING = "choice_pending"
"""The stop reason of a rollout that waits for a choice which nobody has made yet."""


class ChoicePending(BoundaryError):
    """Ends a rollout at the first choice that the host has not made; no failure."""


def ask_for_line(choices: Sequence[Any], *, stop: bool = False) -> dict[str, Any]:
    """Return what `Client.line` gives to have a line played: these choices, then the first option of each.

    `stop` ends the rollout instead where the choices are used up.
    """
    return {"choices": list(choices), "stop": stop}


def ask_for_recorded(line: Mapping[str, Any]) -> dict[str, Any]:
    """Return what has a recorded line played again.

    It asks as the evaluation did: for the choices up to the last that is not the first of its options.
    """
    choices = list(line.get("choices", ()))
    options = list(line.get("options", ()))
    while choices and len(options) >= len(choices) and options[len(choices) - 1][:1] == choices[-1:]:
        choices.pop()
    return ask_for_line(choices)


def choose(
    state: State, options: Sequence[Option], drawn: Callable[[], Option], position: str = ""
) -> Option:
    """Return the option that the line asked for takes; what `drawn` returns in ordinary play."""
    asked = state["host"].line if "host" in state else None
    if asked is None:
        return drawn()
    if not options:
        raise EnvironmentFault("`choose` got no options")
    taken = state["public"].setdefault(LINE, {"choices": [], "options": []})
    place = len(taken["choices"])
    if place < len(asked["choices"]):
        # Equal as JSON: what was asked for may have travelled.
        wanted = canonical_json(asked["choices"][place])
        found = [option for option in options if canonical_json(option) == wanted]
        if not found:
            raise EnvironmentFault(
                f"the line asks for {wanted}, which is none of the options {canonical_json(list(options))}"
            )
        chosen = found[0]
    elif asked.get("stop"):
        taken["pending"], taken["position"] = list(options), position
        raise ChoicePending("the line has no further choice")
    else:
        chosen = options[0]
    taken["choices"].append(chosen)
    taken["options"].append(list(options))
    return chosen


def line_of(rollout: Rollout) -> dict[str, Any]:
    """Return the `choices` of a played line and the `options` of each; both empty where none was made."""
    line = rollout.info.get(LINE) or {}
    return {"choices": list(line.get("choices", [])), "options": list(line.get("options", []))}
