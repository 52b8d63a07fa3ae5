"""What the hub follows: added and removed by the operator, looked at by jobs."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from sqlalchemy import delete, select
from sqlalchemy.orm import Session

from wander_hub import audit, names
from wander_hub.accounts import repository as accounts
from wander_hub.accounts.models import Membership, Owner
from wander_hub.accounts.service import new_owner
from wander_hub.database import Database, now
from wander_hub.environments.models import Environment
from wander_hub.http.boundary import Context
from wander_hub.http.problems import HubProblem
from wander_hub.identity import HUB
from wander_hub.jobs import Job, JobContext, JobWorker, TableQueue, worker_name
from wander_hub.mirrors.models import Mirror
from wander_hub.settings import Settings
from wander_hub.storage import Storage
from wander_hub.webhooks.addresses import fault_of

if TYPE_CHECKING:  # a hub that follows none loads no client
    from wander_hub.mirrors.upstream import UpstreamHub

logger = logging.getLogger("wander_hub")

KIND = "mirror"
"""Of the jobs that look once."""
_FIRST_PAUSE = 60.0
_JOBS_KEPT = timedelta(days=1)
_LONGEST_URL = 300


@dataclass(frozen=True)
class Outcome:
    """What a look came to."""

    versions: int = 0
    runs: int = 0
    problems: list[str] = field(default_factory=list)
    cut: bool = False
    """The other hub did not let it come to its end."""
    wait: float = 0.0
    """Seconds for which that wants to be left alone."""


def add(
    database: Database,
    settings: Settings,
    origin: audit.Origin,
    url: str,
    owner: str,
    name: str = "",
    token_file: Path | None = None,
) -> Mirror:
    """Follow an owner of another hub, or one environment; refuse names that are taken here."""
    url, owner, name = url.rstrip("/"), names.normalise_owner(owner), names.normalise_environment(name)
    fault = fault_of(url, http=bool(settings.mirror_networks), networks=settings.mirror_networks)
    if fault is not None or "?" in url or len(url) > _LONGEST_URL:
        hint = "`WANDER_HUB_MIRROR_NETWORKS` says in which networks it may be, and allows `http:`"
        detail = f"`{url[:_LONGEST_URL]}` cannot be followed: {fault or 'it is no hub'}"
        raise HubProblem(422, "bad_address", detail, hint=hint)
    if not names.is_owner_name(owner) or (name and not names.is_environment_name(name)):
        raise HubProblem(422, "bad_name", f"`{owner}/{name}` is no name of an owner or an environment")
    kept = str(token_file.absolute()) if token_file is not None else None
    known_as = {"url": url, "owner": owner, "name": name}
    offered = _ask_for_names(Mirror(**known_as, token_file=kept), settings)

    def record(session: Session) -> Mirror:
        same = session.scalar(select(Mirror).filter_by(**known_as))
        if same is not None:
            raise HubProblem(409, "mirror_exists", f"mirror {same.id} follows that already")
        held = accounts.owner_named(session, owner)
        if held is None:
            new_owner(session, owner)
        elif taken := _find_taken(session, held, url, offered):
            detail = f"taken here, nothing was written: {', '.join(f'`{one}`' for one in taken[:20])}"
            hint = "an owner is followed on a hub that has none of that name"
            raise HubProblem(409, "names_taken", detail, hint=hint)
        mirror = Mirror(
            **known_as, token_file=kept, added_at=now(), due_at=now(), failures=0, problems=[], seen={}
        )
        session.add(mirror)
        session.flush()
        audit.about(session, owner=owner, target=mirror.target, url=url)
        return mirror

    return database.commit(audit.recorded(record, origin), HUB)


def remove(session: Session, number: int, *, release: bool = False) -> Mirror:
    """Follow something no more; what came stays as it is, or with `release` becomes this hub's own."""
    mirror = session.get(Mirror, number)
    if mirror is None:
        raise not_there(number)
    if release:
        source = f"{mirror.url}/{mirror.owner}/{mirror.name}"
        same = Environment.mirror_of == source
        if not mirror.name:
            same = Environment.mirror_of.startswith(source, autoescape=True)
        for one in session.scalars(select(Environment).where(same)).all():
            one.mirror_of = None
    session.delete(mirror)
    audit.about(session, owner=mirror.owner, target=mirror.target, url=mirror.url, released=release)
    return mirror


def refresh(session: Session, queue: TableQueue, number: int) -> Mirror:
    """Make a job that compares everything; one that waits already is the one."""
    mirror = session.get(Mirror, number, with_for_update=True)
    if mirror is None:
        raise not_there(number)
    key = f"{KIND} {number} asked "
    waits = select(Job.id).where(Job.kind == KIND, Job.state == "queued", Job.key.startswith(key))
    if session.scalar(waits.limit(1)) is None:
        queue.submit(session, KIND, key + now().isoformat(), {"mirror": number, "thorough": True})
    audit.about(session, owner=mirror.owner, target=mirror.target, url=mirror.url)
    return mirror


def not_there(number: int) -> HubProblem:
    """Return the refusal of a number that no mirror has."""
    hint = "`wander-hub mirror list` lists them"
    return HubProblem(404, "mirror_not_found", f"there is no mirror {number}", hint=hint)


def list_all(session: Session) -> list[Mirror]:
    """Return what is followed."""
    return list(session.scalars(select(Mirror).order_by(Mirror.id)))


def look(
    settings: Settings,
    database: Database,
    storage: Storage,
    queue: TableQueue,
    number: int,
    check: Callable[[], None] = lambda: None,
    *,
    thorough: bool = False,
) -> Outcome:
    """Bring what is new of one mirror."""
    from wander_hub.mirrors.following import Look
    from wander_hub.mirrors.upstream import UpstreamSilent

    with database.read(HUB) as session:
        mirror = session.get(Mirror, number)
    if mirror is None:
        return Outcome()
    try:
        upstream = _open(mirror, settings)
    except OSError as error:
        return Outcome(problems=[f"its token cannot be read: {error.strerror}"], cut=True)
    context = Context(HUB, database, storage, settings)
    found = Look(context, queue, upstream, mirror, check, thorough=thorough)
    try:
        found.go()
    except UpstreamSilent as error:
        told = [f"it was cut short: {error}", *found.problems]
        return Outcome(found.versions, found.runs, told, cut=True, wait=error.wait)
    finally:
        upstream.close()
    return Outcome(found.versions, found.runs, found.problems)


def keep(session: Session, settings: Settings, number: int, outcome: Outcome) -> None:
    """Keep what a look came to, and when the next one is due: sooner where it was cut short."""
    session.execute(
        delete(Job).where(
            Job.kind == KIND,
            Job.state.in_(("done", "failed", "cancelled")),
            Job.finished_at < now() - _JOBS_KEPT,
        )
    )
    mirror = session.get(Mirror, number, with_for_update=True)
    if mirror is None:
        return
    mirror.problems = outcome.problems
    pause = settings.mirror_minutes * 60
    if outcome.cut:
        pause = max(outcome.wait, min(pause, _FIRST_PAUSE * 2 ** min(mirror.failures, 10)))
        mirror.failures += 1
    else:
        mirror.failures, mirror.looked_at = 0, now()
    mirror.due_at = now() + timedelta(seconds=pause)
    for one in outcome.problems:
        logger.warning("mirror %d of %s: %s", number, mirror.url, one)


def worker(settings: Settings, database: Database, storage: Storage, queue: TableQueue) -> JobWorker:
    """Return a worker that does nothing but look, not yet started."""

    def handler(context: JobContext) -> Callable[[Session], None]:
        number = int(context.lease.payload["mirror"])
        thorough = bool(context.lease.payload.get("thorough"))
        outcome = look(settings, database, storage, queue, number, context.check, thorough=thorough)
        return partial(keep, settings=settings, number=number, outcome=outcome)

    due = partial(submit_due, settings, database, queue)
    return JobWorker(queue, {KIND: handler}, worker_name("mirrors"), look=due)


def submit_due(settings: Settings, database: Database, queue: TableQueue) -> None:
    """Make a job of each look that is due."""
    if not settings.mirror_minutes:
        return
    due = select(Mirror.id).where(Mirror.due_at <= now())
    with database.read(HUB) as session:
        numbers = session.scalars(due).all()

    def submit(session: Session, number: int) -> None:
        mirror = session.scalar(due.with_only_columns(Mirror).where(Mirror.id == number).with_for_update())
        if mirror is not None:
            queue.submit(session, KIND, f"{KIND} {number} {mirror.due_at.isoformat()}", {"mirror": number})
            mirror.due_at = now() + timedelta(minutes=settings.mirror_minutes)

    for number in numbers:
        database.commit(partial(submit, number=number), HUB)


def _open(mirror: Mirror, settings: Settings) -> UpstreamHub:
    from wander_hub.mirrors.upstream import UpstreamHub

    token = Path(mirror.token_file).read_text().strip() if mirror.token_file is not None else None
    return UpstreamHub(mirror.url, settings, token)


def _ask_for_names(mirror: Mirror, settings: Settings) -> list[str]:
    """Return what the other hub offers of what is to be followed; refuse where that is nothing."""
    from wander_hub.mirrors.upstream import UpstreamSilent

    upstream = _open(mirror, settings)
    try:
        if mirror.name:
            return [upstream.environment(mirror.owner, mirror.name).name]
        found = [one.name for one in upstream.list_environments(mirror.owner)]
    except UpstreamSilent as error:
        raise HubProblem(502, "upstream_silent", str(error)) from error
    finally:
        upstream.close()
    if not found:
        hint = "look at its pages; what is private there needs `--token-file`"
        raise HubProblem(
            404, "owner_not_found", f"`{mirror.url}` shows nothing of `{mirror.owner}`", hint=hint
        )
    return found


def _find_taken(session: Session, owner: Owner, url: str, offered: list[str]) -> list[str]:
    """Return what of an owner's is here already and follows nothing there."""
    rows = session.execute(
        select(Environment.name, Environment.mirror_of).where(Environment.owner_id == owner.id)
    )
    others = sorted(name for name, source in rows if source != f"{url}/{owner.name}/{name}")
    members = session.scalar(select(Membership.user_id).where(Membership.owner_id == owner.id).limit(1))
    if members is not None or others:
        return [owner.name, *(f"{owner.name}/{one}" for one in others if one in offered)]
    return []
