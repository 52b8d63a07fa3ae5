"""Difficulty of a version's examples, from the rollouts of the evaluations that a reader may see.

Reading 100 runs of 1,000 rollouts takes about a second of CPU time, so the result is cached until the runs
change.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

from sqlalchemy import Integer, Select, bindparam
from sqlalchemy.orm import Session, load_only
from wander.types import canonical_json
from wander.wire import Histogram
from wander.wire.verification import Difficulty, ExampleDifficulty, RolloutReward

from wander_hub.database import READER
from wander_hub.environments import service as environments
from wander_hub.environments.models import Version
from wander_hub.environments.repository import KEPT_STATEMENTS, ListedVersion
from wander_hub.identity import Identity
from wander_hub.runs import explorer
from wander_hub.runs.kept import KEPT
from wander_hub.runs.models import Run
from wander_hub.runs.repository import runs_readable_by
from wander_hub.runs.service import count_of
from wander_hub.storage import Storage
from wander_hub.verification.service import find_info

_MOST_RUNS = 100
"""Maximum number of runs that are read, newest first."""
_MOST_ROLLOUTS = 100_000
_BINS = 10
_LISTED = 5
"""Number of the hardest and of the easiest examples that are listed."""


@dataclass
class _Example:
    """The scored rollouts of an example."""

    rollouts: int = 0
    solved: int = 0
    total: float = 0.0
    lowest: RolloutReward | None = None
    highest: RolloutReward | None = None

    def add(self, run: Run, row: explorer.FoundRow, highest: float) -> None:
        reward = row.facts.reward
        if reward is None:
            return
        self.rollouts += 1
        self.solved += reward >= highest
        self.total += reward
        if self.lowest is None or reward < self.lowest.reward:
            self.lowest = RolloutReward(run_id=run.run_id, number=row.number, reward=reward)
        if self.highest is None or reward > self.highest.reward:
            self.highest = RolloutReward(run_id=run.run_id, number=row.number, reward=reward)

    def describe(self, example_id: str) -> ExampleDifficulty:
        assert self.lowest is not None
        assert self.highest is not None
        return ExampleDifficulty(
            example_id=example_id,
            rollouts=self.rollouts,
            solve_rate=self.solved / self.rollouts,
            reward_mean=self.total / self.rollouts,
            lowest=self.lowest,
            highest=self.highest,
        )


def difficulty_of(session: Session, storage: Storage, owner: str, name: str, version: str) -> Difficulty:
    """Return the difficulty of a version's examples; raise a 404 problem if the version does not exist."""
    found = environments.find_version(session, environments.find(session, owner, name), version)
    return measure_difficulty(session, storage, found)


def measure_difficulty(session: Session, storage: Storage, version: Version | ListedVersion) -> Difficulty:
    """Return the difficulty of a version's examples, without any example if no run has a scored rollout.

    It covers the newest evaluations of the eval split with the default arguments. Without such a run, it
    covers the runs that have the split and the arguments of the newest run. Plays of sealed sets are left
    out.
    """
    values = {"version_id": version.id, "most": _MOST_RUNS}
    readable = session.scalars(_newest_evaluations(session.info.get(READER)), values)
    # The rows of a sealed set replace those of the eval split, and may have the same ids.
    runs = [run for run in readable if run.brief_manifest.environment.sealed is None]
    if not runs:
        return Difficulty()
    info = find_info(session, version)
    span = info.reward_range if info else None
    highest = span[1] if span else 1.0
    digest = hashlib.sha256("\n".join([repr(highest), *(run.sha256 for run in runs)]).encode()).hexdigest()
    found: Difficulty = KEPT.get(
        ("difficulty", version.id, digest), lambda: _measure(session, storage, runs, highest)
    )
    return found


@lru_cache(KEPT_STATEMENTS)
def _newest_evaluations(reader: Identity | None) -> Select[Run]:
    """Return the statement for a version's evaluations that have all their rollouts, newest first."""
    query = runs_readable_by(reader).where(
        Run.version_id == bindparam("version_id"),
        Run.kind == "evaluation",
        Run.level != "claimed",
        Run.hidden.is_(False),
        Run.withdrawn_at.is_(None),
    )
    query = query.options(load_only(Run.run_id, Run.model, Run.sha256, Run.summary))
    return query.order_by(Run.posted_at.desc(), Run.run_id).limit(bindparam("most", type_=Integer))


def _measure(session: Session, storage: Storage, runs: Sequence[Run], highest: float) -> Difficulty:
    """Read the rows of runs that have the same split and arguments."""
    tasks = [_task_of(run) for run in runs]
    chosen = ("eval", "{}") if ("eval", "{}") in tasks else tasks[0]
    comparable = (run for run, task in zip(runs, tasks, strict=True) if task == chosen)
    examples: dict[str, _Example] = {}
    read: list[Run] = []
    for run in _within_limit(comparable):
        for row in explorer.read_rows(session, storage, run):
            examples.setdefault(row.facts.example_id, _Example()).add(run, row, highest)
        read.append(run)
    scored = {example_id: example for example_id, example in examples.items() if example.rollouts}
    rates = [example.solved / example.rollouts for example in scored.values()]
    counts = [0] * _BINS
    for rate in rates:
        counts[min(int(rate * _BINS), _BINS - 1)] += 1
    ordered = sorted(scored, key=lambda key: (_rank(scored[key]), key))
    hardest, easiest = ordered[:_LISTED], ordered[_LISTED:][-_LISTED:][::-1]
    return Difficulty(
        split=chosen[0],
        arguments=read[0].brief_manifest.environment.changed_arguments if read else {},
        runs=len(read),
        models=len({run.model for run in read}),
        rollouts=sum(example.rollouts for example in scored.values()),
        examples=len(scored),
        highest_reward=highest,
        solve_rate=sum(rates) / len(rates) if rates else None,
        histogram=Histogram(edges=[edge / _BINS for edge in range(_BINS + 1)], counts=counts),
        hardest=[scored[example_id].describe(example_id) for example_id in hardest],
        easiest=[scored[example_id].describe(example_id) for example_id in easiest],
    )


def _rank(example: _Example) -> tuple[float, float]:
    return example.solved / example.rollouts, example.total / example.rollouts


def _task_of(run: Run) -> tuple[str, str]:
    manifest = run.brief_manifest
    return manifest.split, canonical_json(manifest.environment.changed_arguments)


def _within_limit(runs: Iterator[Run]) -> Iterator[Run]:
    """Yield runs until their rollouts exceed the limit."""
    left = _MOST_ROLLOUTS
    for run in runs:
        left -= count_of(run)
        if left >= 0:
            yield run
