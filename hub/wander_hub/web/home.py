"""Gathers the data for the home page: search results, featured environments, and the latest verified results.

Administrators choose the featured environments. If they have not, the page features the environments with the
most runs whose newest version passed this hub's checks. It never features a deprecated or quarantined one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import and_, select
from sqlalchemy.orm import Session
from wander.wire import EnvironmentPage, EnvironmentSummary

from wander_hub.environments import browse
from wander_hub.environments import service as environments
from wander_hub.environments.models import Environment, Version
from wander_hub.environments.repository import environment_named, visible
from wander_hub.environments.schemas import EnvironmentFilter
from wander_hub.leaderboards.models import PROVEN
from wander_hub.runs import repository as run_repository
from wander_hub.runs.models import Run
from wander_hub.web.addresses import query_string

_SHOWN_FIRST = 6
_LOOKED_AT = 300
"""The page selects from this number of environments with the most runs, and of newest runs."""
_NEWEST = 8
_FILTERS = ("q", "owner", "tag", "kind", "deterministic", "checked", "license", "sort")


@dataclass(frozen=True)
class HomeView:
    """Data for the home page."""

    found: EnvironmentPage
    environments: int
    runs: int
    first: list[EnvironmentSummary]
    """Featured environments."""
    chosen: bool
    """Whether an administrator chose the featured environments."""
    proved: list[run_repository.ListedRun]
    """The newest results whose rewards this hub recomputed."""
    filtered: bool
    """Whether the request has a filter or a sort order."""
    following: str | None
    """Address of the next page."""

    @property
    def listed(self) -> list[EnvironmentSummary]:
        """The environments. Without filters and order, active ones come first."""
        found = self.found.data
        return found if self.filtered else sorted(found, key=lambda one: one.status != "active")

    @property
    def example(self) -> str:
        """An environment for the commands at the top."""
        usable = [
            f"{one.owner}/{one.name}" for one in [*self.first, *self.found.data] if one.status == "active"
        ]
        return usable[0] if usable else "OWNER/NAME"


def show_home(session: Session, wanted: EnvironmentFilter, featured: Sequence[str]) -> HomeView:
    """Return the data of the home page: with filters the matches, without them also the featured ones."""
    asked = {name: getattr(wanted, name) for name in _FILTERS}
    asked = {name: "true" if value is True else value for name, value in asked.items()}
    filtered = any(asked.values()) or wanted.cursor is not None
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
        proved=[] if filtered else _newest_proved(session),
    )


def _choose(session: Session, featured: Sequence[str]) -> list[Environment]:
    """Return the environments of these names that the reader can see and that are active."""
    pairs = [name.partition("/") for name in featured]
    found = [environment_named(session, owner, name) for owner, _, name in pairs]
    return [one for one in found if one is not None and environments.status_of(one) == "active"]


def _best_used(session: Session) -> Sequence[Environment]:
    """Return the public environments with the most runs whose newest version this hub has checked."""
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
    """Return the newest public results that the hub verified, of active environments."""
    order = Run.posted_at.desc(), Run.run_id.desc()
    newest = select(Run.run_id, Run.level).where(run_repository.counts()).order_by(*order).limit(_LOOKED_AT)
    # In two steps: PostgreSQL expects very few runs of such a level, and would scan all runs in one query.
    proven = [run_id for run_id, level in session.execute(newest) if level in PROVEN]
    query = run_repository.listed(session).order_by(*order)
    query = query.where(Environment.status == "active", Environment.quarantine_reason.is_(None))
    found: list[run_repository.ListedRun] = []
    while proven and len(found) < _NEWEST:
        some, proven = proven[: 2 * _NEWEST], proven[2 * _NEWEST :]
        found += run_repository.list_rows(session, query.where(Run.run_id.in_(some)))
    return found[:_NEWEST]
