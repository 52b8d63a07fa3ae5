"""Differences between two runs: pinned settings, rewards, and the first message that differs."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import TYPE_CHECKING, Any

from wander_client.errors import NotFound
from wander_client.runs.text import StyledLine, message_text

if TYPE_CHECKING:
    from wander.types import Message, Rollout

    from wander_client.runs.found import FoundRun

Key = tuple[str, int]

_OF_ONE_RUN = {"run_id", "started_at", "ended_at", "endpoints", "spending"}
"""Fields that differ between any two runs."""


@dataclass(frozen=True)
class FieldDifference:
    """A field of the manifests that differs. The value is None if a run does not have the field."""

    field: str
    before: Any
    after: Any


@dataclass(frozen=True)
class RewardChange:
    """A rollout of both runs with a different reward or failure."""

    example_id: str
    index: int
    before: float | None
    after: float | None
    failed_before: str | None
    """Boundary of the failure."""
    failed_after: str | None


@dataclass
class RunDiff:
    """Differences of a second run from a first."""

    manifest: list[FieldDifference]
    same: int = 0
    """Rollouts with the same messages and the same reward."""
    said_otherwise: int = 0
    """Rollouts with the same reward but different messages."""
    only_before: int = 0
    """Rollouts that the second run does not have."""
    only_after: int = 0
    other_questions: list[str] = field(default_factory=list)
    """Differences in split and arguments, which may give the same id to different examples."""
    changed: list[RewardChange] = field(default_factory=list)
    """Changed rollouts, sorted by loss of reward, largest first."""
    first_key: Key | None = None
    """The first rollout, in the second run's order, whose messages differ."""


@dataclass(frozen=True)
class MessageDifference:
    """The first message that differs between two rollouts."""

    example_id: str
    index: int
    place: int
    """Index over prompt and completion; the length of the shorter rollout if it is a prefix of the longer."""
    before: Message | None
    after: Message | None


def diff_runs(first: FoundRun, second: FoundRun) -> RunDiff:
    """Compare two runs rollout by rollout; keeps only a few numbers in memory per rollout."""
    left, right = first.manifest, second.manifest
    fields, others = (
        dict(_flat(run.model_dump(mode="json", by_alias=True, exclude=_OF_ONE_RUN))) for run in (left, right)
    )
    diff = RunDiff(
        [
            FieldDifference(name, fields.get(name), others.get(name))
            for name in sorted({*fields, *others})
            if fields.get(name) != others.get(name)
        ]
    )
    if left.split != right.split:
        diff.other_questions.append("split")
    if left.environment.arguments != right.environment.arguments:
        diff.other_questions.append("arguments")
    known = {rollout.key: (*_outcome(rollout), _said(rollout)) for rollout in first.rollouts()}
    for rollout in second.rollouts():
        if rollout.key not in known:
            diff.only_after += 1
            continue
        reward, failed, said = known.pop(rollout.key)
        same_words = said == _said(rollout)
        if not same_words and diff.first_key is None:
            diff.first_key = rollout.key
        if (reward, failed) != (after := _outcome(rollout)):
            diff.changed.append(RewardChange(*rollout.key, reward, after[0], failed, after[1]))
        elif same_words:
            diff.same += 1
        else:
            diff.said_otherwise += 1
    diff.only_before = len(known)
    diff.changed.sort(key=_loss)
    return diff


def first_difference(first: FoundRun, second: FoundRun, key: Key) -> MessageDifference | None:
    """Return the first difference in a rollout's messages; None if they are equal.

    Raises `NotFound`.
    """
    before, after = _messages(first, key), _messages(second, key)
    for place, (one, other) in enumerate(zip_longest(before, after)):
        if one != other:
            return MessageDifference(*key, place, one, other)
    return None


def message_difference_lines(difference: MessageDifference) -> list[StyledLine]:
    """Return styled lines that show the difference."""
    from difflib import unified_diff

    head = f"{difference.example_id}/{difference.index}: the runs differ from message {difference.place}"
    if difference.before is None or difference.after is None:
        ends, goes_on = ("first", "second") if difference.before is None else ("second", "first")
        message = difference.after if difference.before is None else difference.before
        assert message is not None, "two missing messages do not differ"
        lines = [f"{head}: the {ends} run ends, the {goes_on} run continues", *_message_lines(message)]
        return [(lines[0], "bold"), *((line, None) for line in lines[1:])]
    before, after = _message_lines(difference.before), _message_lines(difference.after)
    styles = {"+": "good", "-": "error", "@": "hint"}
    changes = list(unified_diff(before, after, "before", "after", lineterm="", n=2))[2:]
    return [(head, "bold"), *((line, styles.get(line[:1])) for line in changes)]


def _message_lines(message: Message) -> list[str]:
    """Return a message as lines to compare: every field, and texts line by line."""
    text = [f"[{message.get('role', '?')}]", *message_text(message).splitlines()]
    fields = [f"{name}: {value}" for name, value in message.items() if name not in ("role", "content")]
    return [*text, *fields]


def _outcome(rollout: Rollout) -> tuple[float | None, str | None]:
    """Return a rollout's reward and the boundary of its failure."""
    return rollout.reward, rollout.failure.boundary if rollout.failure else None


def _said(rollout: Rollout) -> str:
    return _digest([rollout.prompt, rollout.completion])


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def _loss(change: RewardChange) -> tuple[bool, float, str, int]:
    unscored = change.before is None or change.after is None
    gain = 0.0 if unscored else (change.after or 0.0) - (change.before or 0.0)
    return unscored, gain, change.example_id, change.index


def _messages(run: FoundRun, key: Key) -> list[Message]:
    for rollout in run.rollouts():
        if rollout.key == key:
            return [*rollout.prompt, *rollout.completion]
    raise NotFound(
        f"run `{run.manifest.run_id}` has no rollout `{key[0]}/{key[1]}`",
        hint=f"`wander view {run.location}` lists its rollouts",
        code="rollout_not_found",
    )


def _flat(value: Mapping[str, Any], place: str = "") -> Iterator[tuple[str, Any]]:
    for name, inner in value.items():
        dotted = f"{place}{name}"
        if isinstance(inner, dict) and inner:
            yield from _flat(inner, f"{dotted}.")
        elif isinstance(inner, list) and len(inner) > 8:
            yield dotted, f"{len(inner)} values, {_digest(inner)[:8]}"
        else:
            yield dotted, inner
