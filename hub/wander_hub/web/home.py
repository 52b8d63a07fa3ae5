"""Gathers what the first page shows: what a search finds, what is worth a look, and results that were proved.

What is promoted there is neither deprecated nor in quarantine: an administrator's choice, or what most runs
were posted of and no check of this hub failed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from sqlalchemy import and_, select
from sqlalchemy.orm import Session
from wander.wire import EnvironmentPage, EnvironmentSummary

from wander_hub.environments import browse, facets
from wander_hub.environments import service as environments
from wander_hub.environments.models import Environment, Version
from wander_hub.environments.repository import environment_named, visible
from wander_hub.environments.schemas import EnvironmentFilter, mark
from wander_hub.leaderboards.models import PROVEN
from wander_hub.runs import repository as run_repository
from wander_hub.runs.models import Run
from wander_hub.web.addresses import query_string

_SHOWN_FIRST = 6
_LOOKED_AT = 300
"""Environments with most runs, and newest runs, among which those are sought that are shown first."""
_NEWEST = 8
_VALUES = 8
"""Of a facet."""
_FILTERS = ("q", "owner", "tag", "kind", "deterministic", "checked", "license", "sort")


class FacetValue(NamedTuple):
    """Something that a search can be narrowed to, or is."""

    text: str
    number: int
    """How many environments are left with it."""
    chosen: bool
    address: str
    """The search with it; where it is chosen already, without."""


@dataclass(frozen=True)
class HomeView:
    """The first page."""

    found: EnvironmentPage
    environments: int
    runs: int
    first: list[EnvironmentSummary]
    """Worth a look."""
    chosen: bool
    """An administrator chose these."""
    proved: list[run_repository.ListedRun]
    """The newest results that this hub derived again."""
    filtered: bool
    """Not all environments were asked for, or in another order."""
    following: str | None
    """Where the next page is."""
    facets: dict[str, list[FacetValue]]
    """What the search can be narrowed to."""

    @property
    def listed(self) -> list[EnvironmentSummary]:
        """The environments; where nobody chose an order, those to be used go before the others."""
        found = self.found.data
        return found if self.filtered else sorted(found, key=lambda one: one.status != "active")

    @property
    def example(self) -> str:
        """An environment to begin with."""
        usable = [
            f"{one.owner}/{one.name}" for one in [*self.first, *self.found.data] if one.status == "active"
        ]
        return usable[0] if usable else "OWNER/NAME"


def show_home(session: Session, wanted: EnvironmentFilter, featured: Sequence[str]) -> HomeView:
    """Return the environments found, the hub's counts, and what is worth a look where nothing was sought."""
    asked = {name: getattr(wanted, name) for name in _FILTERS}
    asked = {name: "true" if value is True else value for name, value in asked.items()}
    filtered = any(asked.values()) or wanted.cursor is not None
    # Before the page: it counts all that the search finds, of which a page may need the first.
    narrower = _list_facets(session, wanted, asked) if filtered else {}
    found = environments.list_page(session, wanted)
    first = [] if filtered else _choose(session, featured) or _best_used(session)
    return HomeView(
        found=found,
        filtered=filtered,
        following=query_string(**asked, cursor=found.next) if found.next else None,
        environments=browse.count_listed(session),
        runs=run_repository.count_runs(session, most=browse.COUNTED + 1),
        first=[environments.summary_of(one) for one in first],
        chosen=bool(featured) and bool(first),
        facets=narrower,
        proved=[] if filtered else _newest_proved(session),
    )


def _list_facets(
    session: Session, wanted: EnvironmentFilter, asked: dict[str, Any]
) -> dict[str, list[FacetValue]]:
    """Return the most frequent values of each facet; of one that is or is not, where it is."""
    found = dict[str, list[FacetValue]]()
    for name, counts in facets.count(session, wanted).items():
        said = mark(name, value) if (value := getattr(wanted, name)) is not None else ""
        for value, number in counts.most_common(_VALUES):
            flag = name in ("deterministic", "checked")
            if flag and value != "yes":
                continue
            chosen = said.partition(":")[2] == value
            given = None if chosen else "true" if flag else value
            one = FacetValue(name if flag else value, number, chosen, query_string(**asked | {name: given}))
            found.setdefault("only" if flag else name, []).append(one)
    return found


def _choose(session: Session, featured: Sequence[str]) -> list[Environment]:
    """Return the environments of these names that may be seen and are in use."""
    pairs = [name.partition("/") for name in featured]
    found = [environment_named(session, owner, name) for owner, _, name in pairs]
    return [one for one in found if one is not None and environments.status_of(one) == "active"]


def _best_used(session: Session) -> Sequence[Environment]:
    """Return public environments with most runs, of which this hub has checked the newest version."""
    often = select(Environment.id).where(Environment.listed, Environment.private.is_(False))
    often = often.where(Environment.run_count > 0).order_by(
        Environment.run_count.desc(), Environment.id.desc()
    )
    newest = and_(Version.environment_id == Environment.id, Version.version == Environment.latest_version)
    query = visible(session).join(Version, newest).where(Environment.id.in_(often.limit(_LOOKED_AT)))
    query = query.where(Version.checked.is_(True), Environment.status == "active", Version.yanked.is_(False))
    query = query.where(Environment.quarantine_reason.is_(None), Environment.deleted_at.is_(None))
    order = Environment.run_count.desc(), Environment.id.desc()
    return session.scalars(query.order_by(*order).limit(_SHOWN_FIRST)).all()


def _newest_proved(session: Session) -> list[run_repository.ListedRun]:
    """Return the newest public results that the hub derived again, of environments that are in use."""
    order = Run.posted_at.desc(), Run.run_id.desc()
    newest = select(Run.run_id, Run.level).where(run_repository.counts()).order_by(*order).limit(_LOOKED_AT)
    # In two steps: PostgreSQL, which expects next to none of such a level, would go through all runs instead.
    proven = [run_id for run_id, level in session.execute(newest) if level in PROVEN]
    query = run_repository.listed(session).order_by(*order)
    query = query.where(Environment.status == "active", Environment.quarantine_reason.is_(None))
    found: list[run_repository.ListedRun] = []
    while proven and len(found) < _NEWEST:
        some, proven = proven[: 2 * _NEWEST], proven[2 * _NEWEST :]
        found += run_repository.list_rows(session, query.where(Run.run_id.in_(some)))
    return found[:_NEWEST]
