"""Gathers rollouts of one example side by side: several of one run, or one from each of several runs."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

from sqlalchemy.orm import Session
from wander.errors import RunError
from wander.types import Rollout
from wander.wire import RolloutRow, RunDetail

from wander_hub.http.problems import HubProblem
from wander_hub.runs import service as runs
from wander_hub.runs.models import Run
from wander_hub.storage import Storage
from wander_hub.web.addresses import query_of
from wander_hub.web.run import transcript
from wander_hub.web.run.compare import Scored, compare_scored, list_apart
from wander_hub.web.run.rollout import list_siblings
from wander_hub.web.run.transcript import ShownMessage
from wander_hub.web.visit import Visit

_MOST_SHOWN = 4
_MOST_MESSAGES = 40


@dataclass(frozen=True)
class ShownRollout:
    """A rollout next to other rollouts of its example."""

    row: RolloutRow
    messages: list[ShownMessage]
    omitted: int


@dataclass(frozen=True)
class GroupView:
    """Rollouts of one example side by side."""

    run: RunDetail
    label: str
    number: int
    example_id: str
    prompt: list[ShownMessage]
    shown: list[ShownRollout]
    siblings: list[RolloutRow]
    before: int | None
    """Number of the first sibling on the previous page."""
    following: int | None


@dataclass(frozen=True)
class Column:
    """One run's rollout of an example."""

    run: RunDetail
    shown: ShownRollout
    siblings: list[tuple[RolloutRow, str]]
    """The run's rollouts of the example, each with the address that shows it in this column."""


@dataclass(frozen=True)
class ExampleView:
    """Data for the page of one example in several runs."""

    example_id: str
    columns: list[Column]
    prompt: list[ShownMessage] | None
    """The first messages, if all rollouts share them. If they differ, None, and each column shows its own."""
    together: str
    """Address of the page that compares the runs."""
    before: str
    """Addresses of the examples with the next larger and next smaller difference of the first two runs, or
    empty strings."""
    following: str


def group(visit: Visit, run_id: str, number: int) -> GroupView:
    """Return a few rollouts of one example, starting with this one, and their shared first messages."""
    found = runs.find(visit.session, run_id)
    whole = runs.rollout(visit.session, visit.storage, found, number)
    siblings = list_siblings(visit.session, visit.storage, found, number, whole.example_id)
    place = next(place for place, one in enumerate(siblings) if one.number == number)
    following = siblings[place + _MOST_SHOWN : place + _MOST_SHOWN + 1]
    detail = runs.detail_of(found, visit.base_url)
    return GroupView(
        run=detail,
        label=found.environment.label,
        number=number,
        example_id=whole.example_id,
        prompt=_list_prompt(detail, whole),
        shown=[
            _show(
                *(detail, one),
                whole
                if one.number == number
                else runs.rollout(visit.session, visit.storage, found, one.number),
            )
            for one in siblings[place : place + _MOST_SHOWN]
        ],
        siblings=siblings,
        before=siblings[max(place - _MOST_SHOWN, 0)].number if place else None,
        following=following[0].number if following else None,
    )


def example(visit: Visit, found: Sequence[Run], example_id: str, numbers: Sequence[int]) -> ExampleView:
    """Return a rollout of each run, selected by `numbers`, or by the largest difference if it is empty."""
    if len(labels := {one.environment.label: None for one in found}) > 1:
        fault = f"the runs belong to several environments, {' and '.join(f'`{one}`' for one in labels)}"
        raise HubProblem(422, "invalid_request", fault, hint="compare runs of one environment")
    scored = [Scored(visit.session, visit.storage, one) for one in found]
    apart = _find_apart(scored, example_id)
    chosen = list(numbers) or apart
    if len(chosen) != len(scored):
        fault = f"got {len(chosen)} rollouts for {len(scored)} runs"
        raise HubProblem(
            422, "invalid_request", fault, hint="select one rollout for each run, or no rollouts"
        )
    asked = {"run": [one.run_id for one in found]}
    groups = [
        list_siblings(visit.session, visit.storage, one.run, number, example_id)
        for one, number in zip(scored, apart, strict=True)
    ]
    pairs = [_find(visit.session, visit.storage, *each) for each in zip(found, groups, chosen, strict=True)]
    first = pairs[0][1]
    same_prompt = all(one.prompt == first.prompt for _, one in pairs)
    columns = []
    for place, (run, siblings, pair) in enumerate(zip(found, groups, pairs, strict=True)):
        detail = runs.detail_of(run, visit.base_url)
        addresses = [
            query_of(
                {
                    **asked,
                    "example": example_id,
                    "rollout": [*chosen[:place], row.number, *chosen[place + 1 :]],
                }
            )
            for row in siblings
        ]
        shown = _show(detail, *pair, prompt=not same_prompt)
        columns.append(Column(detail, shown, list(zip(siblings, addresses, strict=True))))
    before, following = _neighbors(scored[0], scored[1], example_id)
    return ExampleView(
        example_id=example_id,
        columns=columns,
        prompt=_list_prompt(columns[0].run, first) if same_prompt else None,
        together=f"/runs/compare{query_of(asked)}",
        before=query_of({**asked, "example": before}) if before is not None else "",
        following=query_of({**asked, "example": following}) if following is not None else "",
    )


def _find_apart(scored: Sequence[Scored], example_id: str) -> list[int]:
    """Return the number of each run's rollout that shows the difference on an example best."""
    for one in scored:
        if example_id not in one.scores:
            detail = f"`{one.run.run_id}` has no scored rollout of an example `{example_id[:80]}`"
            raise HubProblem(404, "example_not_found", detail)
    means = [one.scores[example_id].mean for one in scored]
    # The first run is compared with the second, and every other run with the first.
    higher = [means[0] > means[1], *(mean > means[0] for mean in means[1:])]
    return [one.number(example_id, greatest=up) for one, up in zip(scored, higher, strict=True)]


def _find(
    session: Session, storage: Storage, run: Run, siblings: Sequence[RolloutRow], number: int
) -> tuple[RolloutRow, Rollout]:
    own = next((one for one in siblings if one.number == number), None)
    if own is None:
        detail = f"rollout {number} of `{run.run_id}` belongs to another example"
        raise HubProblem(404, "rollout_not_found", detail)
    return own, runs.rollout(session, storage, run, number)


def _show(run: RunDetail, row: RolloutRow, whole: Rollout, *, prompt: bool = False) -> ShownRollout:
    first = 0 if prompt else len(whole.prompt)
    messages, omitted = transcript.list_messages(whole, first, run.manifest.environment.info.view)
    left_out = max(0, len(messages) - _MOST_MESSAGES)
    return ShownRollout(row, messages[:_MOST_MESSAGES], omitted + left_out)


def _list_prompt(run: RunDetail, whole: Rollout) -> list[ShownMessage]:
    beginning = whole.model_copy(update={"completion": [], "turns": []})
    return transcript.list_messages(beginning, view=run.manifest.environment.info.view)[0]


def _neighbors(first: Scored, second: Scored, example_id: str) -> tuple[str | None, str | None]:
    """Return the examples with the next larger and the next smaller difference between two runs."""
    with suppress(RunError):  # runs that cannot be compared can still show this example
        found = compare_scored(first, second)
        names = [one.example_id for one in list_apart(found)]
        if example_id in names:
            place = names.index(example_id)
            return (names[place - 1] if place else None), next(iter(names[place + 1 :]), None)
    return None, None
