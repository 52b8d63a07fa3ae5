"""Search for rollouts of a run or of all runs: by rewards, metrics, endings and strata, and by text.

A text search also reads the transcripts if the run is not too large. Reading the rows of 100,000 rollouts
takes half a second of CPU time, so the numbers that a filter finds are cached by the digest of the run, which
never changes.
"""

from __future__ import annotations

import json
import re
from array import array
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import groupby
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field
from sqlalchemy.orm import Session
from wander.types import canonical_json
from wander.wire import RolloutRow, RunManifest
from wander.wire.environments import RolloutSearchPage, RunMatches

from wander_hub.http.problems import HubProblem
from wander_hub.runs import chunks, service
from wander_hub.runs.chunks import RowFacts, StoredRow
from wander_hub.runs.kept import KEPT, OF_ENTRY
from wander_hub.runs.models import MOST_STRATA, Run, RunChunk
from wander_hub.runs.repository import chunks_of
from wander_hub.storage import ObjectMissing, Storage, log_missing

MOST_SEARCHED = 250_000
"""Maximum number of rollouts of a run whose rows are searched."""
MOST_STORED = 64 * 1024 * 1024
"""Maximum stored size of a run whose transcripts are searched. Of a larger run, only the rows are
searched."""
_MOST_READ = 512 * 1024 * 1024
"""Maximum bytes of decompressed transcripts that the search of a run reads, because data may compress very
well."""
_MOST_RUNS = 100
"""Maximum number of runs that one search over runs covers."""
_MOST_FOUND = 20
"""Number of runs with matches after which a search over runs stops."""
_FIRST = 5
"""Number of rollouts of each run that a search over runs returns."""
_MOST_FAULTS = 20
_NUMBERS = re.compile(r"\d+")


def _or_none(value: object) -> object:
    return None if value == "" else value  # a form field that was left empty


Bound = Annotated[Annotated[float, Field(allow_inf_nan=False)] | None, BeforeValidator(_or_none)]


class RolloutFilter(BaseModel):
    """Filter and order of a run's rollouts."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    sort: Literal["number", "reward", "-reward"] = "number"
    only: Literal["all", "scored", "failed"] = "all"
    reward_min: Bound = None
    reward_max: Bound = None
    metric: Annotated[str, Field(max_length=1000)] = ""
    """Name of a reward function. Rollouts without it are left out."""
    metric_min: Bound = None
    metric_max: Bound = None
    stop_reason: Annotated[str, Field(max_length=1000)] = ""
    failure: Annotated[str, Field(max_length=20)] = ""
    """Boundary where the rollout failed."""
    fault: Annotated[str, Field(max_length=200)] = ""
    """Error and message as the run's page groups them, with every number replaced by `#`."""
    stratum: Annotated[int | None, BeforeValidator(_or_none)] = None
    text: Annotated[str, Field(max_length=200)] = ""
    """Text that the transcript or the example's id contains."""

    def asked(self, **changes: Any) -> dict[str, Any]:
        """Return the non-default fields as query parameters, after applying changes."""
        changed = self.model_copy(update=changes)
        return changed.model_dump(exclude_defaults=True, include=set(RolloutFilter.model_fields))

    @property
    def searches(self) -> bool:
        """Whether rows must be read to find the matching rollouts."""
        return bool(self.asked(sort="number", only="all"))


class RolloutQuery(RolloutFilter):
    """A filter with the range of a page."""

    offset: Annotated[int, Field(ge=0, le=2**31)] = 0
    limit: Annotated[int, Field(ge=1, le=1000)] = 100


class RolloutSearch(BaseModel):
    """Filter for the rollouts of all runs, and the position of a page."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    text: Annotated[str, Field(max_length=200)] = ""
    """Text that the transcript or the example's id contains."""
    environment: Annotated[str, Field(max_length=250)] = ""
    """`owner/name`."""
    model: Annotated[str, Field(max_length=300)] = ""
    """Full name of the model."""
    only: Literal["all", "scored", "failed"] = "all"
    reward_min: Bound = None
    reward_max: Bound = None
    stop_reason: Annotated[str, Field(max_length=1000)] = ""
    failure: Annotated[str, Field(max_length=20)] = ""
    """Boundary where the rollout failed."""
    cursor: Annotated[str | None, Field(max_length=300)] = None
    """`next` of the previous page."""

    @property
    def filter(self) -> RolloutFilter:
        """Filter for the rollouts of each run."""
        return RolloutFilter(**self.model_dump(exclude={"environment", "model", "cursor"}))


@dataclass
class ReadLimit:
    """Decompressed bytes that a search may still read."""

    left: int = field(default_factory=lambda: _MOST_READ)


@dataclass
class RolloutCounts:
    """Rollouts that have something in common."""

    count: int = 0
    failed: int = 0
    total: float = 0.0
    first: int = 0
    """Number of the first rollout."""

    @property
    def mean(self) -> float | None:
        """Mean reward of the scored rollouts."""
        scored = self.count - self.failed
        return self.total / scored if scored else None


@dataclass
class RunBreakdown:
    """Rollouts of a run by stratum, and failed rollouts by fault."""

    strata: dict[int, RolloutCounts] = field(default_factory=dict)
    """First strata, in order."""
    other_strata: int = 0
    """Number of strata that are not listed."""
    faults: dict[tuple[str, str], RolloutCounts] = field(default_factory=dict)
    """Groups by boundary and error, most frequent first."""
    other_faults: int = 0
    """Number of failed rollouts with faults that are not listed."""

    @property
    def numbers(self) -> int:
        """Memory of this object, in units of one cached number."""
        return OF_ENTRY * (len(self.strata) + len(self.faults))


class FoundRow(NamedTuple):
    """A row of a run, and the position of its rollout."""

    number: int
    facts: RowFacts
    chunk: RunChunk
    place: list[int]
    """Start and length of the block in the chunk, and offset and length within the block."""


def fault_of(text: str) -> str:
    """Return the part that similar failures share: numbers, such as ports and times, are replaced by `#`."""
    return _NUMBERS.sub("#", text)


def list_page(
    session: Session, storage: Storage, run: Run, wanted: RolloutFilter, offset: int, limit: int
) -> tuple[list[RolloutRow], int]:
    """Return a page of the matching rows, and the total number of matches."""
    if not wanted.searches:
        return service.read_sorted_page(
            session, storage, run, sort=wanted.sort, only=wanted.only, offset=offset, limit=limit
        )
    numbers = numbers_of(session, storage, run, wanted)
    return service.rows_numbered(session, storage, run, numbers[offset : offset + limit]), len(numbers)


def search_runs(session: Session, storage: Storage, wanted: RolloutSearch) -> RolloutSearchPage:
    """Return the next runs with matching rollouts, of all runs that the session's reader may see.

    Each page reads a limited number of runs, rows and bytes, and may therefore end before it finds any.
    """
    runs, following = service.list_newest(
        session, wanted.environment or None, wanted.model or None, _MOST_RUNS, wanted.cursor
    )
    page = RolloutSearchPage(data=[], searched_runs=0, next=following)
    rows, left = MOST_SEARCHED, _MOST_READ
    for run in runs:
        rows -= service.count_of(run)
        if page.searched_runs and (rows < 0 or left <= 0 or len(page.data) == _MOST_FOUND):
            break
        page.searched_runs += 1
        page.next = service.position_of(run) if page.searched_runs < len(runs) or following else None
        if service.count_of(run) > MOST_SEARCHED:
            page.too_large.append(run.run_id)
            continue
        limit = ReadLimit()
        try:
            numbers = numbers_of(session, storage, run, wanted.filter, limit)
            if numbers:
                page.data.append(_matches(session, storage, run, numbers))
        except ObjectMissing as error:
            log_missing(error.sha256)
            page.missing.append(run.run_id)
        left -= _MOST_READ - limit.left
    return page


def _matches(session: Session, storage: Storage, run: Run, numbers: Sequence[int]) -> RunMatches:
    return RunMatches(
        run_id=run.run_id,
        environment=f"{run.environment.owner.name}/{run.environment.name}",
        model=run.model,
        posted_at=run.posted_at,
        matching=len(numbers),
        rollouts=service.rows_numbered(session, storage, run, numbers[:_FIRST]),
        searched="transcripts" if reads_transcripts(run) else "rows",
    )


def numbers_of(
    session: Session, storage: Storage, run: Run, wanted: RolloutFilter, limit: ReadLimit | None = None
) -> Sequence[int]:
    """Return the numbers of all matching rollouts, in order. What is read is taken off `limit`."""
    if not wanted.asked():
        return range(service.count_of(run))
    find = (
        partial(_find, session, storage, run, wanted, limit or ReadLimit())
        if wanted.searches
        else partial(_all, storage, run, wanted)
    )
    numbers: array[int] = KEPT.get((run.sha256, canonical_json(wanted.asked())), find)
    return numbers


def neighbors(numbers: Sequence[int], number: int, *, ascending: bool) -> tuple[int | None, int | None]:
    """Return the numbers before and after a number, or around its position if it is not in the sequence."""
    if ascending:
        index = bisect_left(numbers, number)
        is_present = index < len(numbers) and numbers[index] == number
    else:
        is_present = number in numbers
        index = numbers.index(number) if is_present else 0
    before = numbers[index - 1] if index else None
    following = index + 1 if is_present else index
    return before, numbers[following] if following < len(numbers) else None


def break_down(session: Session, storage: Storage, run: Run) -> RunBreakdown:
    """Return the rollouts of a run by stratum and by fault; empty if the run is too large to read all
    rows."""
    if run.withdrawn_at is not None or service.count_of(run) > MOST_SEARCHED:
        return RunBreakdown()  # even if an older breakdown of a withdrawn run is cached
    breakdown: RunBreakdown = KEPT.get(run.sha256, lambda: _break_down(session, storage, run))
    return breakdown


def list_strata(manifest: RunManifest) -> list[int]:
    """Return the first strata of a run's examples in order, from its brief manifest."""
    return [stratum for stratum in manifest.strata if stratum is not None]


def is_broken_down(run: Run) -> bool:
    """Return whether the breakdown of a run is cached."""
    return KEPT.has(run.sha256)


def _break_down(session: Session, storage: Storage, run: Run) -> RunBreakdown:
    stratum_of = _strata(run)
    if not stratum_of and not int(run.summary["failed"]):
        return RunBreakdown()
    strata: dict[int, RolloutCounts] = {}
    faults: dict[tuple[str, str], RolloutCounts] = {}
    for number, facts, _, _ in read_rows(session, storage, run):
        groups = []
        if (stratum := stratum_of.get(facts.example_id)) is not None:
            groups.append(strata.setdefault(stratum, RolloutCounts(first=number)))
        if facts.failure is not None:
            groups.append(
                faults.setdefault((facts.failure, fault_of(facts.fault)), RolloutCounts(first=number))
            )
        for group in groups:
            group.count += 1
            group.failed += facts.reward is None
            group.total += facts.reward or 0.0
    most = Counter({fault: group.count for fault, group in faults.items()}).most_common(_MOST_FAULTS)
    shown = {fault: faults[fault] for fault, _ in most}
    others = sum(group.count for group in faults.values()) - sum(group.count for group in shown.values())
    first = dict(sorted(strata.items())[:MOST_STRATA])
    return RunBreakdown(first, len(strata) - len(first), shown, others)


def _all(storage: Storage, run: Run, wanted: RolloutFilter) -> array[int]:
    order = service.order_of(storage, run)
    numbers, _ = order.page(sort=wanted.sort, only=wanted.only, offset=0, limit=service.count_of(run))
    return array("I", numbers)


def _find(
    session: Session, storage: Storage, run: Run, wanted: RolloutFilter, limit: ReadLimit
) -> array[int]:
    if service.count_of(run) > MOST_SEARCHED:
        raise HubProblem(
            422,
            "run_too_large",
            f"`{run.run_id}` has more than {MOST_SEARCHED:,} rollouts, which is too many to search here",
            hint=f"download them with `GET /api/v1/runs/{run.run_id}/rollouts.jsonl`",
        )
    matches = _condition(wanted, _strata(run) if wanted.stratum is not None else {})
    rows: Iterator[FoundRow] = (row for row in read_rows(session, storage, run) if matches(row.facts))
    if wanted.text:
        rows = _search(storage, rows, wanted.text.casefold(), limit, reading=reads_transcripts(run))
    pairs = [(row.facts.reward, row.number) for row in rows]
    if wanted.sort == "number":
        pairs.sort(key=lambda pair: pair[1])
    else:
        sign = -1 if wanted.sort == "-reward" else 1
        # Same as the stored order, read forwards or backwards; failed rollouts come last.
        pairs.sort(
            key=lambda pair: (1, 0.0, pair[1]) if pair[0] is None else (0, sign * pair[0], -sign * pair[1])
        )
    return array("I", (number for _, number in pairs))


def _condition(wanted: RolloutFilter, stratum_of: dict[str, int]) -> Callable[[RowFacts], bool]:
    tests: list[Callable[[RowFacts], bool]] = []
    if wanted.only != "all":
        tests.append(lambda facts: (facts.reward is None) == (wanted.only == "failed"))
    if (wanted.reward_min, wanted.reward_max) != (None, None):
        tests.append(lambda facts: _within(facts.reward, wanted.reward_min, wanted.reward_max))
    if wanted.metric:
        bounds = wanted.metric_min, wanted.metric_max
        tests.append(lambda facts: _within(facts.metrics.get(wanted.metric), *bounds))
    if wanted.stop_reason:
        tests.append(lambda facts: facts.stop_reason == wanted.stop_reason)
    if wanted.failure:
        tests.append(lambda facts: facts.failure == wanted.failure)
    if wanted.fault:
        tests.append(lambda facts: facts.failure is not None and fault_of(facts.fault) == wanted.fault)
    if wanted.stratum is not None:
        tests.append(lambda facts: stratum_of.get(facts.example_id) == wanted.stratum)
    return lambda facts: all(test(facts) for test in tests)


def reads_transcripts(run: Run) -> bool:
    """Return whether a text search of a run reads its transcripts, and not only its rows."""
    return run.stored_bytes <= MOST_STORED


def _search(
    storage: Storage, rows: Iterable[FoundRow], text: str, limit: ReadLimit, *, reading: bool
) -> Iterator[FoundRow]:
    """Yield the rows whose rollouts contain a case-folded text; each block of rollouts is read once."""
    words = json.dumps(text, ensure_ascii=False)[1:-1]
    for (chunk, start, length), block_rows in groupby(rows, key=lambda row: (row.chunk, *row.place[:2])):
        unknown = []
        for row in block_rows:
            if text in row.facts.example_id.casefold() or text in row.facts.preview.casefold():
                yield row
            else:
                unknown.append(row)
        if not unknown or not reading or limit.left < 0:
            continue
        block = chunks.unpack(storage.read(chunk.object_sha256, start, length))
        limit.left -= len(block)
        if not _may_hold(block, words):
            continue
        for row in unknown:
            line = block[row.place[2] : row.place[2] + row.place[3]]
            if _may_hold(line, words) and any(text in part.casefold() for part in chunks.transcript_of(line)):
                yield row


def _may_hold(part: bytes, words: str) -> bool:
    """Return whether lines may contain a case-folded JSON-encoded text, without parsing the lines."""
    if b"\\u" in part:  # an escaped character could be part of the text
        return True
    if words.isascii():  # the common case, which is ten times as fast
        return words.encode() in part.lower()
    return words in part.decode("utf-8", "replace").casefold()


def _within(value: float | None, low: float | None, high: float | None) -> bool:
    if value is None:
        return False
    return (low is None or value >= low) and (high is None or value <= high)


def _strata(run: Run) -> dict[str, int]:
    if not run.brief_manifest.strata:
        return {}
    manifest = run.parsed_manifest
    pairs = zip(manifest.example_ids, manifest.strata, strict=False)
    return {example: stratum for example, stratum in pairs if stratum is not None}


def read_rows(session: Session, storage: Storage, run: Run) -> Iterator[FoundRow]:
    """Yield every row of a run. Parsing a whole frame at once takes half the time of parsing lines."""
    for chunk in chunks_of(session, run.run_id):
        number = chunk.first
        for lines in chunks.read_frames(storage, chunk):
            for values in json.loads(b"[" + b",".join(lines) + b"]"):
                yield FoundRow(number, StoredRow.facts_of(values), chunk, values[-4:])
                number += 1
