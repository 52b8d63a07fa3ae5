"""Reads the state shared by all rollouts: of the environment, its rubrics and its modules."""

from __future__ import annotations

import hashlib
import itertools
import random
import sys
from collections import deque
from collections.abc import Iterator, Mapping
from typing import Any

from wander.environment import Environment
from wander.envs.group import EnvGroup
from wander.rubrics.group import RubricGroup
from wander.rubrics.rubric import Rubric

_LONGEST = 60
_MOST = 1000


def read_shared(env: Environment, own: str) -> dict[str, str]:
    """Return descriptions of the numbers, texts, lists and generators that outlive a rollout, by name.

    In a dictionary, only existing keys with such values count, so that a cache may grow. `own` is the path of
    the environment's code.
    """
    state: dict[str, str] = {}
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None) or ""
        if (file == own or file.startswith(own.rstrip("/") + "/")) and "site-packages" not in file[
            len(own) :
        ]:
            state |= _read(name, vars(module))
            for key, value in list(vars(module).items()):
                if isinstance(value, type) and value.__module__ == name:
                    state |= _read(f"{name}.{key}", vars(value))
    for place, owner in owners(env, "environment"):
        state |= _read(place, vars(owner))
        for reward_function in owner.functions if isinstance(owner, Rubric) else ():
            function = getattr(reward_function, "function", reward_function)
            names = getattr(getattr(function, "__code__", None), "co_freevars", ())
            cells = getattr(function, "__closure__", None) or ()
            values = {name: cell.cell_contents for name, cell in zip(names, cells, strict=True)}
            state |= _read(f"{place}.{getattr(function, '__name__', 'function')}", values)
    return state


def owners(env: Environment, place: str) -> Iterator[tuple[str, Any]]:
    """Yield an environment, its rubrics and those of its members, each with its name."""
    yield place, env
    yield from _rubrics(env.rubric, f"{place}.rubric")
    if isinstance(env, EnvGroup):
        for name, member in env.members.items():
            yield from owners(member, f"{place}.{name}")


def _rubrics(rubric: Rubric, place: str) -> Iterator[tuple[str, Any]]:
    yield place, rubric
    if isinstance(rubric, RubricGroup):
        for name, member in rubric.members.items():
            yield from _rubrics(member, f"{place}.{name}")


def _read(place: str, values: Mapping[str, Any]) -> dict[str, str]:
    state: dict[str, str] = {}
    for name, value in list(values.items()):
        if name.startswith("__"):
            continue
        if (description := _describe(value)) is not None:
            state[f"{place}.{name}"] = description
        elif isinstance(value, dict) and len(value) <= _MOST:
            inside = {key: _describe(item) for key, item in value.items() if not isinstance(item, str)}
            state |= {
                f"{place}.{name}[{key!r:.40}]": item for key, item in inside.items() if item is not None
            }
    return state


def _describe(value: Any) -> str | None:
    """Describe a value. Returns None for values that may change or cannot be compared."""
    if isinstance(value, bool):
        return None  # usually records whether something was created already
    if isinstance(value, random.Random):
        return f"`random.Random` at {hashlib.sha256(repr(value.getstate()).encode()).hexdigest()[:8]}"
    if isinstance(value, int | float | str | itertools.count) or (
        isinstance(value, list | tuple | deque | bytearray) and len(value) <= _MOST
    ):
        shown = repr(value)
        if isinstance(value, list | tuple | deque) and " at 0x" in shown:
            return f"{len(value)} items"
        return shown if len(shown) <= _LONGEST else f"{shown[:_LONGEST]}... ({len(shown)} characters)"
    return None
