"""Selection of rollouts as rows for fine-tuning: filtered, without repeats, and counted."""

from __future__ import annotations

import json
import operator
import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from wander.errors import ConfigError, did_you_mean
from wander.evals.store import jsonl
from wander.parsers import message_text
from wander.system.plain_files import open_file
from wander.train.rollouts.rows import trajectories_of
from wander.types import Message, Rollout, canonical_json, seen_by

OPERATORS: dict[str, Callable[[float, float], bool]] = {
    ">=": operator.ge,
    "<=": operator.le,
    "==": operator.eq,
    "!=": operator.ne,
    ">": operator.gt,
    "<": operator.lt,
}
_CONDITION = re.compile(r"\s*([A-Za-z_][\w.-]*)\s*(>=|<=|==|!=|>|<)\s*(\S+)\s*")


@dataclass(frozen=True)
class Condition:
    """A bound on the reward or on a metric of a rollout."""

    metric: str
    """Name of a reward function, `reward`, or one of `measures`."""
    sign: str
    value: float

    @classmethod
    def parse(cls, text: str) -> Condition:
        """Parse `metric>=value`; raises `ConfigError`."""
        match = _CONDITION.fullmatch(text)
        try:
            if match is None:
                raise ValueError(text)
            return cls(match[1], match[2], float(match[3]))
        except ValueError:
            raise ConfigError(
                f"`{text}` is not a condition", hint="write it as `metric>=value`, for example `won==1`"
            ) from None

    def holds(self, rollout: Rollout) -> bool:
        """Return whether a rollout meets the condition; raises `ConfigError` if it does not have the
        metric."""
        known = {**measures(rollout), **rollout.metrics, "reward": rollout.reward}
        if self.metric not in known:
            hint = did_you_mean(self.metric, known) or f"they have {', '.join(sorted(known))}"
            raise ConfigError(f"the rollouts have no metric `{self.metric}`", hint=hint)
        value = known[self.metric]
        return value is not None and OPERATORS[self.sign](value, self.value)


def measures(rollout: Rollout) -> dict[str, float]:
    """Return measures of a rollout's length; a reward function of the same name takes precedence."""
    return {
        "turns": float(len(rollout.turns)),
        "tokens": float(rollout.usage.completion_tokens),
        "prompt_tokens": float(rollout.usage.prompt_tokens),
        "characters": float(sum(len(text) for text in collect_replies(rollout))),
        "truncated": float(rollout.truncated),
    }


@dataclass(frozen=True)
class Sourced:
    """A rollout with facts about its run."""

    rollout: Rollout
    run_id: str = ""
    environment: str = ""
    stratum: int | None = None


@dataclass(frozen=True)
class Dropped:
    """A dropped rollout, for inspection."""

    reason: str
    run_id: str
    example_id: str
    index: int
    reward: float | None
    said: str
    """Last message of the model."""


@dataclass
class DataReport:
    """The numbers of kept and dropped rollouts, by reason."""

    rollouts: int = 0
    kept: int = 0
    dropped: dict[str, int] = field(default_factory=dict)
    samples: list[Dropped] = field(default_factory=list)
    """First dropped rollouts for each reason."""

    def drop(self, reason: str, source: Sourced, samples: int) -> None:
        """Count a dropped rollout. Store the first `samples` rollouts that are dropped for each reason."""
        self.dropped[reason] = self.dropped.get(reason, 0) + 1
        if self.dropped[reason] <= samples:
            rollout = source.rollout
            replies = collect_replies(rollout)[-1:] or [""]
            self.samples.append(
                Dropped(reason, source.run_id, rollout.example_id, rollout.index, rollout.reward, replies[0])
            )


_Kept = tuple[dict[str, Any], Sourced]
"""A row to keep, and the source that it is balanced by."""


def select_rows(
    rollouts: Iterable[Rollout | Sourced],
    *,
    min_reward: float | None = None,
    conditions: Sequence[Condition] = (),
    keep_repeats: bool = False,
    near: bool = False,
    stop_reasons: Sequence[str] = (),
    whole: bool = False,
    per_example: int | None = None,
    per_stratum: int | None = None,
    samples: int = 0,
) -> tuple[list[dict[str, Any]], DataReport]:
    """Turn the rollouts that pass into rows `{"messages": [...], "example_id", "index", "reward"}`.

    A row also has `run_id` if its source names the run, and the `tools` that the model was offered. If the
    run has tokens, the row has `sampled`: `[{"ids", "mask"}]` with an entry for each sequence, and mask 1 for
    the model's own tokens. Failed rollouts, rollouts without an assistant message and (unless `keep_repeats`)
    repeated conversations are dropped. Messages after the model's last message are cut off, because nothing
    can be learned from them.

    - `near`: drop conversations that occurred before with the same words, ignoring case, spacing and
      punctuation.
    - `stop_reasons`: keep only rollouts that ended with one of these reasons; empty means any reason.
    - `whole`: drop truncated rollouts.
    - `per_example`, `per_stratum`: maximum number of rollouts to keep of each, preferring high rewards, then
      early rollouts. Rollouts without a stratum count as one stratum.
    - `samples`: number of dropped rollouts that the report keeps for each reason.
    """
    kept: list[_Kept] = []
    report = DataReport()
    seen: set[str] = set()
    for entry in rollouts:
        source = entry if isinstance(entry, Sourced) else Sourced(entry)
        rollout = source.rollout
        report.rollouts += 1
        reason = _reason_to_drop(rollout, min_reward, conditions, stop_reasons, whole)
        messages = [*rollout.prompt, *rollout.completion]
        player = next(iter(rollout.rewards), None)
        if player is not None:  # the reward belongs to this player
            messages = seen_by(player, messages)
        last = max((i for i, m in enumerate(messages) if m.get("role") == "assistant"), default=-1)
        messages = messages[: last + 1]  # the model did not answer the later messages
        if reason is None and not messages:
            reason = "no assistant message"
        if reason is None and not keep_repeats:
            reason = _reason_as_repeat(messages, rollout.tools, seen, near=near)
        if reason is not None:
            report.drop(reason, source, samples)
            continue
        row: dict[str, Any] = {"messages": messages, "example_id": rollout.example_id}
        row |= {"index": rollout.index, "reward": rollout.reward}
        row |= {"run_id": source.run_id} if source.run_id else {}
        row |= {"tools": rollout.tools} if rollout.tools else {}
        sampled = [
            {"ids": [*part.prompt_ids, *part.completion_ids], "mask": [0] * len(part.prompt_ids) + part.mask}
            for part in trajectories_of(rollout, player)
        ]
        row |= {"sampled": sampled} if sampled else {}
        kept.append((row, source))
    for most, key, name in (
        (per_example, lambda source: (source.environment, source.rollout.example_id), "example"),
        (per_stratum, lambda source: source.stratum, "stratum"),
    ):
        if most is not None:
            kept = _balance(kept, most, key, f"more than {most} of its {name}", report, samples)
    report.kept = len(kept)
    return [row for row, _ in kept], report


def _reason_as_repeat(messages: list[Message], tools: Any, seen: set[str], *, near: bool) -> str | None:
    """Return the reason why a conversation is a repeat, or remember it."""
    exact = canonical_json([messages, tools])
    if exact in seen:
        return "repeated conversation"
    seen.add(exact)
    if near:
        words = normalize(messages)
        if words in seen:
            return "nearly repeated conversation"
        seen.add(words)
    return None


def normalize(messages: Sequence[Message]) -> str:
    """Return the words of a conversation, ignoring case, spacing and punctuation.

    The words consist of letters and digits in compatibility form (NFKC), and include tool calls.
    """
    contents = [
        [message.get("role"), message.get("content"), message.get("tool_calls")] for message in messages
    ]
    text = unicodedata.normalize("NFKC", canonical_json(contents)).casefold()
    return " ".join(re.findall(r"\w+", text))


def _balance(
    kept: Sequence[_Kept],
    most: int,
    key: Callable[[Sourced], Any],
    reason: str,
    report: DataReport,
    samples: int,
) -> list[_Kept]:
    """Return at most `most` rows of each key, those with the highest rewards, in their order."""
    groups: dict[Any, list[int]] = {}
    for place, (_, source) in enumerate(kept):
        groups.setdefault(key(source), []).append(place)
    chosen: set[int] = set()
    for places in groups.values():
        chosen.update(sorted(places, key=lambda place: -(kept[place][1].rollout.reward or 0.0))[:most])
    for place, (_, source) in enumerate(kept):
        if place not in chosen:
            report.drop(reason, source, samples)
    return [entry for place, entry in enumerate(kept) if place in chosen]


def _reason_to_drop(
    rollout: Rollout,
    min_reward: float | None,
    conditions: Sequence[Condition],
    stop_reasons: Sequence[str],
    whole: bool,
) -> str | None:
    if rollout.failure is not None or rollout.reward is None:
        return "failed"
    if whole and rollout.truncated:
        return "truncated"
    if stop_reasons and rollout.stop_reason not in stop_reasons:
        return f"ended by {rollout.stop_reason}"
    if min_reward is not None and rollout.reward < min_reward:
        return f"reward<{min_reward:g}"
    for condition in conditions:
        if not condition.holds(rollout):
            return f"not {condition.metric}{condition.sign}{condition.value:g}"
    return None


def collect_replies(rollout: Rollout) -> list[str]:
    """Return the texts of the model's messages."""
    return [message_text(turn) for turn in rollout.completion if turn.get("role") == "assistant"]


def write_rows(rows: Iterable[dict[str, Any]], file: Path) -> None:
    """Write rows as JSON lines; the file appears only when it is complete.

    Keys keep their order, because a chat template shows the parameters of a tool in the order that it gets.
    """
    file.parent.mkdir(parents=True, exist_ok=True)
    with jsonl.replace_file(file) as out:
        for row in rows:
            out.write(json.dumps(row, ensure_ascii=False, allow_nan=False).encode() + b"\n")


def read_rows(file: Path) -> Iterator[dict[str, Any]]:
    """Yield the rows of a file by `write_rows`, or of any file of JSON lines with `messages`."""
    try:
        stream = open_file(file)
    except OSError as error:
        raise ConfigError(
            f"cannot read `{file}`: {error.strerror}",
            hint="create it with `wander runs data RUN --out rows.jsonl`",
        ) from error
    with stream:
        try:
            for number, line in jsonl.numbered_lines(stream, file):
                yield _read_row(line, number, file)
        except OverflowError as error:
            raise ConfigError(str(error)) from None


def _read_row(line: bytes, number: int, file: Path) -> dict[str, Any]:
    """Return the row in a line of JSON."""
    try:
        row = jsonl.parse_object(line)
        messages = row["messages"]
        good = isinstance(messages, list) and all(isinstance(m, dict) and "role" in m for m in messages)
    except (ValueError, KeyError):
        good = False
    if not good:
        raise ConfigError(
            f"line {number} of `{file}` is not a row with `messages`",
            hint="`wander runs data RUN --out FILE` writes such rows",
        )
    return row
