"""Updates boards when a run is posted, verified, withdrawn or hidden, so that reading them is fast.

An index lists the runs whose placement is out of date (`MISPLACED`), so code that changes a run does not have
to report it. All updates happen under the lock of the environment.
"""

from __future__ import annotations

import hashlib

from sqlalchemy import delete, func, select, update
from sqlalchemy.orm import Session, undefer
from wander.wire import ModelPin, RunManifest, RunSummary
from wander.wire.boards import TIERS

from wander_hub.environments.models import Environment, Version
from wander_hub.leaderboards import repository
from wander_hub.leaderboards.bounds import Bounds
from wander_hub.leaderboards.models import PROVEN, Board, BoardEntry
from wander_hub.runs.explorer import list_strata
from wander_hub.runs.manifest import protocol_digest
from wander_hub.runs.models import MISPLACED, Run

_PLACES = (undefer(Board.lows), undefer(Board.highs), undefer(Board.tiers))
LED = "boards_led"
"""Key of the session's `info` that records the previous leader of each changed board, if a webhook needs
it."""
_BATCH = 200
"""Number of runs that are placed at a time, because manifests may have megabytes."""


def place_runs(session: Session, environment: Environment) -> None:
    """Place the misplaced runs of an environment on their boards. The environment must be locked."""
    session.flush()
    query = select(Run.run_id).where(Run.environment_id == environment.id, MISPLACED)
    waiting = session.scalars(query.order_by(Run.public_at, Run.run_id)).all()
    boards = _Boards(session)
    for start in range(0, len(waiting), _BATCH):
        batch_ids = waiting[start : start + _BATCH]
        entries = session.scalars(select(BoardEntry).where(BoardEntry.run_id.in_(batch_ids)))
        placed = {entry.run_id: entry for entry in entries}
        batch = select(Run).where(Run.run_id.in_(batch_ids))
        for run in session.scalars(batch.order_by(Run.public_at, Run.run_id)).all():
            _place_one(session, boards, run, placed.get(run.run_id))
        session.flush()
    boards.settle()


def fold_again(session: Session, board: Board) -> None:
    """Fold or unfold the rows of a board after its setting changed. The environment must be locked."""
    boards = _Boards(session)
    boards.fold_again(session.scalars(select(Board).where(Board.id == board.id).options(*_PLACES)).one())
    boards.settle()


def start_over(session: Session, environment: Environment) -> None:
    """Remove all runs of an environment from its boards and keep the owners' settings. It must be locked."""
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


def _place_one(session: Session, boards: _Boards, run: Run, placed: BoardEntry | None) -> None:
    # The same condition as in `MISPLACED`.
    if run.kind != "evaluation" or run.level == "claimed" or run.private or run.hidden:
        run.board_level = ""
        if placed is not None:
            boards.take_down(placed)
        return
    withdrawn = run.withdrawn_at is not None
    run.board_level = "withdrawn" if withdrawn else run.level
    rescored = run.level == "rescored"
    if placed is not None and rescored and session.get_one(Board, placed.board_id).refuses_rescored:
        boards.take_down(placed)
        return
    if placed is not None:
        ends = run.summary.get("reward_low"), run.summary.get("reward_high")
        same = (placed.withdrawn, placed.tier, placed.low, placed.high)
        if same == (withdrawn, tier_of(run), *ends):
            placed.level = run.level
            return
        boards.take_down(placed)
    manifest = run.brief_manifest
    run.protocol_sha256 = protocol_digest(manifest)
    board = boards.of_run(run, manifest)
    if run.level in PROVEN or run.posted_by_id == session.get_one(Version, run.version_id).uploaded_by_id:
        board.standard = board.standard or _is_standard(run, manifest)
    if run.level in PROVEN or not board.runs:
        strata = list_strata(manifest)
        board.strata = strata if len(strata) > 1 else []
    if not (rescored and board.refuses_rescored):
        boards.put_up(board, _entry(run, manifest))


def _is_standard(run: Run, manifest: RunManifest) -> bool:
    """Return whether a run has the environment's defaults and its whole evaluation split.

    A game of several players has no default opponent, and a submitter who controls all players could let the
    first one win.
    """
    pin = manifest.environment
    if len(pin.info.players) > 1:
        return False
    whole = manifest.split == "eval" and run.examples == pin.info.eval_examples
    whole = whole and manifest.choice == "first"  # another order of the examples is another task set
    return whole and not pin.changed_arguments and not manifest.players


def _label(pin: ModelPin) -> str:
    """Return a board's label of a player's model. Models with the same weights but other names get different
    labels."""
    return pin.name if pin.weights_sha256 is None else f"{pin.name} (weights {pin.weights_sha256[:12]})"


def tier_of(run: Run) -> int:
    """Return the tier of a run."""
    return TIERS.index(run.level)


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
        shortfall=0.0 - mean,  # avoids a negative zero
        low=summary.reward_low,
        high=summary.reward_high,
        tokens=total / summary.rollouts if total else None,
        # The cost is unknown if the endpoint did not report its tokens.
        usd=prices.cost(summary.usage) / summary.rollouts
        if prices and total and not summary.usage.estimated
        else None,
        posted_at=run.public_at,
        withdrawn=run.withdrawn_at is not None,
        counts=False,
    )


class _Boards:
    """The boards that change. Their intervals are read once, and written after all runs are placed."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._boards: dict[tuple[int, str, str], Board] = {}
        self._bounds: dict[Board, Bounds] = {}
        self._rows: dict[tuple[Board, str, int], None] = {}
        """Boards, models and accounts whose turn may have moved to another run."""
        self._folds: dict[BoardEntry, Board] = {}
        """Eligible runs that may have to be folded under another run."""

    def of_run(self, run: Run, manifest: RunManifest) -> Board:
        """Return the board of a run, which is created if necessary."""
        key = run.version_id, run.task_set_sha256, run.protocol_sha256
        if (known := self._boards.get(key)) is not None:
            return known
        same = {"version_id": key[0], "task_set_sha256": key[1], "protocol_sha256": key[2]}
        board = self._session.scalar(select(Board).filter_by(**same).options(*_PLACES))
        if board is None:
            board = Board(
                **same,
                name=board_name(run.task_set_sha256, run.protocol_sha256),
                split=manifest.split,
                examples=run.examples,
                rollouts_per_example=run.rollouts_per_example,
                arguments=manifest.environment.changed_arguments,
                max_tokens=manifest.sampling.max_tokens,
                players={player: _label(pin) for player, pin in manifest.players.items()},
                runs=0,
                models=0,
                last_posted_at=run.public_at,
                lows=b"",
                highs=b"",
                tiers=[],
            )
            self._session.add(board)
            self._session.flush()
        self._boards[key] = board
        return board

    def put_up(self, board: Board, entry: BoardEntry) -> None:
        """Add a run to a board; `settle` decides whether it counts."""
        self._change(board, entry)
        entry.board_id = board.id
        self._session.add(entry)
        board.runs += not entry.withdrawn
        board.last_posted_at = max(board.last_posted_at, entry.posted_at)

    def take_down(self, entry: BoardEntry) -> None:
        """Remove a run from its board."""
        query = select(Board).where(Board.id == entry.board_id)
        board = self._session.scalars(query.options(*_PLACES)).one()
        self._change(board, entry)
        self._give_up_turn(board, entry)
        self._folds.pop(entry, None)
        self._session.delete(entry)
        self._session.flush()
        board.runs -= not entry.withdrawn
        latest = select(func.max(BoardEntry.posted_at)).where(BoardEntry.board_id == board.id)
        board.last_posted_at = self._session.scalar(latest) or board.last_posted_at

    def settle(self) -> None:
        """Decide which runs count, and write the intervals that determine ranks."""
        with self._session.no_autoflush:  # rows are independent of each other
            for row in self._rows:
                self._choose(*row)
        self._session.flush()
        for entry in sorted(self._folds, key=lambda folded: folded.seniority):
            self._fold(self._folds[entry], entry)
        for board, bounds in self._bounds.items():
            board.lows, board.highs, board.tiers = bounds.dump()

    def fold_again(self, board: Board) -> None:
        """Mark all rows of a board to be folded or unfolded according to its setting."""
        self._read_bounds(board)
        turns = select(BoardEntry).where(BoardEntry.board_id == board.id, repository.has_turn())
        self._folds |= dict.fromkeys(self._session.scalars(turns), board)

    def _change(self, board: Board, entry: BoardEntry) -> None:
        self._rows[board, entry.model, entry.posted_by_id] = None
        self._read_bounds(board)

    def _read_bounds(self, board: Board) -> None:
        if board in self._bounds:
            return
        self._bounds[board] = Bounds(board.lows, board.highs, board.tiers)
        led: dict[int, str | None] | None = self._session.info.get(LED)
        if led is not None:
            first = repository.leader_of(self._session, board)
            led[board.id] = first.run_id if first is not None else None

    def _choose(self, board: Board, model: str, account: int) -> None:
        """Rank the first run of a model and account, or no run if the first run was withdrawn.

        Unverifiable runs are sorted after all other runs, as if they had not been posted. So a submitter
        cannot gain a better rank by making runs fail on purpose.
        """
        of_row = (
            BoardEntry.board_id == board.id,
            BoardEntry.model == model,
            BoardEntry.posted_by_id == account,
        )
        last = BoardEntry.tier == TIERS.index("unverifiable")
        query = select(BoardEntry).where(*of_row).order_by(last, BoardEntry.posted_at, BoardEntry.run_id)
        first = self._session.scalar(query.limit(1))
        old = self._session.scalar(query.where(repository.has_turn()).limit(1))
        if first is not None and first is old and not first.withdrawn:
            return
        if old is not None:
            self._give_up_turn(board, old)
        if first is not None and not first.withdrawn:
            self._count(board, first)
            self._folds[first] = board

    def _give_up_turn(self, board: Board, entry: BoardEntry) -> None:
        """Stop counting a run, and mark the runs that were folded under it to be folded again."""
        if entry.counts:
            self._discount(board, entry)
        entry.folded_into = None
        below = select(BoardEntry).where(BoardEntry.folded_into == entry.run_id)
        for folded in self._session.scalars(below).all():
            self._folds[folded] = board

    def _fold(self, board: Board, entry: BoardEntry) -> None:
        """Fold a run under the first run with the same answers, and fold later ones under this run."""
        like = [] if board.unfolded else repository.runs_like(self._session, entry)
        before = [other for other in like if other.seniority < entry.seniority]
        self._fold_under(board, entry, min(before, key=lambda other: other.seniority, default=None))
        for other in like:
            if other.seniority > entry.seniority:
                above = other.folded_into and self._session.get(BoardEntry, other.folded_into)
                if not above or above.seniority > entry.seniority:
                    self._fold_under(board, other, entry)
        self._session.flush()

    def _fold_under(self, board: Board, entry: BoardEntry, above: BoardEntry | None) -> None:
        if above is None and not entry.counts:
            self._count(board, entry)
        elif above is not None and entry.counts:
            self._discount(board, entry)
        entry.folded_into = above.run_id if above is not None else None

    def _count(self, board: Board, entry: BoardEntry) -> None:
        entry.counts = True
        self._bounds[board].add(entry.place)
        board.models += 1

    def _discount(self, board: Board, entry: BoardEntry) -> None:
        entry.counts = False
        self._bounds[board].remove(entry.place)
        board.models -= 1


def board_name(task_set_sha256: str, protocol_sha256: str) -> str:
    """Return the short name of a board, which is unique within its version."""
    return hashlib.sha256(f"{task_set_sha256}{protocol_sha256}".encode()).hexdigest()[:8]
