"""Boards of runs that may be compared, ranked as far as their intervals allow."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy.orm import Session
from wander.wire import BoardInfo, Leaderboard, LeaderboardRow, RunManifest, RunSummary

from wander_hub.environments import repository as environment_repository
from wander_hub.environments import service as environments
from wander_hub.environments.models import Environment, Version
from wander_hub.leaderboards import repository
from wander_hub.leaderboards.schemas import Board
from wander_hub.problems import HubProblem
from wander_hub.runs.models import Run

MOST_OTHERS = 20
"""How many other boards an answer tells of, the busiest first."""


def leaderboard(
    session: Session,
    environment: Environment,
    base_url: str,
    *,
    version: str | None = None,
    task_set: str | None = None,
    board: str | None = None,
) -> Leaderboard:
    """Return a board: unless asked otherwise the busiest one of the newest version that has any."""
    version_of_board = _version(session, environment, version)
    boards = repository.boards_of(session, version_of_board.id)
    if not boards and task_set is None and board is None:
        return _empty(session, environment, version_of_board)
    fitting = [
        one
        for one in boards
        if one.task_set_sha256.startswith(task_set or "") and one.name.startswith(board or "")
    ]
    if not fitting:
        label = f"{environment.owner.name}/{environment.name}"
        raise HubProblem(
            404,
            "board_not_found",
            f"`{label}` {version_of_board.version} has no board `{(board or task_set or '')[:64]}`",
            hint=f"`wander leaderboard {label}` names those there are",
        )
    return _filled(session, environment, version_of_board, fitting[0], boards, base_url)


def _filled(
    session: Session,
    environment: Environment,
    chosen: Version,
    board: Board,
    boards: Sequence[Board],
    base_url: str,
) -> Leaderboard:
    """Return a board with its rows, and what the others of its version are."""
    runs = repository.ranked_runs(session, board)
    manifest = RunManifest.model_validate_json(runs[0].manifest)
    return Leaderboard(
        owner=environment.owner.name,
        name=environment.name,
        version=chosen.version,
        board=board.name,
        task_set_sha256=board.task_set_sha256,
        split=manifest.split,
        examples=runs[0].examples,
        rollouts_per_example=runs[0].rollouts_per_example,
        arguments=manifest.environment.arguments,
        rows=_rows(runs, chosen, base_url),
        hidden_incomplete=repository.count_incomplete(session, chosen.id, board.task_set_sha256),
        boards=len(boards),
        others=[_info(session, one) for one in boards if one != board][:MOST_OTHERS],
    )


def _info(session: Session, board: Board) -> BoardInfo:
    run = repository.newest_run(session, board)
    manifest = RunManifest.model_validate_json(run.manifest)
    return BoardInfo(
        board=board.name,
        task_set_sha256=board.task_set_sha256,
        split=manifest.split,
        examples=run.examples,
        rollouts_per_example=run.rollouts_per_example,
        arguments=manifest.environment.arguments,
        runs=board.runs,
        last_posted_at=board.last_posted_at,
    )


def best(session: Session, environment: Environment) -> tuple[str | None, float | None]:
    """Return model and mean reward of the first row of the newest version's busiest board, if it has any.

    A score of an older version is no score of this one, and listings show it beside the newest version.
    """
    version = environments.find_version(session, environment, "latest")
    boards = repository.boards_of(session, version.id)
    if not boards:
        return None, None
    first = repository.ranked_runs(session, boards[0])[0]
    return first.model, first.reward_mean


def rank_ranges(intervals: Sequence[tuple[float, float]]) -> list[tuple[int, int]]:
    """Return the lowest and highest rank of each interval; overlapping ones cannot be told apart."""
    count = len(intervals)
    ranges = []
    for low, high in intervals:
        better = sum(1 for other_low, _ in intervals if other_low > high)
        worse = sum(1 for _, other_high in intervals if other_high < low)
        ranges.append((1 + better, count - worse))
    return ranges


def _version(session: Session, environment: Environment, version: str | None) -> Version:
    if version is not None:
        return environments.find_version(session, environment, version)
    with_boards = repository.versions_with_boards(session, environment.id)
    versions = environments.newest_first(list(environment_repository.versions_of(session, environment)))
    for one in versions:
        if one.id in with_boards:
            return one
    return next(one for one in versions if one.version == environment.latest_version)


def _empty(session: Session, environment: Environment, version: Version) -> Leaderboard:
    return Leaderboard(
        owner=environment.owner.name,
        name=environment.name,
        version=version.version,
        task_set_sha256=None,
        examples=0,
        rollouts_per_example=0,
        rows=[],
        hidden_incomplete=repository.count_incomplete(session, version.id, None),
        boards=0,
    )


def _rows(runs: Sequence[Run], version: Version, base_url: str) -> list[LeaderboardRow]:
    summaries = [RunSummary.model_validate(run.summary) for run in runs]
    ranges = rank_ranges([_interval(summary) for summary in summaries])
    return [
        _row(run, summary, ranks, version, base_url)
        for run, summary, ranks in zip(runs, summaries, ranges, strict=True)
    ]


def _row(
    run: Run, summary: RunSummary, ranks: tuple[int, int], version: Version, base_url: str
) -> LeaderboardRow:
    mean = summary.reward_mean
    assert mean is not None, "a complete run has scored rollouts"
    total_tokens = summary.usage.prompt_tokens + summary.usage.completion_tokens
    return LeaderboardRow(
        rank_low=ranks[0],
        rank_high=ranks[1],
        run_id=run.run_id,
        model=run.model,
        model_kind=run.model_kind,
        reward_mean=mean,
        reward_low=summary.reward_low if summary.reward_low is not None else mean,
        reward_high=summary.reward_high if summary.reward_high is not None else mean,
        examples=summary.examples,
        rollouts_per_example=run.rollouts_per_example,
        rollouts=summary.rollouts,
        failed=summary.failed,
        metrics={name: metric.mean for name, metric in summary.metrics.items()},
        tokens_per_rollout=total_tokens / summary.rollouts if total_tokens else None,
        version=version.version,
        level=run.level,
        posted_by=run.posted_by.name,
        posted_at=run.posted_at,
        url=f"{base_url}/runs/{run.run_id}",
    )


def _interval(summary: RunSummary) -> tuple[float, float]:
    """A run too small for an interval overlaps everything."""
    if summary.reward_low is None or summary.reward_high is None:
        return float("-inf"), float("inf")
    return summary.reward_low, summary.reward_high
