"""The columns of environments that listings show (newest version, runs, best model). Only this module sets
them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from sqlalchemy import select, update
from sqlalchemy.orm import Session, joinedload

from wander_hub.database import Database
from wander_hub.environments import repository as environments
from wander_hub.environments import search, service
from wander_hub.environments.models import UNMARKED, Environment, Version
from wander_hub.identity import HUB
from wander_hub.leaderboards import placement, repository
from wander_hub.leaderboards.events import emitting_leader_events
from wander_hub.runs import repository as runs

_BATCH = 100
"""Number of environments that one transaction adds to the search index, because it blocks other writes on
SQLite."""


def refresh(session: Session, environment: Environment, *, without_runs: Version | None = None) -> None:
    """Update the listing from the versions; `without_runs` is a version that was just added.

    The environment's date is that of its newest version, so a yank or a deprecation does not move it up.
    """
    versions = service.list_versions(session, environment)
    latest = session.get_one(Version, service.latest_of(versions).id)
    if environment.latest_version != latest.version:
        environment.latest_version = latest.version
        best = _best(session, environment) if latest is not without_runs else (None, None)
        environment.best_model, environment.best_reward = best
    environment.summary = latest.summary
    environment.tags = latest.tags
    environment.version_count = sum(version.deleted_at is None for version in versions)
    environment.marks = search.marks_of(environment, latest)
    search.write(session, environment, latest)
    environment.updated_at = latest.uploaded_at


def fill_search(database: Database, stop: Callable[[], bool] = lambda: False) -> int:
    """Fill the search index of a restored hub in batches until `stop`; return the number of environments."""
    with database.read(HUB) as session:
        empty = search.is_empty(session)
    if empty:  # a restored hub has rows but no text index
        with database.write(HUB) as session:
            session.execute(update(Environment).where(Environment.listed).values(marks=""))
    with database.read(HUB) as session:
        waiting = session.scalars(select(Environment.id).where(UNMARKED).order_by(Environment.id)).all()
    for start in range(0, len(waiting), _BATCH):
        if stop():
            return start

        def fill(session: Session, batch: Sequence[int] = waiting[start : start + _BATCH]) -> None:
            for environment_id in batch:
                environment = session.get_one(
                    Environment, environment_id, options=[joinedload(Environment.owner)]
                )
                environments.lock_environment(session, environment)
                if not environment.marks:
                    refresh(session, environment)

        database.commit(fill, HUB)
    return len(waiting)


def refresh_results(session: Session, environment: Environment) -> None:
    """Update the results of an environment in listings, and its boards."""
    environments.lock_environment(session, environment)
    with emitting_leader_events(session, environment):
        placement.place_runs(session, environment)
    _set_results(session, environment)


def derive(session: Session, environment: Environment) -> None:
    """Recompute everything that listings show from the rows."""
    refresh(session, environment)
    environment.download_count = environments.count_downloads(session, environment)
    _set_results(session, environment)


def _set_results(session: Session, environment: Environment) -> None:
    environment.run_count = runs.count_runs(session, environment.id)
    environment.best_model, environment.best_reward = _best(session, environment)


def _best(session: Session, environment: Environment) -> tuple[str | None, float | None]:
    """Return model and mean reward of the leading row of the newest version's first board, or None for both.

    Listings show a board if an owner pinned it, or if it has the environment's defaults and its whole
    evaluation split. A score of an older version is never shown for the newest version.
    """
    version = service.find_version(session, environment, "latest")
    for board in repository.boards_of(session, version.id, 1):
        if not (board.pinned or board.standard):
            continue
        if (leader := repository.leader_of(session, board)) is not None:
            return leader.model, leader.reward_mean
    return None, None
