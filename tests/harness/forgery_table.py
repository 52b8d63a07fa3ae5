"""Forgeries of a run as a table: the field, its change, and the level that the result deserves.

Fields begin with `manifest.` or `rollout.` (the first rollout of the run). `refused` means that the hub
stores nothing. `replayed` means that the score does not depend on the field: it is the submitter's claim,
or its value is equivalent.
"""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

Record = dict[str, Any]
Parts = tuple[Record | bytes, list[Record] | bytes]

GONE = object()
DONE: dict[str, Callable[[Any], Any]] = {
    "a hair more": lambda v: v + 1e-9,
    "one more": lambda v: v + 1,
    "below zero": lambda v: -abs(v) - 1,
    "one": lambda v: 1.0,
    "a single one": lambda v: 1,
    "huge": lambda v: 1e308,
    "not a number": lambda v: math.nan,
    "infinite": lambda v: math.inf,
    "as text": str,
    "null": lambda v: None,
    "as a user": lambda v: "user",
    "as a tool": lambda v: "tool",
    "as the system": lambda v: "system",
    "in a list": lambda v: [v],
    "gone": lambda v: GONE,
    "turned": lambda v: not v,
    "longer": lambda v: f"{v} And more.",
    "in capitals": lambda v: v.upper(),
    "emptied": lambda v: type(v)(),
    "emptied text": lambda v: "",
    "a line separator": lambda v: f"{v}\u2028",
    "a newline": lambda v: f"{v}\n",
    "a carriage return": lambda v: f"{v}\r",
    "a space before it": lambda v: f" {v}",
    "a wide space": lambda v: f"{v}\u3000",
    "two spaces": lambda v: f"{v}  v2",
    "like an option": lambda v: f"--hub=https://{v}.example",
    "an address": lambda v: "https://evil.example/v1",
    "somebody's id": lambda v: "0" * 26,
    "a long id": lambda v: "0" * 100,
    "a list of numbers": lambda v: [1, 2],
    "a hundred thousand": lambda v: 100_000,
    "before all time": lambda v: "0001-01-01T00:00:00+14:00",
    "after all time": lambda v: "9999-12-31T23:59:59-14:00",
    "upside down": lambda v: [1.0, 0.0],
    "without end": lambda v: [-1e308, 1e308],
    "in the future": lambda v: "2036-01-01T00:00:00Z",
    "a turn's ids": lambda v: {"prompt_ids": [1], "completion_ids": [1, 2], "logprobs": []},
    "length": lambda v: "length",
    "tools": lambda v: [{"type": "function", "function": {"name": "solve"}}],
    "a null byte": lambda v: f"{v}\0",
    "a letter like another": lambda v: f"{v}\u0430",
    "a space of no width": lambda v: f"{v}\u200b",
    "last dropped": lambda v: v[:-1],
    "last twice": lambda v: [*v, v[-1]],
    "backwards": lambda v: v[::-1],
    "a key more": lambda v: {**v, "easy": 1.0},
    "a key not a number": lambda v: {**v, "easy": math.nan},
    "zeros": lambda v: "0" * 64,
    "train": lambda v: "train",
    "training": lambda v: "training",
    "exhaustive": lambda v: "exhaustive",
    "with infinite prices": lambda v: {"prices": {"prompt": math.inf, "completion": math.inf}},
    "with prices beyond all money": lambda v: {"prices": {"prompt": 1e308, "completion": 0.0}},
    "with prices below zero": lambda v: {"prices": {"prompt": -1.0, "completion": -1.0}},
}
"""What is done to a field, by the name under which the table lists it."""


@dataclass(frozen=True)
class Forgery:
    """One forged run."""

    name: str
    deserves: str
    reason: str
    forge: Callable[[Record, list[Record]], Parts]
    """Takes manifest and rollouts of an honest run, which it may change; returns what to upload."""


_ADDED = (
    "a line separator; a newline; a carriage return; a space before it; a wide space; a space of no width"
)
"""What nobody sees beside a name."""

FIELDS: dict[str, dict[str, str]] = {
    # Fields that the score depends on.
    "rollout.reward": {
        "claimed": "a hair more; one; below zero; one more",
        "refused": "not a number; infinite; null; in a list; gone",
    },
    "rollout.metrics": {"claimed": "a key more; emptied; gone", "refused": "a key not a number; null"},
    "rollout.metrics.found": {
        "claimed": "a hair more; one; gone",
        "refused": "not a number; infinite; null; in a list",
    },
    "rollout.metrics.words": {"claimed": "one more; below zero"},
    "rollout.stop_reason": {"claimed": "longer; emptied; null", "refused": "in a list"},
    "rollout.truncated": {"claimed": "turned", "refused": "null"},
    "rollout.info": {"claimed": "a key more; emptied; gone", "refused": "null; a key not a number"},
    "rollout.info.last": {"claimed": "in capitals; a line separator; null"},
    "rollout.answer": {"claimed": "longer; emptied; null"},
    # Messages.
    "rollout.prompt": {"claimed": "emptied; last twice", "refused": "null; gone"},
    "rollout.prompt.0.content": {"claimed": "longer; in capitals; a line separator; null"},
    "rollout.prompt.0.role": {"claimed": "longer"},
    "rollout.completion": {
        "claimed": "emptied; last dropped; last twice; backwards",
        "refused": "null; gone",
    },
    "rollout.completion.0.content": {"claimed": "longer; in capitals; emptied; null; a line separator"},
    "rollout.completion.1.content": {"claimed": "longer; in capitals; emptied; null; a line separator"},
    "rollout.completion.1.role": {"claimed": "longer"},
    "rollout.turns": {"claimed": "emptied; last dropped; backwards; gone", "refused": "null"},
    "rollout.turns.0.message.content": {"claimed": "longer; in capitals; emptied"},
    "rollout.turns.0.message.role": {
        "refused": "as a user; as a tool; as the system; longer; in capitals; emptied; null; gone; in a list",
    },
    "rollout.turns.0.context_messages": {"refused": "null; gone"},
    "rollout.turns.0.finish_reason": {"claimed": "length", "replayed": "longer"},
    "rollout.turns.0.cached": {"replayed": "turned"},
    "rollout.turns.0.tokens": {"replayed": "a turn's ids"},
    "rollout.tools": {"replayed": "tools"},
    "rollout.step": {"replayed": "a single one"},
    "rollout.started_at": {"replayed": "emptied; longer"},
    "rollout.turns.0.model_seconds": {"refused": "not a number; infinite; null"},
    "rollout.turns.0.environment_seconds": {"refused": "not a number; infinite; null"},
    # Owners.
    "rollout.example_id": {"refused": "longer; emptied; null; gone"},
    "rollout.index": {"refused": "below zero; one more; huge; null; gone"},
    "rollout.seed": {"refused": "one more; below zero; huge; null; gone"},
    "rollout.seconds": {"refused": "not a number; infinite; null; huge; below zero", "replayed": "one more"},
    "rollout.scoring_seconds": {"refused": "not a number; infinite", "replayed": "one more"},
    "rollout.usage.prompt_tokens": {"refused": "below zero; huge; not a number"},
    "rollout.usage.completion_tokens": {"refused": "below zero; huge; not a number; a single one"},
    # Claims of the run about itself.
    "manifest.run_id": {"refused": "emptied; longer; null; gone"},
    "manifest.kind": {"refused": "exhaustive; longer; null"},
    "manifest.split": {"claimed": "train", "refused": "longer; null"},
    "manifest.example_ids": {"refused": "last dropped; last twice; emptied; null; gone"},
    "manifest.rollouts_per_example": {"claimed": "one more", "refused": "below zero; huge; null; gone"},
    "manifest.task_set_sha256": {"refused": "zeros; null; gone"},
    "manifest.seed": {"claimed": "one more; below zero", "refused": "huge; null"},
    "manifest.started_at": {"refused": "longer; null; gone; before all time; after all time"},
    "manifest.environment.owner": {"refused": f"longer; null; gone; {_ADDED}"},
    "manifest.environment.name": {"refused": f"longer; emptied; null; gone; {_ADDED}"},
    "manifest.environment.version": {"refused": f"longer; emptied; null; gone; {_ADDED}"},
    "manifest.environment.wheel_sha256": {"claimed": "null; gone", "refused": "zeros; emptied"},
    "manifest.environment.lock_sha256": {"refused": "zeros", "replayed": "null"},
    "manifest.environment.packages_sha256": {"refused": "longer; emptied; zeros", "replayed": "null; gone"},
    "manifest.environment.unlocked": {"refused": "longer", "replayed": "null"},
    "manifest.environment.path": {"replayed": "an address"},
    "manifest.environment.source_sha256": {"refused": "zeros"},
    "manifest.environment.info.kind": {"replayed": "longer"},
    "manifest.environment.info.summary": {"claimed": "longer"},
    "manifest.environment.info.eval_examples": {"claimed": "one more; below zero; null", "refused": "huge"},
    "manifest.environment.info.reward_functions.0.bounds": {
        "claimed": "a list of numbers",
        "refused": "upside down; without end",
    },
    "manifest.environment.arguments": {"claimed": "a key more", "refused": "null; a key not a number"},
    "manifest.environment.info.arguments": {"refused": "a key not a number"},
    "manifest.environment.info.reference_scores": {"refused": "a key not a number"},
    "manifest.environment.info.deterministic": {"claimed": "turned", "refused": "null"},
    "manifest.environment.info.group_rewards": {"claimed": "turned"},
    "manifest.environment.info.max_turns": {"claimed": "one more; null"},
    "manifest.environment.info.reward_functions": {"claimed": "last dropped; emptied; backwards"},
    "manifest.environment.info.reward_functions.0.weight": {
        "claimed": "one more; below zero",
        "refused": "not a number; infinite; huge",
    },
    "manifest.environment.info.reward_functions.0.name": {"claimed": "longer"},
    "manifest.environment.info.reward_bounds": {
        "refused": "last dropped; upside down; without end",
        "replayed": "null; gone",
    },
    "manifest.model.name": {
        "refused": "emptied; null; gone; a null byte; a letter like another; two spaces; like an option; "
        f"{_ADDED}",
    },
    "manifest.model.kind": {"refused": f"emptied; null; like an option; {_ADDED}", "replayed": "longer"},
    "manifest.model.base_url": {"refused": "somebody's id; a long id", "replayed": "an address"},
    "manifest.model.weights_sha256": {"refused": "zeros; somebody's id; emptied text"},
    "manifest.model.details": {"refused": "a key not a number"},
    "manifest.sampling": {"refused": "a key not a number"},
    "manifest.sampling.temperature": {"refused": "below zero; not a number; infinite"},
    "manifest.sampling.max_tokens": {"refused": "below zero; a single one"},
    "manifest.rerun_of": {"refused": "emptied text; a long id", "replayed": "somebody's id"},
    "manifest.strata": {"claimed": "a list of numbers"},
    "manifest.lines": {"refused": "a hundred thousand; a single one"},
    "manifest.choice": {"refused": "longer"},
    "manifest.notes": {"replayed": "longer; a line separator; a null byte"},
    "manifest.ended_at": {"refused": "in a list; before all time", "replayed": "in the future"},
    "manifest.platform.python": {"replayed": "longer"},
    "manifest.spending": {
        "refused": "with infinite prices; with prices below zero; with prices beyond all money"
    },
}
"""Field, level, and what is done to the field."""

LIKE_ANOTHER: dict[str, str] = {
    "example_id": "refused",
    "index": "refused",
    "seed": "refused",
    "prompt": "claimed",
    "answer": "claimed",
    "completion": "claimed",
    "turns": "claimed",
    "info": "claimed",
}
"""Field, and the level where the first rollout has what the last one has: another example's."""


def _many(change: Callable[[list[Record]], object]) -> Callable[[Record, list[Record]], Parts]:
    def forge(manifest: Record, rollouts: list[Record]) -> Parts:
        change(rollouts)
        return manifest, rollouts

    return forge


def _end_with(character: str) -> Callable[[Record, list[Record]], Parts]:
    """Append a character to the model's last message, in completion and turn: the run stays honest."""

    def change(rollouts: list[Record]) -> None:
        for message in (rollouts[0]["completion"][-1], rollouts[0]["turns"][-1]["message"]):
            message["content"] += character

    return _many(change)


def _add_turn(rollouts: list[Record]) -> None:
    rollouts[0]["turns"].append({**rollouts[0]["turns"][-1], "model_seconds": math.nan})


def _lines(rollouts: list[Record]) -> list[bytes]:
    return [json.dumps(one).encode() + b"\n" for one in rollouts]


def _body(change: Callable[[bytes], bytes]) -> Callable[[Record, list[Record]], Parts]:
    return lambda manifest, rollouts: (manifest, change(b"".join(_lines(rollouts))))


BODIES: dict[str, tuple[str, str, Callable[[Record, list[Record]], Parts]]] = {
    "nothing": ("claimed", "8 of 8 rollouts missing", _body(lambda body: b"")),
    "one rollout left out": ("claimed", "1 of 8 rollouts missing", _many(lambda rollouts: rollouts.pop())),
    "one rollout said to have failed": (
        "claimed",
        "1 of 8 rollouts failed",
        _many(
            lambda rollouts: rollouts[0].update(
                reward=None, metrics={}, failure={"boundary": "model", "type": "Down", "message": "down"}
            )
        ),
    ),
    "one rollout twice": ("refused", "", _many(lambda rollouts: rollouts.append(rollouts[0]))),
    "every reward one": (
        "claimed",
        "8 of 8 rollouts produced different results",
        _many(lambda rollouts: [one.update(reward=1.0) for one in rollouts]),
    ),
    "every rollout of one example": (
        "refused",
        "",
        _many(lambda rollouts: [one.update(example_id="0", index=n) for n, one in enumerate(rollouts)]),
    ),
    "the order of rollouts": ("replayed", "", _many(lambda rollouts: rollouts.reverse())),
    "a raw carriage return between tokens": (
        "replayed",
        "",
        _body(lambda body: body.replace(b', "index"', b',\r"index"')),
    ),
    "U+2028 in what the model said": ("replayed", "", _end_with("\u2028")),
    "U+0085 in what the model said": ("replayed", "", _end_with("\x85")),
    "a carriage return in what the model said": ("replayed", "", _end_with("\r")),
    "a turn more with NaN": ("refused", "", _many(_add_turn)),
    "a turn more that nobody played": (
        "claimed",
        "",
        _many(lambda rollouts: rollouts[0]["turns"].append(rollouts[0]["turns"][-1])),
    ),
    "the last line cut": ("refused", "", _body(lambda body: body[:-40])),
    "two rollouts on a line": ("refused", "", _body(lambda body: body.replace(b"\n", b" ", 1))),
    "no JSON": ("refused", "", _body(lambda body: b"{'reward': 1}\n" + body)),
    "a list for a rollout": ("refused", "", _body(lambda body: b"[]\n" + body)),
    "a field that no rollout has": (
        "refused",
        "",
        _many(lambda rollouts: rollouts[0].update(verified=True)),
    ),
    "a second reward on the line": (
        "claimed",
        "1 of 8 rollouts produced different results",
        _body(lambda body: body.replace(b"}\n", b', "reward": 1.0}\n', 1)),
    ),
    "bytes that are no text": ("refused", "", _body(lambda body: body.replace(b"Which", b"Whi\xff\xfe", 1))),
    "a packed body that is none": ("refused", "", _body(lambda body: b"\x28\xb5\x2f\xfd" + body)),
}
"""What is done to the whole body: the level, a part of the reason, and how."""


def list_forgeries() -> list[Forgery]:
    """Return every forgery of the tables."""
    found = [
        Forgery(f"{path}: {done}", level, "", _at(path, DONE[done]))
        for path, levels in FIELDS.items()
        for level, names in levels.items()
        for done in names.split("; ")
    ]
    found += [
        Forgery(f"{field} of another example", level, "", _many(_swap(field)))
        for field, level in LIKE_ANOTHER.items()
    ]
    return found + [Forgery(name, *one) for name, one in BODIES.items()]


def _swap(field: str) -> Callable[[list[Record]], object]:
    return lambda rollouts: rollouts[0].update({field: copy.deepcopy(rollouts[-1][field])})


def _at(path: str, change: Callable[[Any], Any]) -> Callable[[Record, list[Record]], Parts]:
    """Return a function that changes one field of a manifest or of the first rollout."""
    root, *way, last = path.split(".")

    def forge(manifest: Record, rollouts: list[Record]) -> Parts:
        at: Any = manifest if root == "manifest" else rollouts[0]
        for part in way:
            at = at[int(part) if isinstance(at, list) else part]
        new = change(at.get(last) if isinstance(at, dict) else at[last])
        if new is GONE:
            del at[last]
        else:
            at[last] = new
        return manifest, rollouts

    return forge
