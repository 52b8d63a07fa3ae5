"""Gathers the data for the page that compares evaluations example by example."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from markupsafe import Markup
from sqlalchemy.orm import Session
from wander.errors import RunError
from wander.evals.stats.comparison import (
    Comparison,
    ExampleDifference,
    ScoredExample,
    compare_scores,
    group_scores,
)
from wander.evals.store.jsonl import split_lines
from wander.evals.store.manifest import differences_in_words
from wander.types import Rollout
from wander.wire import RolloutRow, RunDetail
from wander.wire.untrusted_text import ROLLOUT, read_record

from wander_hub.http.problems import HubProblem
from wander_hub.runs import service as runs
from wander_hub.runs.kept import KEPT
from wander_hub.runs.models import Run
from wander_hub.storage import Storage
from wander_hub.web import charts
from wander_hub.web.visit import Visit

FEWEST, MOST = 2, 6
_MOST_ROLLOUTS = 10_000
_MOST_BYTES = 64 * 1024 * 1024
"""Maximum size in bytes of a run's rollouts, which are read completely, but only once."""
_APART = 5
"""Number of examples on the page, from those with the largest differences."""
Ends = dict[str, tuple[tuple[float, int], tuple[float, int]]]
"""The rollouts with the lowest and the highest reward of each example, as (reward, number)."""


@dataclass(frozen=True)
class Disagreement:
    """An example with different rewards in two runs, with the rollout of each run that shows it best."""

    example: ExampleDifference
    rollouts: tuple[RolloutRow, RolloutRow]


@dataclass(frozen=True)
class Pair:
    """A run compared with the first run."""

    run: RunDetail
    refused: str = ""
    """Why the two cannot be compared."""
    comparison: Comparison | None = None
    differing: str = ""
    """Differences of the two runs besides the model."""
    scatter: Markup | None = None
    disagreements: list[Disagreement] = field(default_factory=list)


@dataclass(frozen=True)
class CompareView:
    """The first run, and the other runs compared with it."""

    first: RunDetail
    pairs: list[Pair]
    widest: float
    """Largest absolute bound of all intervals, which is the end of the shared axis."""


def find_runs(session: Session, words: Sequence[str]) -> list[Run]:
    """Return the runs to compare, without duplicates. A word is an ID, or the beginning or end of one."""
    named = (runs.find_by_prefix(session, word) for word in words if word.strip())
    found = list({one.run_id: one for one in named}.values())
    if len(found) > MOST:
        raise HubProblem(422, "invalid_request", f"cannot compare {len(found)} runs, only up to {MOST}")
    if len({one.kind == "training" for one in found}) > 1:
        raise HubProblem(
            422, "invalid_request", "a training run can only be compared with other training runs"
        )
    return found


def compare(visit: Visit, found: Sequence[Run]) -> CompareView:
    """Compare evaluations with the first one."""
    first, *others = (Scored(visit.session, visit.storage, one) for one in found)
    pairs = [_compare(first, one, visit.base_url) for one in others]
    ends = [
        abs(end)
        for one in pairs
        if one.comparison
        for end in (one.comparison.low, one.comparison.high)
        if end
    ]
    return CompareView(runs.detail_of(first.run, visit.base_url), pairs, max(ends, default=1.0))


class Scored:
    """A run with the scores of its examples. They never change, so they are cached."""

    def __init__(self, session: Session, storage: Storage, run: Run) -> None:
        self._session, self._storage = session, storage
        self.run = runs.with_rollouts(run)
        if runs.count_of(run) > _MOST_ROLLOUTS:
            raise _too_large(run)
        self.scores, self._ends = KEPT.get((run.sha256, "scores"), self._read)
        self.manifest = run.brief_manifest

    def _read(self) -> tuple[dict[str, ScoredExample], Ends]:
        """Return the scores, and the rollouts with the lowest and the highest reward of each example."""
        ends: Ends = {}
        return group_scores(self._rollouts(ends)), ends

    def _rollouts(self, ends: Ends) -> Iterator[Rollout]:
        read = 0
        lines = split_lines(runs.rollout_lines(self._session, self._storage, self.run))
        for number, line in enumerate(lines):
            read += len(line)
            if read > _MOST_BYTES:
                raise _too_large(self.run)
            rollout = read_record(Rollout, line, ROLLOUT)
            if rollout.reward is not None:
                one = rollout.reward, number
                least, greatest = ends.get(rollout.example_id, (one, one))
                ends[rollout.example_id] = min(least, one), max(greatest, one)
            yield rollout

    def row(self, example: str, *, greatest: bool) -> RolloutRow:
        """Return the row of an example's rollout with the highest or the lowest reward."""
        _, number = self._ends[example][greatest]
        return runs.rows_numbered(self._session, self._storage, self.run, [number])[0]


def compare_scored(first: Scored, other: Scored) -> Comparison:
    """Compare two runs. Raises `RunError` if they share no example."""
    # The manifest may name a million examples, so only the scored ones are passed on. A different
    # `task_set_sha256` still shows that the examples of the two runs differ.
    examples = {"example_ids": list(first.scores)}
    manifests = [one.manifest.model_copy(update=examples) for one in (first, other)]
    return compare_scores(manifests[0], first.scores, manifests[1], other.scores)


def _too_large(run: Run) -> HubProblem:
    hint = "`wander runs compare` compares runs of any size on your machine"
    return HubProblem(413, "run_too_large", f"`{run.run_id}` is too large to compare on a page", hint=hint)


def list_apart(found: Comparison) -> list[ExampleDifference]:
    """Return the examples with different scores in two runs, the largest differences first."""
    apart = [one for one in found.by_example if one.difference]
    return sorted(apart, key=lambda one: (-abs(one.difference), one.example_id))


def _compare(first: Scored, other: Scored, base_url: str) -> Pair:
    detail = runs.detail_of(other.run, base_url)
    try:
        found = compare_scored(first, other)
    except RunError as error:
        return Pair(detail, refused=str(error))
    return Pair(
        detail,
        comparison=found,
        differing=differences_in_words(found.differing),
        scatter=charts.scatter(
            ((one.example_id, one.before, one.after) for one in found.by_example),
            f"/runs/{other.run.run_id}",
        ),
        disagreements=[
            Disagreement(
                one,
                (
                    first.row(one.example_id, greatest=one.difference < 0),
                    other.row(one.example_id, greatest=one.difference > 0),
                ),
            )
            for one in list_apart(found)[:_APART]
        ],
    )
