"""Keeps boards up to date when a run comes, rises, falls, is withdrawn or hidden, so that reading is quick.

Whatever changed a run, an index names those that stand otherwise than they should (`MISPLACED`), so nobody
who changes one has to say so. All of it happens under the lock of the environment.
"""

from __future__ import annotations

from sqlalchemy import delete, func, select, update
from sqlalchemy.orm import Session, undefer
from wander.wire import RunManifest, RunSummary
from wander.wire.boards import TIERS

from wander_hub.environments.models import Environment, Version
from wander_hub.leaderboards import repository
from wander_hub.leaderboards.bounds import Bounds
from wander_hub.leaderboards.models import Board, BoardEntry
from wander_hub.leaderboards.schemas import board_name
from wander_hub.runs.manifest import protocol_digest
from wander_hub.runs.models import MISPLACED, Run

_PLACES = (undefer(Board.lows), undefer(Board.highs), undefer(Board.tiers))
LED = "boards_led"
"""The key under which a session notes, where somebody wants to know, who led each board before it changed."""
_BATCH = 200
"""Runs that are placed at a time; a manifest may be megabytes."""


def place(session: Session, environment: Environment) -> None:
    """Put the runs of an environment on their boards that are not there as they should; it is locked."""
    session.flush()
    query = select(Run.run_id).where(Run.environment_id == environment.id, MISPLACED)
    waiting = session.scalars(query.order_by(Run.public_at, Run.run_id)).all()
    for start in range(0, len(waiting), _BATCH):
        batch = select(Run).where(Run.run_id.in_(waiting[start : start + _BATCH]))
        for run in session.scalars(batch.order_by(Run.public_at, Run.run_id)).all():
            _place_one(session, run)
        session.flush()


def start_over(session: Session, environment: Environment) -> None:
    """Take all runs of an environment off their boards, which keep what their owners made of them.

    It is locked.
    """
    versions = select(Version.id).where(Version.environment_id == environment.id)
    boards = select(Board.id).where(Board.version_id.in_(versions))
    session.execute(delete(BoardEntry).where(BoardEntry.board_id.in_(boards)))
    empty = {"runs": 0, "models": 0, "lows": b"", "highs": b"", "tiers": []}
    session.execute(
        update(Board)
        .where(Board.version_id.in_(versions))
        .values(empty | {"last_posted_at": environment.created_at})
    )
    session.execute(update(Run).where(Run.environment_id == environment.id).values(board_level=""))
    session.expire_all()


def _place_one(session: Session, run: Run) -> None:
    stands = session.get(BoardEntry, run.run_id)
    if run.kind != "evaluation" or run.level == "claimed" or run.private or run.hidden:  # as `MISPLACED` asks
        run.board_level = ""
        if stands is not None:
            _take_down(session, stands)
        return
    withdrawn = run.withdrawn_at is not None
    run.board_level = "withdrawn" if withdrawn else run.level
    rescored = run.level == "rescored"
    if stands is not None and rescored and session.get_one(Board, stands.board_id).refuses_rescored:
        _take_down(session, stands)
        return
    if stands is not None:
        ends = run.summary.get("reward_low"), run.summary.get("reward_high")
        if (stands.withdrawn, stands.tier, stands.low, stands.high) == (withdrawn, tier_of(run), *ends):
            stands.level = run.level
            return
        _take_down(session, stands)
    manifest = run.parsed_manifest
    run.protocol_sha256 = protocol_digest(manifest)
    board = _board(session, run, manifest)
    if not (rescored and board.refuses_rescored):
        _put_up(session, board, _entry(run, manifest))


def tier_of(run: Run) -> int:
    """Return where a run stands among the tiers of its board: a repetition of it adds a name, no rank."""
    return TIERS.index(run.own_level or "complete" if run.level == "rerun" else run.level)


def _board(session: Session, run: Run, manifest: RunManifest) -> Board:
    query = select(Board).where(
        Board.version_id == run.version_id,
        Board.task_set_sha256 == run.task_set_sha256,
        Board.protocol_sha256 == run.protocol_sha256,
    )
    found = session.scalar(query.options(*_PLACES))
    if found is None:
        found = Board(
            version_id=run.version_id,
            task_set_sha256=run.task_set_sha256,
            protocol_sha256=run.protocol_sha256,
            name=board_name(run.task_set_sha256, run.protocol_sha256),
            split=manifest.split,
            examples=run.examples,
            rollouts_per_example=run.rollouts_per_example,
            arguments=manifest.environment.arguments,
            max_tokens=manifest.sampling.max_tokens,
            players={player: pin.name for player, pin in manifest.players.items()},
            runs=0,
            models=0,
            last_posted_at=run.public_at,
            lows=b"",
            highs=b"",
            tiers=[],
        )
        session.add(found)
        session.flush()
    return found


def _entry(run: Run, manifest: RunManifest) -> BoardEntry:
    summary = RunSummary.model_validate(run.summary)
    mean = summary.reward_mean
    assert mean is not None, "a complete run has scored rollouts"
    total = summary.usage.prompt_tokens + summary.usage.completion_tokens
    prices = manifest.spending.prices if manifest.spending else None
    return BoardEntry(
        run_id=run.run_id,
        model=run.model,
        posted_by_id=run.posted_by_id,
        level=run.level,
        tier=tier_of(run),
        shortfall=0.0 - mean,  # never a negative zero
        low=summary.reward_low,
        high=summary.reward_high,
        tokens=total / summary.rollouts if total else None,
        usd=prices.cost(summary.usage) / summary.rollouts if prices and total else None,
        posted_at=run.public_at,
        withdrawn=run.withdrawn_at is not None,
        counts=False,
    )


def _put_up(session: Session, board: Board, entry: BoardEntry) -> None:
    entry.board_id = board.id
    session.add(entry)
    session.flush()
    board.runs += not entry.withdrawn
    board.last_posted_at = max(board.last_posted_at, entry.posted_at)
    _choose(session, board, entry.model, entry.posted_by_id)


def _take_down(session: Session, entry: BoardEntry) -> None:
    found = select(Board).where(Board.id == entry.board_id)
    board = session.scalars(found.options(*_PLACES)).one()
    if entry.counts:
        _lead(session, board, entry, None)
    session.delete(entry)
    session.flush()
    board.runs -= not entry.withdrawn
    last = session.scalar(select(func.max(BoardEntry.posted_at)).where(BoardEntry.board_id == board.id))
    board.last_posted_at = last or board.last_posted_at
    _choose(session, board, entry.model, entry.posted_by_id)


def _choose(session: Session, board: Board, model: str, account: int) -> None:
    """Let the first run of a model by an account count, and no other; none where that one was withdrawn.

    One that could not be verified has its turn after all others, as if it had not been posted: who lets runs
    fail on purpose gains no more than who keeps them back.
    """
    of_row = BoardEntry.board_id == board.id, BoardEntry.model == model, BoardEntry.posted_by_id == account
    last = BoardEntry.tier == TIERS.index("unverifiable")
    query = select(BoardEntry).where(*of_row).order_by(last, BoardEntry.posted_at, BoardEntry.run_id).limit(1)
    old = session.scalar(query.where(BoardEntry.counts))
    first = session.scalar(query)
    new = None if first is None or first.withdrawn else first
    if new is not old:
        _lead(session, board, old, new)


def _lead(session: Session, board: Board, old: BoardEntry | None, new: BoardEntry | None) -> None:
    """Let another run count, in the intervals too that ranks are counted from."""
    led: dict[int, str | None] | None = session.info.get(LED)
    if led is not None and board.id not in led:
        first = repository.leader_of(session, board)
        led[board.id] = first.run_id if first is not None else None
    bounds = Bounds(board.lows, board.highs, board.tiers)
    if old is not None:
        old.counts = False
        bounds.remove(old.place)
    if new is not None:
        new.counts = True
        bounds.add(new.place)
    board.lows, board.highs, board.tiers = bounds.dump()
    board.models += (new is not None) - (old is not None)
