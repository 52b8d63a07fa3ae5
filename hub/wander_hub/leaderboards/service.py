"""Boards of runs that may be compared, ranked as far as their intervals allow."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import func, select
from sqlalchemy.orm import Session
from wander.wire import BoardInfo, Leaderboard, LeaderboardRow, RunSummary
from wander.wire.boards import (
    BOARD_COLUMNS,
    TIERS,
    FoldedRun,
    HiddenRunInfo,
    HistoryPoint,
    LeaderboardPlace,
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
from wander_hub.leaderboards.models import PROVEN, Board, BoardEntry, HiddenRun
from wander_hub.leaderboards.repetitions import repeated_by
from wander_hub.leaderboards.schemas import BoardFilter
from wander_hub.models.repository import first_pushers, names_of_weights
from wander_hub.runs.models import Run
from wander_hub.runs.service import stated_by

MOST_OTHERS = 20
"""Most other boards that an answer names."""
MOST_HIDDEN = 50
HISTORY_ROWS = 50
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
    """Return a board: unless asked otherwise the first one of the newest version that has any.

    A brief one has its rows alone: no history, nothing on hidden runs and on other versions. `versions` are
    those of the environment, the newest first, where the caller has them.
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
    others = [info_of(one) for one in boards if one is not shown][:MOST_OTHERS]
    update: dict[str, Any] = {"boards": count, "others": others}
    is_first_page = wanted is None or wanted.cursor is None  # which also tells of the board itself
    if not brief and is_first_page:
        hidden = repository.hidden_of(session, shown, MOST_HIDDEN) if standing.has_hidden else []
        update["hidden"] = [hidden_info(run, one, base_url) for run, one in hidden]
        leaders = repository.leaders(session, shown, HISTORY_ROWS)
        proven = [one for one in leaders if one.tier == leaders[0].tier]
        proven.sort(key=lambda one: one.posted_at)
        update["history"] = [fill(HistoryPoint, one) for one in proven]
        update["versions"] = _other_versions(session, chosen, versions, shown)
        if others or len(versions) > 1:
            update["elsewhere"] = list_elsewhere(session, versions, shown, filled)
    return filled.model_copy(update=update)


def find_board(
    session: Session, environment: Environment, version: Version | ListedVersion, task_set: str, name: str
) -> Board:
    """Return the board of a version whose task set and name begin so, or raise a 404."""
    named = (
        Board.version_id == version.id,
        Board.task_set_sha256.startswith(task_set, autoescape=True),
        Board.name.startswith(name, autoescape=True),
    )
    found = session.scalar(select(Board).where(*named).order_by(*repository.BOARD_ORDER).limit(1))
    if found is None:
        label = environment.label
        raise HubProblem(
            404,
            "board_not_found",
            f"`{label}` {version.version} has no board `{(name or task_set)[:64]}`",
            hint=f"`wander leaderboard {label}` names those there are",
        )
    return found


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
    found = repository.page(session, board, wanted)
    shown = found[: wanted.limit]
    more = len(found) > wanted.limit
    return fill(
        Leaderboard,
        board,
        owner=environment.owner.name,
        name=environment.name,
        version=chosen.version,
        board=board.name,
        columns=board.columns if board.columns is not None else list(BOARD_COLUMNS),
        showing=wanted.showing,
        proved=sum(count for level, count in zip(TIERS, standing.tiers, strict=False) if level in PROVEN),
        rows=_rows(session, board, standing, shown, chosen, base_url),
        next=repository.position(shown[-1], wanted).cursor() if more else None,
        hidden_incomplete=standing.incomplete,
    )


def info_of(board: Board) -> BoardInfo:
    """Return what a board compares."""
    return fill(BoardInfo, board, board=board.name)


def hidden_info(run: Run, hidden: HiddenRun, base_url: str) -> HiddenRunInfo:
    """Return what everybody may know of a run that is kept off its board."""
    return fill(
        HiddenRunInfo,
        run,
        posted_by=run.posted_by.name,
        reason=hidden.reason,
        hidden_by=hidden.hidden_by.name,
        hidden_at=hidden.hidden_at,
        url=f"{base_url}/runs/{run.run_id}",
    )


def place_of_run(session: Session, run: Run) -> LeaderboardPlace:
    """Return where a run stands on its board among the runs with the same answers."""
    entry = session.get_one(BoardEntry, run.run_id)
    top = repository.top_of(session, entry.folded_into)
    below = repository.folded_under(session, [run.run_id]).get(run.run_id, [])
    return LeaderboardPlace(
        run_id=run.run_id,
        on_top=run.on_top,
        folded_into=top.run_id if top is not None else None,
        folded_runs=len(below),
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
    """Return the version asked for, or else the newest one that has boards, with its first boards."""
    if version is not None:
        found = environments.find_version(session, environment, version)
        return found, repository.boards_of(session, found.id, MOST_OTHERS + 1)
    for newest in versions[:1]:
        if boards := repository.boards_of(session, newest.id, MOST_OTHERS + 1):
            return newest, boards
    with_boards = repository.find_versions_with_boards(session, [one.id for one in versions])
    for older in versions:
        if older.id in with_boards:
            return older, repository.boards_of(session, older.id, MOST_OTHERS + 1)
    return next(one for one in versions if one.version == environment.latest_version), []


def _other_versions(
    session: Session,
    chosen: Version | ListedVersion,
    versions: Sequence[ListedVersion],
    board: Board | None,
) -> list[VersionBoard]:
    """Return a board of every other version that has one: of the same task set and protocol, or its first."""
    near = [one for one in versions if one.id != chosen.id][:MOST_OTHERS]
    if not near:
        return []
    query = select(Board).where(Board.version_id.in_([one.id for one in near]), Board.runs > 0)
    boards: dict[int, list[Board]] = {}
    for one in session.scalars(query.order_by(*repository.BOARD_ORDER)):
        boards.setdefault(one.version_id, []).append(one)
    linked = []
    for version in near:
        found = boards.get(version.id, [])
        same = [
            one
            for one in found
            if board is not None
            and (one.task_set_sha256, one.protocol_sha256) == (board.task_set_sha256, board.protocol_sha256)
        ]
        for one in (same or found)[:1]:
            linked += [
                fill(
                    VersionBoard,
                    one,
                    version=version.version,
                    board=one.name,
                    same_protocol=bool(same),
                    best_model=leader.model,
                    best_reward=leader.reward_mean,
                )
                for leader in repository.leaders(session, one, 1)
            ]
    return linked


def _rows(
    session: Session,
    board: Board,
    standing: repository.Standing,
    found: Sequence[repository.BoardRow],
    version: Version | ListedVersion,
    base_url: str,
) -> list[LeaderboardRow]:
    details = repository.details_of(session, [one.run_id for one in found])
    rows_with_others = [one.run_id for one in found if one.counts and details[one.run_id].is_folded_onto]
    folded = repository.folded_under(session, rows_with_others)
    repeaters = repeated_by(session, [one for one in details if details[one].is_repeated])
    own = {(one.model, one.posted_by_id): one.place for one in found if one.counts}
    if unknown := {(one.model, one.posted_by_id) for one in found} - set(own):
        own |= repository.counting_places(session, board, {model for model, _ in unknown})
    bounds = Bounds(standing.lows, standing.highs, standing.tiers)
    checkpoints = names_of_weights(session, [one.weights_sha256 for one in found])
    pushers = first_pushers(session, checkpoints)
    rows = []
    for one in found:
        top = repository.top_of(session, one.folded_into)
        below = folded.get(one.run_id, [])
        row_place = own.get((one.model, one.posted_by_id)) if top is None else top.place
        ranks = bounds.ranks(one.place, row_place)
        detail = details[one.run_id]
        tokens = TokenCheck.model_validate(detail.tokens) if detail.tokens else None
        summary = RunSummary.model_validate_json(one.summary)
        mean = 0.0 - one.shortfall
        row = fill(
            LeaderboardRow,
            one,
            rank_low=ranks[0],
            rank_high=ranks[1],
            reward_mean=mean,
            reward_low=one.low if one.low is not None else mean,
            reward_high=one.high if one.high is not None else mean,
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
            tokens_per_rollout=one.tokens,
            usd_per_rollout=one.usd,
            seconds_per_rollout=summary.seconds_mean,
            pass_rates=summary.pass_rates,
            checkpoint=checkpoints.get(one.weights_sha256 or ""),
            checkpoint_stated_by=stated_by(one.posted_by_id, one.posted_by, one.weights_sha256, pushers)
            if one.weights_sha256 in checkpoints
            else None,
            version=version.version,
            looks_like=detail.looks_like,
            level_reason=detail.level_reason,
            tokens_counted=tokens is not None and not tokens.understated,
            players_stated_by=one.posted_by if board.stated_players else None,
            repeated_by=repeaters.get(one.run_id, []),
            url=f"{base_url}/runs/{one.run_id}",
            best=one.counts,
            people=len({one.posted_by_id, *(each.posted_by_id for each, _ in below)}),
            names=list(dict.fromkeys([one.model, *(each.model for each, _ in below)]))[:MOST_FOLDED],
            folded=[_folded_run(*each, base_url) for each in below[:MOST_FOLDED]],
            folded_runs=len(below),
            folded_into=top.run_id if top is not None else None,
        )
        rows.append(row)
    return rows
