"""Finds rollouts of a run by what their rows say: reward, metrics, endings, strata; and by words, of which
their transcripts are read too where those are not too large.

The rows of 100,000 rollouts take half a second of a processor to read, so what a filter found is kept: as
numbers, by the digest of the run, which never changes.
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

from wander_hub.http.problems import HubProblem
from wander_hub.runs import chunks, service
from wander_hub.runs.chunks import Row, RowFacts
from wander_hub.runs.kept import KEPT, OF_ENTRY
from wander_hub.runs.models import MOST_STRATA, Run, RunChunk
from wander_hub.runs.repository import chunks_of
from wander_hub.storage import Storage

MOST_SEARCHED = 250_000
"""Rollouts of a run whose rows are read to find some."""
MOST_STORED = 64 * 1024 * 1024
"""Bytes of a run, packed, whose transcripts are searched for words; of a larger one what its rows say is."""
_MOST_READ = 512 * 1024 * 1024
"""Bytes of transcripts, unpacked, that one search reads: what was packed well may be far more."""
_MOST_FAULTS = 20
_NUMBERS = re.compile(r"\d+")


def _or_none(value: object) -> object:
    return None if value == "" else value  # a field of a form that was left empty


Bound = Annotated[Annotated[float, Field(allow_inf_nan=False)] | None, BeforeValidator(_or_none)]


class RolloutFilter(BaseModel):
    """Which rollouts of a run are asked for, and in which order."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    sort: Literal["number", "reward", "-reward"] = "number"
    only: Literal["all", "scored", "failed"] = "all"
    reward_min: Bound = None
    reward_max: Bound = None
    metric: Annotated[str, Field(max_length=1000)] = ""
    """Name of a reward function; rollouts without it are left out."""
    metric_min: Bound = None
    metric_max: Bound = None
    stop_reason: Annotated[str, Field(max_length=1000)] = ""
    failure: Annotated[str, Field(max_length=20)] = ""
    """Boundary that broke."""
    fault: Annotated[str, Field(max_length=200)] = ""
    """What broke: error and message as the run's page groups them, each number written `#`."""
    stratum: Annotated[int | None, BeforeValidator(_or_none)] = None
    text: Annotated[str, Field(max_length=200)] = ""
    """Part of the transcript, or of the example's id."""

    def asked(self, **changes: Any) -> dict[str, Any]:
        """Return what differs from asking for everything, with changes, as an address has it."""
        given = self.model_copy(update=changes)
        return given.model_dump(exclude_defaults=True, include=set(RolloutFilter.model_fields))

    @property
    def searches(self) -> bool:
        """True where rows must be read to know which rollouts are meant."""
        return bool(self.asked(sort="number", only="all"))


class RolloutQuery(RolloutFilter):
    """A page of them."""

    offset: Annotated[int, Field(ge=0, le=2**31)] = 0
    limit: Annotated[int, Field(ge=1, le=1000)] = 100


@dataclass
class Group:
    """Rollouts that have something in common."""

    count: int = 0
    failed: int = 0
    total: float = 0.0
    first: int = 0
    """Number of the first of them."""

    @property
    def mean(self) -> float | None:
        """Mean reward of those that were scored."""
        scored = self.count - self.failed
        return self.total / scored if scored else None


@dataclass
class Breakdown:
    """The rollouts of a run by stratum, and the failed ones by what broke."""

    strata: dict[int, Group] = field(default_factory=dict)
    """The first in order."""
    other_strata: int = 0
    """How many there are beside those."""
    faults: dict[tuple[str, str], Group] = field(default_factory=dict)
    """By boundary and error, the most frequent first."""
    other_faults: int = 0
    """Failed rollouts of faults that are rarer than those."""

    @property
    def numbers(self) -> int:
        """How many numbers have the room of it."""
        return OF_ENTRY * (len(self.strata) + len(self.faults))


class _Found(NamedTuple):
    """A row of a run, and where the whole rollout lies."""

    number: int
    facts: RowFacts
    chunk: RunChunk
    place: list[int]
    """Start and length of its block in the chunk, its offset and length in that."""


def fault_of(text: str) -> str:
    """Return what identical failures share: numbers, as ports and times, do not tell them apart."""
    return _NUMBERS.sub("#", text)


def list_page(
    session: Session, storage: Storage, run: Run, wanted: RolloutFilter, offset: int, limit: int
) -> tuple[list[RolloutRow], int]:
    """Return a page of the rows that are asked for, and how many there are in all."""
    if not wanted.searches:
        return service.read_sorted_page(
            session, storage, run, sort=wanted.sort, only=wanted.only, offset=offset, limit=limit
        )
    numbers = numbers_of(session, storage, run, wanted)
    return service.rows_numbered(session, storage, run, numbers[offset : offset + limit]), len(numbers)


def numbers_of(session: Session, storage: Storage, run: Run, wanted: RolloutFilter) -> Sequence[int]:
    """Return the numbers of all rollouts that are asked for, in order."""
    if not wanted.asked():
        return range(service.count_of(run))
    find = (
        partial(_find, session, storage, run, wanted)
        if wanted.searches
        else partial(_all, storage, run, wanted)
    )
    found: array[int] = KEPT.get((run.sha256, canonical_json(wanted.asked())), find)
    return found


def neighbours(numbers: Sequence[int], number: int, *, ascending: bool) -> tuple[int | None, int | None]:
    """Return the numbers before and after one; where it is not among them, those it would stand between."""
    if ascending:
        place = bisect_left(numbers, number)
        there = place < len(numbers) and numbers[place] == number
    else:
        there = number in numbers
        place = numbers.index(number) if there else 0
    before = numbers[place - 1] if place else None
    following = place + 1 if there else place
    return before, numbers[following] if following < len(numbers) else None


def break_down(session: Session, storage: Storage, run: Run) -> Breakdown:
    """Return the rollouts of a run by stratum and by fault; nothing where reading all rows takes too long."""
    if run.withdrawn_at is not None or service.count_of(run) > MOST_SEARCHED:
        return Breakdown()  # also where something is kept from before it was withdrawn
    found: Breakdown = KEPT.get(run.sha256, lambda: _break_down(session, storage, run))
    return found


def list_strata(manifest: RunManifest) -> list[int]:
    """Return the first strata of a run's examples in order, from its brief manifest."""
    return [one for one in manifest.strata if one is not None]


def is_broken_down(run: Run) -> bool:
    """Tell whether that is kept already, so that nothing has to be read."""
    return KEPT.has(run.sha256)


def _break_down(session: Session, storage: Storage, run: Run) -> Breakdown:
    stratum_of = _strata(run)
    if not stratum_of and not int(run.summary["failed"]):
        return Breakdown()
    strata: dict[int, Group] = {}
    faults: dict[tuple[str, str], Group] = {}
    for number, facts, _, _ in _rows(session, storage, run):
        groups = []
        if (stratum := stratum_of.get(facts.example_id)) is not None:
            groups.append(strata.setdefault(stratum, Group(first=number)))
        if facts.failure is not None:
            groups.append(faults.setdefault((facts.failure, fault_of(facts.fault)), Group(first=number)))
        for group in groups:
            group.count += 1
            group.failed += facts.reward is None
            group.total += facts.reward or 0.0
    most = Counter({fault: group.count for fault, group in faults.items()}).most_common(_MOST_FAULTS)
    shown = {fault: faults[fault] for fault, _ in most}
    others = sum(one.count for one in faults.values()) - sum(one.count for one in shown.values())
    first = dict(sorted(strata.items())[:MOST_STRATA])
    return Breakdown(first, len(strata) - len(first), shown, others)


def _all(storage: Storage, run: Run, wanted: RolloutFilter) -> array[int]:
    order = service.order_of(storage, run)
    numbers, _ = order.page(sort=wanted.sort, only=wanted.only, offset=0, limit=service.count_of(run))
    return array("I", numbers)


def _find(session: Session, storage: Storage, run: Run, wanted: RolloutFilter) -> array[int]:
    if service.count_of(run) > MOST_SEARCHED:
        raise HubProblem(
            422,
            "run_too_large",
            f"`{run.run_id}` has more than {MOST_SEARCHED:,} rollouts, which are not searched here",
            hint=f"`GET /api/v1/runs/{run.run_id}/rollouts.jsonl` sends them all",
        )
    fits = _condition(wanted, _strata(run) if wanted.stratum is not None else {})
    rows: Iterator[_Found] = (row for row in _rows(session, storage, run) if fits(row.facts))
    if wanted.text:
        rows = _say(storage, rows, wanted.text.casefold(), reading=reads_transcripts(run))
    found = [(row.facts.reward, row.number) for row in rows]
    if wanted.sort == "number":
        found.sort(key=lambda one: one[1])
    else:
        sign = -1 if wanted.sort == "-reward" else 1
        # As in the stored order, read forwards or backwards; failed ones stand last.
        found.sort(key=lambda one: (1, 0.0, one[1]) if one[0] is None else (0, sign * one[0], -sign * one[1]))
    return array("I", (number for _, number in found))


def _condition(wanted: RolloutFilter, stratum_of: dict[str, int]) -> Callable[[RowFacts], bool]:
    tests: list[Callable[[RowFacts], bool]] = []
    if wanted.only != "all":
        tests.append(lambda one: (one.reward is None) == (wanted.only == "failed"))
    if (wanted.reward_min, wanted.reward_max) != (None, None):
        tests.append(lambda one: _within(one.reward, wanted.reward_min, wanted.reward_max))
    if wanted.metric:
        bounds = wanted.metric_min, wanted.metric_max
        tests.append(lambda one: _within(one.metrics.get(wanted.metric), *bounds))
    if wanted.stop_reason:
        tests.append(lambda one: one.stop_reason == wanted.stop_reason)
    if wanted.failure:
        tests.append(lambda one: one.failure == wanted.failure)
    if wanted.fault:
        tests.append(lambda one: one.failure is not None and fault_of(one.fault) == wanted.fault)
    if wanted.stratum is not None:
        tests.append(lambda one: stratum_of.get(one.example_id) == wanted.stratum)
    return lambda one: all(test(one) for test in tests)


def reads_transcripts(run: Run) -> bool:
    """Tell whether words are looked for in the transcripts of a run, not only in what its rows say."""
    return run.stored_bytes <= MOST_STORED


def _say(storage: Storage, rows: Iterable[_Found], text: str, *, reading: bool) -> Iterator[_Found]:
    """Yield those of the rows in whose rollouts a text, folded, stands; each block of them is read once."""
    words, read = json.dumps(text, ensure_ascii=False)[1:-1], 0
    for (chunk, start, length), some in groupby(rows, key=lambda one: (one.chunk, *one.place[:2])):
        unknown = []
        for row in some:
            if text in row.facts.example_id.casefold() or text in row.facts.preview.casefold():
                yield row
            else:
                unknown.append(row)
        if not unknown or not reading or read > _MOST_READ:
            continue
        block = chunks.unpack(storage.read(chunk.object_sha256, start, length))
        read += len(block)
        if not _may_hold(block, words):
            continue
        for row in unknown:
            line = block[row.place[2] : row.place[2] + row.place[3]]
            if _may_hold(line, words) and any(text in one.casefold() for one in chunks.transcript_of(line)):
                yield row


def _may_hold(part: bytes, words: str) -> bool:
    """Tell whether words, folded and as JSON writes them, may stand in lines, without parsing these."""
    if b"\\u" in part:  # a letter that is written by its code
        return True
    if words.isascii():  # the usual case, ten times as fast
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


def _rows(session: Session, storage: Storage, run: Run) -> Iterator[_Found]:
    """Yield every row of a run, a frame read at a time: half the time of line by line."""
    for chunk in chunks_of(session, run.run_id):
        number = chunk.first
        for frame in range(len(chunk.row_frames)):
            lines = chunks.row_lines(storage, chunk, frame)
            for values in json.loads(b"[" + b",".join(lines) + b"]"):
                yield _Found(number, Row.facts_of(values), chunk, values[-4:])
                number += 1
