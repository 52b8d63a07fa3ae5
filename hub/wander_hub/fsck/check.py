"""Compares database, stored objects and stored index pages, and repairs what can be derived.

A missing or changed object cannot be made again from anything else, so it is only reported. All else is
derived: pages and totals from rows, sizes from objects, the numbers of runs from their rollouts, boards from
the runs; and what nothing points to is removed. Every repair
is what the hub itself would have written: its own functions run, in a transaction kept when asked for.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session, joinedload

from wander_hub.accounts.models import Owner
from wander_hub.database import Database, now
from wander_hub.environments.models import Environment, File
from wander_hub.fsck import runs as fsck_runs
from wander_hub.identity import HUB
from wander_hub.index import repository as pages
from wander_hub.index import service as index
from wander_hub.index.models import IndexPage
from wander_hub.index.public_files import PublicFiles
from wander_hub.leaderboards import listing
from wander_hub.runs import objects
from wander_hub.runs.models import Run, RunArtifact
from wander_hub.storage import Storage
from wander_hub.upload import sweep

GRACE = timedelta(hours=1)
"""An object that nothing points to may belong to an upload that is under way, until it is this old."""
_TOTALS = ("version_count", "latest_version", "summary", "tags", "search_text", "run_count", "best_model")
_PAGE = tuple(column.key for column in IndexPage.__table__.columns)


@dataclass(frozen=True)
class Finding:
    """Something that does not fit together."""

    code: str
    """object_missing, object_corrupt, object_extra, size_wrong, chunk_missing, chunk_extra, page_missing,
    page_extra, page_stale, totals_wrong, link_missing, link_extra, run_changed, aggregates_wrong or
    board_wrong."""
    subject: str
    """What it is about: an object's digest, a run's id, or `owner/name`."""
    detail: str
    repaired: bool = False


def check(
    database: Database,
    storage: Storage,
    *,
    repair: bool = False,
    quick: bool = False,
    links: PublicFiles | None = None,
) -> Iterator[Finding]:
    """Yield all findings; `quick` compares sizes of objects without reading them."""
    broken = set()
    for found in _objects(database, storage, repair=repair, quick=quick):
        if found.code in ("object_missing", "object_corrupt"):
            broken.add(found.subject)
        yield found
    yield from _chunks(database, storage, repair=repair)
    with database.read(HUB) as session:
        ids = session.scalars(select(Environment.id).order_by(Environment.id)).all()
        owners = session.scalars(select(Owner.id).order_by(Owner.id)).all()
    for one in ids:
        if not quick:
            wrong = list(_runs(database, storage, one, broken, repair=repair))
            yield from wrong
            # Boards are made from these numbers: what is wrong with both shows once the runs are mended.
            if all(each.repaired or each.code != "aggregates_wrong" for each in wrong):
                yield from _boards(database, one, repair=repair)
        yield from _environment(database, one, repair=repair)
    for one in owners:
        yield from _owner(database, one, repair=repair)
    if links is not None:
        yield from _links(links, repair=repair)


def _objects(database: Database, storage: Storage, *, repair: bool, quick: bool) -> Iterator[Finding]:
    # Rows before objects: an upload stores its object first, so what rows point to is there by then.
    with database.read(HUB) as session:
        expected: dict[str, list[tuple[int | None, str]]] = {}
        for sha256, size, what in objects.list_expected(session):
            expected.setdefault(sha256, []).append((size, what))
    stored = {one.sha256: one for one in storage.objects() if one.sha256 is not None}
    for sha256, claims in sorted(expected.items()):
        found = stored.get(sha256)
        whats = ", ".join(what for _, what in claims)
        if found is None:
            yield Finding("object_missing", sha256, f"needed by {whats}")
        elif not quick and storage.digest(sha256) != sha256:
            yield Finding("object_corrupt", sha256, f"its bytes are not those of {whats}")
        elif any(size not in (None, found.size) for size, _ in claims):
            if quick:
                yield Finding("object_corrupt", sha256, f"{found.size:,} bytes are not the size of {whats}")
            else:
                yield _mend_size(database, sha256, found.size, whats, repair=repair)
    oldest = now() - GRACE
    for sha256 in sorted(set(stored) - set(expected)):
        if stored[sha256].modified_at < oldest:
            removed = repair and objects.discard(database, storage, [sha256]) == [sha256]
            size = stored[sha256].size
            yield Finding("object_extra", sha256, f"nothing needs these {size:,} bytes", repaired=removed)


def _links(links: PublicFiles, *, repair: bool) -> Iterator[Finding]:
    wrong, missing = links.compare()
    if repair:
        links.repair()
    for path in sorted(wrong):
        yield Finding("link_extra", str(path), "nginx would send what it must not", repaired=repair)
    for path in sorted(missing):
        yield Finding("link_missing", str(path), "nginx asks the hub for it", repaired=repair)


def _chunks(database: Database, storage: Storage, *, repair: bool) -> Iterator[Finding]:
    """Look for chunks of uploads under way that were lost, and for those that nobody needs any more."""
    lost = sweep.find_lost_chunks(database, storage)
    for number in dict.fromkeys(one.file_id for one in lost):
        chunk = next(one for one in lost if one.file_id == number)
        if repair:
            sweep.count_again(database, storage, number)
        detail = f"chunks of `{chunk.filename}` are gone; from the first of them on it is to be sent again"
        yield Finding("chunk_missing", chunk.session_id, detail, repaired=repair)
    oldest = now() - GRACE
    loose = [one for one in sweep.loose_chunks(database, storage) if one.modified_at < oldest]
    if loose:
        if repair:
            for one in loose:
                storage.unstage(one.path)
        size = sum(one.size for one in loose)
        detail = f"nothing needs these {len(loose):,} chunks of {size:,} bytes"
        yield Finding("chunk_extra", "staging", detail, repaired=repair)


def _mend_size(database: Database, sha256: str, size: int, whats: str, *, repair: bool) -> Finding:
    """The bytes are right, so the row is not."""
    if repair:
        with database.write(HUB) as session:
            for table in (File, RunArtifact):
                for row in session.scalars(select(table).where(table.sha256 == sha256)):
                    row.size = size
    return Finding("size_wrong", sha256, f"{size:,} bytes, other than told of {whats}", repaired=repair)


def _runs(
    database: Database, storage: Storage, environment_id: int, broken: set[str], *, repair: bool
) -> Iterator[Finding]:
    """Derive the numbers of an environment's runs from their rollouts and tell what is otherwise."""
    with database.read(HUB) as session:
        query = select(Run.run_id).where(Run.environment_id == environment_id)
        ids = session.scalars(query.order_by(Run.posted_at, Run.run_id)).all()
    for run_id in ids:
        for code, detail, mended in fsck_runs.run_faults(database, storage, run_id, broken, repair=repair):
            yield Finding(code, run_id, detail, repaired=mended)


def _boards(database: Database, environment_id: int, *, repair: bool) -> list[Finding]:
    """Place an environment's runs on its boards anew and tell what that changes."""
    with database.write(HUB) as session:
        query = select(Environment).options(joinedload(Environment.owner))
        environment = session.scalars(query.where(Environment.id == environment_id)).one()
        label = f"{environment.owner.name}/{environment.name}"
        faults = fsck_runs.board_faults(session, environment)
        if not (repair and faults):
            session.rollback()
    return [Finding("board_wrong", label, one, repaired=repair) for one in faults]


def _environment(database: Database, environment_id: int, *, repair: bool) -> list[Finding]:
    """Derive totals and pages of an environment anew and tell what that changes."""
    with database.write(HUB) as session:
        query = select(Environment).options(joinedload(Environment.owner))
        environment = session.scalars(query.where(Environment.id == environment_id)).one()
        label = f"{environment.owner.name}/{environment.name}"
        totals = _values(environment, _TOTALS)
        shown = _pages(session, pages.pages_of(session, environment.id))
        listing.derive(session, environment)
        index.write_pages(session, environment)
        wrong = [
            name for name, value in zip(_TOTALS, totals, strict=True) if getattr(environment, name) != value
        ]
        right = _pages(session, pages.pages_of(session, environment.id))
        found = _page_findings(label, shown, right, repaired=repair)
        if wrong:
            found.append(Finding("totals_wrong", label, ", ".join(wrong), repaired=repair))
        if not (repair and found):
            session.rollback()
    return found


def _owner(database: Database, owner_id: int, *, repair: bool) -> list[Finding]:
    """Derive an owner's list of projects anew and tell whether that changes it."""
    with database.write(HUB) as session:
        owner = session.get_one(Owner, owner_id)
        stored = select(IndexPage).where(IndexPage.owner_id == owner_id, IndexPage.environment_id.is_(None))
        shown = _pages(session, session.scalars(stored).all())
        if not shown and not pages.has_pages(session, owner_id):
            return []  # an owner who has published nothing has no list yet
        index.write_root(session, owner)
        right = _pages(session, session.scalars(stored).all())
        right = {project: page for project, page in right.items() if not project}
        found = _page_findings(owner.name, shown, right, repaired=repair)
        if repair:
            for project in set(shown) - set(right):
                session.delete(session.get_one(IndexPage, (owner_id, project)))
        if not (repair and found):
            session.rollback()
    return found


def _pages(session: Session, found: Sequence[IndexPage]) -> dict[str, tuple[Any, ...]]:
    session.flush()
    return {one.project: _values(one, _PAGE) for one in found}


def _page_findings(
    label: str,
    shown: dict[str, tuple[Any, ...]],
    right: dict[str, tuple[Any, ...]],
    *,
    repaired: bool,
) -> list[Finding]:
    found = []
    for project in sorted(set(shown) | set(right)):
        page = f"the page of `{project}`" if project else "the list of projects"
        if project not in shown:
            found.append(Finding("page_missing", label, f"{page} is not stored", repaired=repaired))
        elif project not in right:
            found.append(Finding("page_extra", label, f"{page} shows what is not there", repaired=repaired))
        elif shown[project] != right[project]:
            found.append(Finding("page_stale", label, f"{page} is not what it should be", repaired=repaired))
    return found


def _values(row: object, names: Sequence[str]) -> tuple[Any, ...]:
    return tuple(getattr(row, name) for name in names)
