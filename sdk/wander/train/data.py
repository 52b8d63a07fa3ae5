"""From rollouts to rows that a model can be fine-tuned on: filtered, without repeats, and counted."""

from __future__ import annotations

import json
import operator
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from wander.errors import ConfigError
from wander.types import Message, Rollout, canonical_json

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
    """A bound on the reward or on one metric of a rollout."""

    metric: str
    """A reward function's name, or `reward`, or `turns`."""
    sign: str
    value: float

    @classmethod
    def parse(cls, text: str) -> Condition:
        """Read `metric>=value`; raises `ConfigError`."""
        match = _CONDITION.fullmatch(text)
        try:
            if match is None:
                raise ValueError(text)
            return cls(match[1], match[2], float(match[3]))
        except ValueError:
            raise ConfigError(
                f"`{text}` is no condition", hint="write it as `metric>=value`, for example `won==1`"
            ) from None

    def holds(self, rollout: Rollout) -> bool:
        """Tell whether a rollout meets it; raises `ConfigError` for a metric that the rollout lacks."""
        known = {**rollout.metrics, "reward": rollout.reward}
        known.setdefault("turns", float(len(rollout.turns)))
        if self.metric not in known:
            raise ConfigError(
                f"the rollouts have no metric `{self.metric}`", hint=f"they have {', '.join(sorted(known))}"
            )
        value = known[self.metric]
        return value is not None and OPERATORS[self.sign](value, self.value)


@dataclass
class DataReport:
    """What was kept and what was dropped, by reason."""

    rollouts: int = 0
    kept: int = 0
    dropped: dict[str, int] = field(default_factory=dict)

    def drop(self, reason: str) -> None:
        """Count one dropped rollout."""
        self.dropped[reason] = self.dropped.get(reason, 0) + 1

    def as_dict(self) -> dict[str, Any]:
        """Return the report as plain data."""
        return asdict(self)


def select_rows(
    rollouts: Iterable[Rollout],
    *,
    min_reward: float | None = None,
    conditions: Sequence[Condition] = (),
    keep_repeats: bool = False,
) -> tuple[list[dict[str, Any]], DataReport]:
    """Turn the rollouts that pass into rows `{"messages": [...], "example_id", "index", "reward"}`.

    Failed rollouts, those without an assistant message and (unless `keep_repeats`) repeated conversations are
    dropped. Messages after the model's last one are cut off: nothing is learnt from them.
    """
    rows: list[dict[str, Any]] = []
    report = DataReport()
    seen: set[str] = set()
    for rollout in rollouts:
        report.rollouts += 1
        reason = _reason_to_drop(rollout, min_reward, conditions)
        messages = learnable_messages(rollout)
        if reason is None and not messages:
            reason = "no assistant message"
        key = "" if keep_repeats else canonical_json(messages)
        if reason is None and not keep_repeats and key in seen:
            reason = "repeated conversation"
        if reason is not None:
            report.drop(reason)
            continue
        seen.add(key)
        report.kept += 1
        rows.append(
            {
                "messages": messages,
                "example_id": rollout.example_id,
                "index": rollout.index,
                "reward": rollout.reward,
            }
        )
    return rows, report


def _reason_to_drop(
    rollout: Rollout, min_reward: float | None, conditions: Sequence[Condition]
) -> str | None:
    if rollout.failure is not None or rollout.reward is None:
        return "failed"
    if min_reward is not None and rollout.reward < min_reward:
        return f"reward<{min_reward:g}"
    for condition in conditions:
        if not condition.holds(rollout):
            return f"not {condition.metric}{condition.sign}{condition.value:g}"
    return None


def learnable_messages(rollout: Rollout) -> list[Message]:
    """Return prompt and completion up to the last assistant message; empty when there is none."""
    messages = [*rollout.prompt, *rollout.completion]
    last = max((i for i, m in enumerate(messages) if m.get("role") == "assistant"), default=-1)
    return messages[: last + 1]


def write_rows(rows: Iterable[dict[str, Any]], file: Path) -> None:
    """Write rows as JSON lines, whole or not at all."""
    file.parent.mkdir(parents=True, exist_ok=True)
    temporary = file.with_name(f".{file.name}.partial")
    with temporary.open("w", encoding="utf-8") as stream:
        stream.writelines(canonical_json(row) + "\n" for row in rows)
    temporary.replace(file)


def read_rows(file: Path) -> Iterator[dict[str, Any]]:
    """Yield the rows of a file that `write_rows` wrote, or of any JSON lines with `messages`."""
    try:
        stream = file.open(encoding="utf-8")
    except OSError as error:
        raise ConfigError(
            f"cannot read `{file}`: {error.strerror}", hint="make it with `wander data RUN --out rows.jsonl`"
        ) from error
    with stream:
        for number, line in enumerate(stream, start=1):
            if not line.strip():
                continue
            try:
                row = json.loads(line)
                messages = row["messages"]
                good = isinstance(messages, list) and all(
                    isinstance(m, dict) and "role" in m for m in messages
                )
            except (ValueError, KeyError, TypeError):
                good = False
            if not good:
                raise ConfigError(f"line {number} of `{file}` is no row with `messages`")
            yield row
