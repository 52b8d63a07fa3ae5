"""Compares runs with their stored rollouts, and boards with the runs, for `wander-hub fsck`.

All numbers of a run come from its rollouts and all of a board from its runs, so both can be made again. What
cannot is the run itself: rollouts that are not those of its digest are only reported.
"""

from __future__ import annotations

import hashlib
import io
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session, undefer
from wander.evals.stats.summary import RunningSummary
from wander.wire import RunManifest, RunSummary
from wander.wire.postings import RolloutsDigest, run_digest

from wander_hub.database import Database
from wander_hub.environments.models import Environment
from wander_hub.identity import HUB
from wander_hub.leaderboards import placement
from wander_hub.leaderboards.models import Board, BoardEntry
from wander_hub.runs.chunks import rows_of
from wander_hub.runs.models import Run, RunArtifact, RunChunk
from wander_hub.runs.order import OrderWriter
from wander_hub.runs.repository import lock_run
from wander_hub.storage import Storage
from wander_hub.verification.levels import level_of

_ENTRY = ("run_id", "model", "level", "shortfall", "low", "high", "tokens", "usd", "posted_at")
_PLACE = ("record", "best")
_BOARD = ("runs", "models", "last_posted_at", "lows", "highs")


@dataclass(frozen=True)
class Derived:
    """The numbers that a run's stored rollouts give."""

    sha256: str
    """The digest of the run."""
    rollouts_sha256: str
    summary: RunSummary
    order: bytes

    @property
    def order_sha256(self) -> str:
        """Digest of the order of its rollouts."""
        return hashlib.sha256(self.order).hexdigest()


def run_faults(
    database: Database, storage: Storage, run_id: str, broken: Collection[str], *, repair: bool
) -> Iterator[tuple[str, str, bool]]:
    """Yield code, detail and whether it was mended, of all that is wrong with a run's numbers.

    A run that needs one of the `broken` objects is passed over: its rollouts cannot be read.
    """
    with database.read(HUB) as session:
        run = session.get(Run, run_id)
        if run is None or run.withdrawn_at is not None or run.rollouts_sha256 is None:
            return
        derived = _derive(session, storage, run, broken)
        if derived is None:
            return
        if derived.sha256 != run.sha256:
            yield "run_changed", "its rollouts and manifest are not those of its digest", False
            return
        wrong = _wrong(storage, run, derived)
    if not wrong:
        return
    if repair:
        if "order" in wrong:
            storage.put(io.BytesIO(derived.order))
        with database.write(HUB) as session:
            _mend(session, run_id, derived)
    yield "aggregates_wrong", ", ".join(wrong), repair


def board_faults(session: Session, environment: Environment) -> list[str]:
    """Place all runs of an environment anew and tell what that changed; the caller keeps it or not."""
    shown = _boards(session, environment)
    placement.start_over(session, environment)
    placement.place(session, environment)
    session.flush()
    session.expire_all()
    right = _boards(session, environment)
    return [
        f"board `{name}`: {', '.join(_parts(shown.get(key), right.get(key)))}"
        for key in sorted(set(shown) | set(right))
        for name in [key[1]]
        if shown.get(key) != right.get(key)
    ]


def _derive(session: Session, storage: Storage, run: Run, broken: Collection[str]) -> Derived | None:
    query = select(RunChunk).where(RunChunk.run_id == run.run_id).order_by(RunChunk.first)
    chunks = session.scalars(query).all()
    if not broken.isdisjoint(one.object_sha256 for one in chunks):
        return None
    manifest = RunManifest.model_validate_json(run.manifest)
    digest, order = RolloutsDigest(), OrderWriter()
    summary = RunningSummary(manifest.environment.info)
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


def _wrong(storage: Storage, run: Run, derived: Derived) -> list[str]:
    """Name the numbers of a run that are not those of its rollouts."""
    mean = derived.summary.reward_mean
    right = derived.summary.model_dump(mode="json")
    wrong = [f"summary.{name}" for name, value in right.items() if run.summary.get(name) != value]
    wrong += [f"summary.{name}" for name in run.summary if name not in right]
    if run.reward_mean != mean:
        wrong.append("reward_mean")
    if run.rollouts_sha256 != derived.rollouts_sha256:
        wrong.append("rollouts_sha256")
    if run.order_sha256 != derived.order_sha256 or not storage.exists(derived.order_sha256):
        wrong.append("order")
    if _too_high(run, derived):
        wrong.append("level")
    return wrong


def _too_high(run: Run, derived: Derived) -> bool:
    level, _ = level_of(RunManifest.model_validate_json(run.manifest), derived.summary)
    return level == "claimed" and run.level != "claimed"


def _mend(session: Session, run_id: str, derived: Derived) -> None:
    run = session.get_one(Run, run_id)
    lock_run(session, run)
    if run.withdrawn_at is not None:
        return
    run.summary = derived.summary.model_dump(mode="json")
    run.reward_mean = derived.summary.reward_mean
    run.rollouts_sha256, run.order_sha256 = derived.rollouts_sha256, derived.order_sha256
    if _too_high(run, derived):
        manifest = RunManifest.model_validate_json(run.manifest)
        run.level, run.level_reason = level_of(manifest, derived.summary)


def _boards(session: Session, environment: Environment) -> dict[tuple[int, str], dict[str, Any]]:
    """Return what the boards of an environment show; those without a run show nothing."""
    of_environment = Board.version.has(environment_id=environment.id)
    query = select(Board).where(of_environment).options(undefer(Board.lows), undefer(Board.highs))
    boards = session.scalars(query).all()
    entries = select(BoardEntry).where(BoardEntry.board_id.in_(one.id for one in boards))
    rows: dict[int, dict[str, tuple[Any, ...]]] = {one.id: {} for one in boards}
    for entry in session.scalars(entries):
        rows[entry.board_id][entry.run_id] = tuple(getattr(entry, name) for name in _ENTRY + _PLACE)
    return {
        (one.version_id, one.name): {name: getattr(one, name) for name in _BOARD} | {"rows": rows[one.id]}
        for one in boards
        if one.runs or rows[one.id]
    }


def _parts(shown: dict[str, Any] | None, right: dict[str, Any] | None) -> list[str]:
    """Name what differs of a board, its runs by their ids."""
    if shown is None or right is None:
        return ["it is missing" if shown is None else "no run stands on it"]
    runs = sorted({*shown["rows"], *right["rows"]})
    rows = [one for one in runs if shown["rows"].get(one) != right["rows"].get(one)]
    told = [f"`{one}`" for one in rows[:5]] + ([f"and {len(rows) - 5} more runs"] if len(rows) > 5 else [])
    return [*(name for name in _BOARD if shown[name] != right[name]), *told]
