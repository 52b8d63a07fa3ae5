"""`wander-hub fsck`: compare database, stored objects and stored index pages, and repair derived data.

A missing or damaged object cannot be rebuilt, so it is only reported. Everything else is derived: pages and
totals from rows, sizes from objects, the numbers of runs from their rollouts, boards and jobs from the runs.
Objects that nothing refers to are removed. Repairs call the hub's own functions, in a transaction that is
only committed with `--repair`.
"""

from __future__ import annotations

import hashlib
import io
from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from sqlalchemy import select, update
from sqlalchemy.orm import Session, joinedload, undefer
from wander.evals.stats.summary import RunningSummary
from wander.wire import RunSummary
from wander.wire.postings import RolloutsDigest, run_digest

from wander_hub.accounts.models import Owner
from wander_hub.database import Database, now
from wander_hub.environments.models import Environment, File
from wander_hub.environments.repository import lock_environment
from wander_hub.identity import HUB
from wander_hub.index import repository as pages
from wander_hub.index import service as index
from wander_hub.index.models import IndexPage
from wander_hub.jobs import TableQueue
from wander_hub.leaderboards import environment_listing, placement
from wander_hub.leaderboards.models import Board, BoardEntry
from wander_hub.models.models import RevisionFile
from wander_hub.runs.chunks import rows_of
from wander_hub.runs.models import Run, RunArtifact
from wander_hub.runs.order import OrderWriter
from wander_hub.runs.repository import chunks_of, lock_run
from wander_hub.settings import Settings
from wander_hub.storage import Storage
from wander_hub.transfers import objects
from wander_hub.verification import service as verification
from wander_hub.verification.levels import level_of

GRACE = timedelta(hours=1)
"""Age below which an unreferenced object is kept, because it may belong to an unfinished transfer."""
_ENTRY = ("run_id", "model", "level", "shortfall", "low", "high", "tokens", "usd", "posted_at")
_PLACE = ("posted_by_id", "tier", "withdrawn", "counts")
_BOARD = ("runs", "models", "last_posted_at", "lows", "highs", "tiers")
_TOTALS = (
    *("version_count", "latest_version", "summary", "tags", "marks", "run_count"),
    *("best_model", "download_count"),
)
_PAGE = tuple(column.key for column in IndexPage.__table__.columns)


@dataclass(frozen=True)
class Mismatch:
    """A fault that the check found."""

    code: str
    """Kind of the fault: object_missing, object_corrupt, object_extra, size_wrong, page_missing, page_extra,
    page_stale, totals_wrong, link_missing, link_extra, run_changed, aggregates_wrong, board_wrong or
    job_missing."""
    subject: str
    """Subject of the fault: an object's digest, a run's id, or `owner/name`."""
    detail: str
    repaired: bool = False


@dataclass(frozen=True)
class Derived:
    """Values that follow from a run's stored rollouts."""

    sha256: str
    """Digest of the run."""
    rollouts_sha256: str
    summary: RunSummary
    order: bytes

    @property
    def order_sha256(self) -> str:
        """Digest of the stored order of rollouts."""
        return hashlib.sha256(self.order).hexdigest()


def find_mismatches(
    database: Database,
    storage: Storage,
    *,
    repair: bool = False,
    quick: bool = False,
    settings: Settings | None = None,
) -> Iterator[Mismatch]:
    """Yield all faults; `quick` compares the sizes of objects without reading them.

    The settings decide whether runs need a job that verifies them. Without settings, they do not.
    """
    broken = set()
    for mismatch in _objects(database, storage, repair=repair, quick=quick):
        if mismatch.code in ("object_missing", "object_corrupt"):
            broken.add(mismatch.subject)
        yield mismatch
    with database.read(HUB) as session:
        ids = session.scalars(select(Environment.id).order_by(Environment.id)).all()
        owners = session.scalars(select(Owner.id).order_by(Owner.id)).all()
    for environment_id in ids:
        if not quick:
            with database.read(HUB) as session:
                query = select(Run.run_id).where(Run.environment_id == environment_id)
                run_ids = session.scalars(query.order_by(Run.posted_at, Run.run_id)).all()
            faults = (check_run(database, storage, run_id, broken, repair=repair) for run_id in run_ids)
            wrong = []
            for fault in filter(None, faults):
                wrong.append(fault)
                yield fault
            # Boards depend on the runs' numbers, so they are only checked when the runs are right.
            if all(fault.repaired or fault.code != "aggregates_wrong" for fault in wrong):
                yield from check_boards(database, environment_id, repair=repair)
        yield from check_environment(database, environment_id, repair=repair)
    for owner_id in owners:
        yield from _owner(database, owner_id, repair=repair)
    yield from _jobs(database, settings or Settings(verification="off"), repair=repair)


def _jobs(database: Database, settings: Settings, *, repair: bool) -> Iterator[Mismatch]:
    """Yield the runs without a job that verifies them."""
    queue = TableQueue.of(settings, database)
    with database.read(HUB) as session:
        jobless = verification.list_jobless(session, settings)
    for run_id in jobless:
        if repair:
            with database.write(HUB) as session:
                verification.request_after_post(session, queue, settings, run_id)
        yield Mismatch("job_missing", run_id, "no job verifies this run", repaired=repair)


def _objects(database: Database, storage: Storage, *, repair: bool, quick: bool) -> Iterator[Mismatch]:
    with database.read(HUB) as session:
        parts = objects.parts_of_digests(session)
    for part in parts:
        yield from _objects_of(database, storage, part, repair=repair, quick=quick)


def _objects_of(
    database: Database, storage: Storage, part: tuple[str, str], *, repair: bool, quick: bool
) -> Iterator[Mismatch]:
    # Read rows before objects. An upload stores its object first, so every referenced object exists by then.
    with database.read(HUB) as session:
        expected: dict[str, list[tuple[int | None, str]]] = {}
        for sha256, size, user in objects.list_expected(session, *part):
            expected.setdefault(sha256, []).append((size, user))
        stored = {entry.sha256: entry for entry in storage.objects(part[0]) if entry.sha256 is not None}
        for sha256, claims in sorted(expected.items()):
            entry = stored.get(sha256)
            users = ", ".join(user for _, user in claims)
            if entry is None:
                yield Mismatch("object_missing", sha256, f"needed by {users}")
            elif not quick and storage.digest(sha256) != sha256:
                yield Mismatch("object_corrupt", sha256, f"the content is damaged; needed by {users}")
            elif any(size not in (None, entry.size) for size, _ in claims):
                if quick:
                    yield Mismatch(
                        "object_corrupt", sha256, f"wrong size, {entry.size:,} bytes; needed by {users}"
                    )
                else:
                    if repair:  # the content matches its digest, so the row is wrong
                        with database.write(HUB) as session:
                            for table in (File, RunArtifact, RevisionFile):
                                session.execute(
                                    update(table).where(table.sha256 == sha256).values(size=entry.size)
                                )
                    detail = f"{entry.size:,} bytes, which differs from the size in the row of {users}"
                    yield Mismatch("size_wrong", sha256, detail, repaired=repair)
    oldest = now() - GRACE
    for sha256 in sorted(set(stored) - set(expected)):
        if stored[sha256].modified_at < oldest:
            removed = repair and objects.discard(database, storage, [sha256]) == [sha256]
            size = stored[sha256].size
            yield Mismatch("object_extra", sha256, f"nothing needs these {size:,} bytes", repaired=removed)


def check_run(
    database: Database, storage: Storage, run_id: str, broken: Set[str], *, repair: bool
) -> Mismatch | None:
    """Recompute the numbers of a run from its rollouts and return the differences, if any.

    A run that needs one of the `broken` objects is skipped, because its rollouts cannot be read.
    """
    with database.read(HUB) as session:
        run = session.get(Run, run_id)
        if run is None or run.withdrawn_at is not None or run.rollouts_sha256 is None:
            return None
        derived = _derive(session, storage, run, broken)
        if derived is None:
            return None
        if derived.sha256 != run.sha256:
            return Mismatch("run_changed", run_id, "rollouts and manifest do not match the run's digest")
        right = derived.summary.model_dump(mode="json")
        wrong = [f"summary.{name}" for name, value in right.items() if run.summary.get(name) != value]
        wrong += [f"summary.{name}" for name in run.summary if name not in right]
        if run.reward_mean != derived.summary.reward_mean:
            wrong.append("reward_mean")
        if run.rollouts_sha256 != derived.rollouts_sha256:
            wrong.append("rollouts_sha256")
        if run.order_sha256 != derived.order_sha256 or derived.order_sha256 in broken:
            wrong.append("order")
        if _too_high(run, derived):
            wrong.append("level")
    if not wrong:
        return None
    if repair:
        if "order" in wrong:
            storage.delete(derived.order_sha256)  # `put` would keep an existing object of the same size
            storage.put(io.BytesIO(derived.order))
        with database.write(HUB) as session:
            _mend_run(session, run_id, derived)
    return Mismatch("aggregates_wrong", run_id, ", ".join(wrong), repaired=repair)


def _derive(session: Session, storage: Storage, run: Run, broken: Set[str]) -> Derived | None:
    chunks = chunks_of(session, run.run_id)
    if not broken.isdisjoint(chunk.object_sha256 for chunk in chunks):
        return None
    manifest = run.parsed_manifest
    digest, order = RolloutsDigest(), OrderWriter()
    summary = RunningSummary(verification.declared_info(session, run))
    for chunk in chunks:
        for row in rows_of(storage, chunk):
            digest.add(row.line_sha256())
            order.add(row.facts.reward)
            summary.add(row.bare_rollout())
    artifacts = select(RunArtifact.name, RunArtifact.sha256).where(RunArtifact.run_id == run.run_id)
    names = {name: sha256 for name, sha256 in session.execute(artifacts)}
    rollouts_sha256 = digest.hexdigest()
    assert rollouts_sha256 is not None, "a run with chunks has rollouts"
    return Derived(
        run_digest(run.manifest.encode(), rollouts_sha256, names),
        rollouts_sha256,
        summary.summary(expected=manifest.expected_rollouts),
        order.content(),
    )


def _too_high(run: Run, derived: Derived) -> bool:
    level, _ = level_of(run.parsed_manifest, derived.summary)
    return level == "claimed" and run.level != "claimed"


def _mend_run(session: Session, run_id: str, derived: Derived) -> None:
    run = session.get_one(Run, run_id)
    lock_run(session, run)
    if run.withdrawn_at is not None:
        return
    run.summary = derived.summary.model_dump(mode="json")
    run.reward_mean = derived.summary.reward_mean
    run.rollouts_sha256, run.order_sha256 = derived.rollouts_sha256, derived.order_sha256
    if _too_high(run, derived):
        manifest = run.parsed_manifest
        run.level, run.level_reason = level_of(manifest, derived.summary)


def check_boards(database: Database, environment_id: int, *, repair: bool) -> list[Mismatch]:
    """Rebuild an environment's boards and return the differences."""
    with database.write(HUB) as session:
        environment = _load(session, environment_id)
        label = environment.label
        shown = _describe_boards(session, environment)
        placement.start_over(session, environment)
        placement.place_runs(session, environment)
        session.flush()
        session.expire_all()
        right = _describe_boards(session, environment)
        mismatches = [
            Mismatch("board_wrong", label, f"board `{key[1]}`: {', '.join(differences)}", repaired=repair)
            for key in sorted(set(shown) | set(right))
            if (differences := _compare_boards(shown.get(key), right.get(key)))
        ]
        if not (repair and mismatches):
            session.rollback()
    return mismatches


def _describe_boards(session: Session, environment: Environment) -> dict[tuple[int, str], dict[str, Any]]:
    """Return the content of an environment's boards, except for boards without runs."""
    of_environment = Board.version.has(environment_id=environment.id)
    query = select(Board).where(of_environment).options(undefer(Board.lows), undefer(Board.highs))
    boards = session.scalars(query).all()
    shown = (getattr(BoardEntry, name) for name in ("board_id", *_ENTRY, *_PLACE))
    entries = select(*shown).where(BoardEntry.board_id.in_(board.id for board in boards))
    rows: dict[int, dict[str, tuple[Any, ...]]] = {board.id: {} for board in boards}
    for board_id, *values in session.execute(entries):
        rows[board_id][values[0]] = tuple(values)
    return {
        (board.version_id, board.name): {
            **{name: getattr(board, name) for name in _BOARD},
            "rows": rows[board.id],
        }
        for board in boards
        if board.runs or rows[board.id]
    }


def _compare_boards(shown: dict[str, Any] | None, right: dict[str, Any] | None) -> list[str]:
    """Return the names of the differences between two boards; runs are named by their ids."""
    if shown == right:
        return []
    if shown is None or right is None:
        return ["it is missing" if shown is None else "it has no runs"]
    runs = sorted({*shown["rows"], *right["rows"]})
    rows = [run_id for run_id in runs if shown["rows"].get(run_id) != right["rows"].get(run_id)]
    labels = [f"`{run_id}`" for run_id in rows[:5]]
    if len(rows) > 5:
        labels.append(f"and {len(rows) - 5} more runs")
    return [*(name for name in _BOARD if shown[name] != right[name]), *labels]


def _load(session: Session, environment_id: int) -> Environment:
    query = select(Environment).options(joinedload(Environment.owner))
    environment = session.scalars(query.where(Environment.id == environment_id)).one()
    lock_environment(session, environment)
    return environment


def check_environment(database: Database, environment_id: int, *, repair: bool) -> list[Mismatch]:
    """Recompute totals and index pages of an environment and return the differences."""
    with database.write(HUB) as session:
        environment = _load(session, environment_id)
        label = environment.label
        totals = _values(environment, _TOTALS)
        shown = _pages(session, pages.pages_of(session, environment.id))
        environment_listing.derive(session, environment)
        index.write_pages(session, environment)
        wrong = [
            name for name, value in zip(_TOTALS, totals, strict=True) if getattr(environment, name) != value
        ]
        right = _pages(session, pages.pages_of(session, environment.id))
        mismatches = _page_findings(label, shown, right, repaired=repair)
        if wrong:
            mismatches.append(Mismatch("totals_wrong", label, ", ".join(wrong), repaired=repair))
        if not (repair and mismatches):
            session.rollback()
    return mismatches


def _owner(database: Database, owner_id: int, *, repair: bool) -> list[Mismatch]:
    """Render an owner's list of projects again and return the differences."""
    with database.write(HUB) as session:
        owner = session.get_one(Owner, owner_id)
        stored = select(IndexPage).where(IndexPage.owner_id == owner_id, IndexPage.environment_id.is_(None))
        shown = _pages(session, session.scalars(stored).all())
        if not shown and not pages.has_pages(session, owner_id):
            return []  # an owner who has not published anything does not have a list
        index.write_root(session, owner)
        right = _pages(session, session.scalars(stored).all())
        right = {project: page for project, page in right.items() if not project}
        mismatches = _page_findings(owner.name, shown, right, repaired=repair)
        if repair:
            for project in set(shown) - set(right):
                session.delete(session.get_one(IndexPage, (owner_id, project)))
        if not (repair and mismatches):
            session.rollback()
    return mismatches


def _pages(session: Session, stored: Sequence[IndexPage]) -> dict[str, tuple[Any, ...]]:
    session.flush()
    return {page.project: _values(page, _PAGE) for page in stored}


def _page_findings(
    label: str,
    shown: dict[str, tuple[Any, ...]],
    right: dict[str, tuple[Any, ...]],
    *,
    repaired: bool,
) -> list[Mismatch]:
    mismatches = []
    for project in sorted(set(shown) | set(right)):
        page = f"the page of `{project}`" if project else "the list of projects"
        if project not in shown:
            mismatches.append(Mismatch("page_missing", label, f"{page} is missing", repaired=repaired))
        elif project not in right:
            mismatches.append(Mismatch("page_extra", label, f"{page} should not exist", repaired=repaired))
        elif shown[project] != right[project]:
            mismatches.append(Mismatch("page_stale", label, f"{page} is out of date", repaired=repaired))
    return mismatches


def _values(row: object, names: Sequence[str]) -> tuple[Any, ...]:
    return tuple(getattr(row, name) for name in names)
