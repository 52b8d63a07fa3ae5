"""Boards of comparable runs, ranked as far as their intervals allow."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import func, select
from sqlalchemy.orm import Session
from wander.wire import BoardInfo, Leaderboard, LeaderboardRow, RunSummary
from wander.wire.boards import (
    TIERS,
    FoldedRun,
    HiddenRunInfo,
    VersionBoard,
)
from wander.wire.verification import TokenCheck

from wander_hub.database import fill
from wander_hub.environments import service as environments
from wander_hub.environments.models import Environment, Version
from wander_hub.environments.repository import ListedVersion
from wander_hub.http.problems import HubProblem
from wander_hub.leaderboards import repository
from wander_hub.leaderboards.bounds import Bounds
from wander_hub.leaderboards.elsewhere import list_elsewhere
from wander_hub.leaderboards.filters import BoardFilter
from wander_hub.leaderboards.models import PROVEN, Board, BoardEntry, HiddenRun
from wander_hub.leaderboards.repetitions import repeated_by
from wander_hub.models.repository import first_pushers, names_of_weights
from wander_hub.runs.models import Run
from wander_hub.runs.service import stated_by

MOST_OTHERS = 20
"""Maximum number of other boards in a response."""
MOST_HIDDEN = 50
MOST_FOLDED = 20


def leaderboard(
    session: Session,
    environment: Environment,
    base_url: str,
    *,
    version: str | None = None,
    task_set: str | None = None,
    board: str | None = None,
    wanted: BoardFilter | None = None,
    versions: Sequence[ListedVersion] | None = None,
    brief: bool = False,
) -> Leaderboard:
    """Return a board, by default the first board of the newest version that has one.

    A `brief` board only has rows, without hidden runs and other versions. `versions` can be passed
    if the caller already has the environment's versions, newest first.
    """
    versions = versions if versions is not None else environments.list_versions(session, environment)
    chosen, boards = _choose_version(session, environment, versions, version)
    if task_set is not None or board is not None:
        shown = find_board(session, environment, chosen, task_set or "", board or "")
    elif boards:
        shown = boards[0]
    else:
        return Leaderboard(
            owner=environment.owner.name,
            name=environment.name,
            version=chosen.version,
            task_set_sha256=None,
            examples=0,
            rollouts_per_example=0,
            rows=[],
            hidden_incomplete=repository.count_incomplete(session, chosen.id),
            boards=0,
            versions=_other_versions(session, chosen, versions, None),
        )
    standing = repository.standing_of(session, shown)
    filled = _fill(session, environment, chosen, shown, standing, wanted or BoardFilter(), base_url)
    count = len(boards)
    if count > MOST_OTHERS:
        every = select(func.count()).select_from(Board)
        count = session.scalars(every.where(Board.version_id == chosen.id, Board.runs > 0)).one()
    others = [info_of(other) for other in boards if other is not shown][:MOST_OTHERS]
    update: dict[str, Any] = {"boards": count, "others": others}
    is_first_page = wanted is None or wanted.cursor is None  # later pages have only rows
    if not brief and is_first_page:
        hidden = repository.hidden_of(session, shown, MOST_HIDDEN) if standing.has_hidden else []
        update["hidden"] = [hidden_info(run, hiding, base_url) for run, hiding in hidden]
        update["versions"] = _other_versions(session, chosen, versions, shown)
        if others or len(versions) > 1:
            update["elsewhere"] = list_elsewhere(session, versions, shown, filled)
    return filled.model_copy(update=update)


def find_board(
    session: Session, environment: Environment, version: Version | ListedVersion, task_set: str, name: str
) -> Board:
    """Return the board of a version whose task set and name start with these; raise a 404 problem if there is
    none."""
    named = (
        Board.version_id == version.id,
        Board.task_set_sha256.startswith(task_set, autoescape=True),
        Board.name.startswith(name, autoescape=True),
    )
    board = session.scalar(select(Board).where(*named).order_by(*repository.BOARD_ORDER).limit(1))
    if board is None:
        label = environment.label
        raise HubProblem(
            404,
            "board_not_found",
            f"`{label}` {version.version} has no board `{(name or task_set)[:64]}`",
            hint=f"`wander leaderboard {label}` lists the boards",
        )
    return board


def _fill(
    session: Session,
    environment: Environment,
    chosen: Version | ListedVersion,
    board: Board,
    standing: repository.Standing,
    wanted: BoardFilter,
    base_url: str,
) -> Leaderboard:
    """Return a board with its rows."""
    rows = repository.page(session, board, wanted)
    shown = rows[: wanted.limit]
    more = len(rows) > wanted.limit
    return fill(
        Leaderboard,
        board,
        owner=environment.owner.name,
        name=environment.name,
        version=chosen.version,
        board=board.name,
        showing=wanted.showing,
        proved=sum(count for level, count in zip(TIERS, standing.tiers, strict=False) if level in PROVEN),
        rows=_rows(session, board, standing, shown, chosen, base_url),
        next=repository.position_of_row(shown[-1], wanted).cursor() if more else None,
        hidden_incomplete=standing.incomplete,
    )


def info_of(board: Board) -> BoardInfo:
    """Return the description of a board."""
    return fill(BoardInfo, board, board=board.name)


def hidden_info(run: Run, hidden: HiddenRun, base_url: str) -> HiddenRunInfo:
    """Return the public information about a hidden run."""
    return fill(
        HiddenRunInfo,
        run,
        posted_by=run.posted_by.name,
        reason=hidden.reason,
        hidden_by=hidden.hidden_by.name,
        hidden_at=hidden.hidden_at,
        url=f"{base_url}/runs/{run.run_id}",
    )


def _folded_run(entry: BoardEntry, run: Run, base_url: str) -> FoldedRun:
    return fill(
        FoldedRun,
        entry,
        name=run.name,
        reward_mean=0.0 - entry.shortfall,
        posted_by=run.posted_by.name,
        url=f"{base_url}/runs/{entry.run_id}",
    )


def _choose_version(
    session: Session, environment: Environment, versions: Sequence[ListedVersion], version: str | None
) -> tuple[Version | ListedVersion, Sequence[Board]]:
    """Return the requested version, or the newest version with boards, together with its first boards."""
    if version is not None:
        requested = environments.find_version(session, environment, version)
        return requested, repository.boards_of(session, requested.id, MOST_OTHERS + 1)
    for newest in versions[:1]:
        if boards := repository.boards_of(session, newest.id, MOST_OTHERS + 1):
            return newest, boards
    with_boards = repository.find_versions_with_boards(session, [known.id for known in versions])
    for older in versions:
        if older.id in with_boards:
            return older, repository.boards_of(session, older.id, MOST_OTHERS + 1)
    return next(known for known in versions if known.version == environment.latest_version), []


def _other_versions(
    session: Session,
    chosen: Version | ListedVersion,
    versions: Sequence[ListedVersion],
    board: Board | None,
) -> list[VersionBoard]:
    """Return one board of every other version: with the same task set and protocol, or else its first
    board."""
    near = [version for version in versions if version.id != chosen.id][:MOST_OTHERS]
    if not near:
        return []
    query = select(Board).where(Board.version_id.in_([version.id for version in near]), Board.runs > 0)
    boards: dict[int, list[Board]] = {}
    for other in session.scalars(query.order_by(*repository.BOARD_ORDER)):
        boards.setdefault(other.version_id, []).append(other)
    linked = []
    for version in near:
        of_version = boards.get(version.id, [])
        same = [
            other
            for other in of_version
            if board is not None
            and (other.task_set_sha256, other.protocol_sha256)
            == (board.task_set_sha256, board.protocol_sha256)
        ]
        for other in (same or of_version)[:1]:
            linked += [
                fill(
                    VersionBoard,
                    other,
                    version=version.version,
                    board=other.name,
                    same_protocol=bool(same),
                    best_model=leader.model,
                    best_reward=leader.reward_mean,
                )
                for leader in repository.leaders(session, other, 1)
            ]
    return linked


def _rows(
    session: Session,
    board: Board,
    standing: repository.Standing,
    shown: Sequence[repository.BoardRow],
    version: Version | ListedVersion,
    base_url: str,
) -> list[LeaderboardRow]:
    details = repository.details_of(session, [row.run_id for row in shown])
    rows_with_others = [row.run_id for row in shown if row.counts and details[row.run_id].is_folded_onto]
    folded = repository.folded_under(session, rows_with_others)
    repeaters = repeated_by(session, [run_id for run_id in details if details[run_id].is_repeated])
    own = {(row.model, row.posted_by_id): row.place for row in shown if row.counts}
    if unknown := {(row.model, row.posted_by_id) for row in shown} - set(own):
        own |= repository.counting_places(session, board, {model for model, _ in unknown})
    bounds = Bounds(standing.lows, standing.highs, standing.tiers)
    checkpoints = names_of_weights(session, [row.weights_sha256 for row in shown])
    pushers = first_pushers(session, checkpoints)
    rows = []
    for entry in shown:
        top = repository.top_of(session, entry.folded_into)
        below = folded.get(entry.run_id, [])
        row_place = own.get((entry.model, entry.posted_by_id)) if top is None else top.place
        ranks = bounds.ranks(entry.place, row_place)
        detail = details[entry.run_id]
        token_check = TokenCheck.model_validate(detail.tokens) if detail.tokens else None
        summary = RunSummary.model_validate_json(entry.summary)
        mean = 0.0 - entry.shortfall
        row = fill(
            LeaderboardRow,
            entry,
            rank_low=ranks[0],
            rank_high=ranks[1],
            reward_mean=mean,
            reward_low=entry.low if entry.low is not None else mean,
            reward_high=entry.high if entry.high is not None else mean,
            examples=summary.examples,
            rollouts=summary.rollouts,
            failed=summary.failed,
            stated_endings=summary.stated_endings,
            metrics={name: metric.mean for name, metric in summary.metrics.items()},
            metric_intervals={
                name: (metric.low, metric.high)
                for name, metric in summary.metrics.items()
                if metric.low is not None and metric.high is not None
            },
            seconds_per_rollout=summary.seconds_mean,
            pass_rates=summary.pass_rates,
            checkpoint=checkpoints.get(entry.weights_sha256 or ""),
            checkpoint_stated_by=stated_by(entry.posted_by_id, entry.posted_by, entry.weights_sha256, pushers)
            if entry.weights_sha256 in checkpoints
            else None,
            version=version.version,
            looks_like=detail.looks_like,
            level_reason=detail.level_reason,
            tokens_counted=token_check is not None and not token_check.understated,
            players_stated_by=entry.posted_by if board.stated_players else None,
            repeated_by=repeaters.get(entry.run_id, []),
            url=f"{base_url}/runs/{entry.run_id}",
            best=entry.counts,
            people=len({entry.posted_by_id, *(other.posted_by_id for other, _ in below)}),
            names=list(dict.fromkeys([entry.model, *(other.model for other, _ in below)]))[:MOST_FOLDED],
            folded=[_folded_run(*pair, base_url) for pair in below[:MOST_FOLDED]],
            folded_runs=len(below),
            folded_into=top.run_id if top is not None else None,
        )
        rows.append(row)
    return rows
