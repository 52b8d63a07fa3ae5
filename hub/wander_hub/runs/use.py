"""Use of an environment: environments that require it or were forked from it, and models and authors of its
runs."""

from __future__ import annotations

from collections import Counter
from functools import lru_cache

from sqlalchemy import Select, bindparam, select
from sqlalchemy.orm import Session
from wander.wire import EnvironmentSummary
from wander.wire.environments import ModelUse, UsedBy

from wander_hub.accounts.models import User
from wander_hub.database import READER
from wander_hub.environments import browse, search, service
from wander_hub.environments.models import Environment
from wander_hub.environments.repository import KEPT_STATEMENTS, visible_to
from wander_hub.environments.schemas import EnvironmentFilter
from wander_hub.http.boundary import ReadSession
from wander_hub.http.problems import refusals
from wander_hub.http.routing import HubRouter
from wander_hub.identity import Identity
from wander_hub.names import BUNDLED_OWNER
from wander_hub.runs.models import Run
from wander_hub.runs.repository import counts, readable_run_by

router = HubRouter(prefix="/api/v1/environments", tags=["environments"])
_MOST_ENVIRONMENTS, _MOST_RUNS, _MOST_NAMES = 100, 500, 50


@router.get("/{owner}/{name}/used-by", responses=refusals(404, 410, 422))
def get_use(session: ReadSession, owner: str, name: str) -> UsedBy:
    """Return the use of an environment: what requires it, its forks, and the models and authors of its last
    500 runs."""
    return used_by(session, service.find(session, owner, name))


def used_by(session: Session, environment: Environment) -> UsedBy:
    """Return the use of an environment, within what the reader may see."""
    required_by, forks = list_dependents(session, environment)
    values = {"environment_id": environment.id}
    runs = session.execute(_newest_runs(session.info.get(READER)), values).all()
    models, authors = Counter(model for model, _ in runs), Counter(author for _, author in runs)
    return UsedBy(
        required_by=required_by,
        forks=forks,
        runs=environment.run_count,
        models=[ModelUse(model=model, runs=number) for model, number in models.most_common(_MOST_NAMES)],
        authors=[author for author, _ in authors.most_common(_MOST_NAMES)],
    )


def list_dependents(
    session: Session, environment: Environment
) -> tuple[list[EnvironmentSummary], list[EnvironmentSummary]]:
    """Return the environments that require an environment and its forks, within what the reader may see."""
    owner = environment.owner.name
    # A required name belongs to the owner who requires it, or to the owner whose namespace contains it.
    is_shared = owner == BUNDLED_OWNER or f"{environment.name}-".startswith(f"{owner}-")
    wanted = EnvironmentFilter(
        requires=environment.name, owner=None if is_shared else owner, limit=_MOST_ENVIRONMENTS
    )
    marked = search.marked(session, wanted, None if is_shared else environment.owner_id)
    is_required = session.scalar(select(marked.c.id).limit(1)) is not None  # false for most environments
    required_by = browse.page(session, wanted)[0] if is_required else []
    forks = session.scalars(_forks(session.info.get(READER)), {"environment_id": environment.id})
    return (
        [service.summary_of(user) for user in required_by if user.id != environment.id],
        [service.summary_of(fork) for fork in forks],
    )


@lru_cache(KEPT_STATEMENTS)
def _newest_runs(reader: Identity | None) -> Select[str, str]:
    newest = select(Run.model, User.name).join(Run.environment).join(User, Run.posted_by_id == User.id)
    newest = newest.where(
        Run.environment_id == bindparam("environment_id"), readable_run_by(reader), counts()
    )
    return newest.order_by(Run.posted_at.desc()).limit(_MOST_RUNS)


@lru_cache(KEPT_STATEMENTS)
def _forks(reader: Identity | None) -> Select[Environment]:
    forks = visible_to(reader).where(
        Environment.parent_id == bindparam("environment_id"), Environment.deleted_at.is_(None)
    )
    return forks.order_by(Environment.id).limit(_MOST_ENVIRONMENTS)
