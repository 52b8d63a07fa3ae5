"""`wander leaderboard`: an environment's ranked runs."""

from __future__ import annotations

import csv
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from wander_client.command import command_app
from wander_client.invocation import current

if TYPE_CHECKING:
    from wander.wire import Leaderboard, LeaderboardRow

    from wander_client.output import Cell

app = command_app()

COLUMNS = [
    "rank",
    "model",
    "reward",
    "low",
    "high",
    "examples",
    "rollouts",
    "failed",
    "level",
    "by",
    "posted",
    "run",
]


@app.command()
def leaderboard(
    environment: Annotated[str, typer.Argument(help="owner/name or owner/name@version")],
    task_set: Annotated[str | None, typer.Option(help="digest of another task set")] = None,
    as_csv: Annotated[bool, typer.Option("--csv", help="comma-separated values")] = False,
) -> None:
    """Show an environment's leaderboard.

    \b
    wander leaderboard wander/tictactoe
    wander leaderboard wander/tictactoe@0.1.0 --csv
    wander leaderboard wander/tictactoe --json

    A rank is a range: rows whose 95 % intervals overlap cannot be told apart.
    """
    from wander_client.packaging.resolve import parse_name

    here = current()
    name = parse_name(environment)
    with here.hub() as hub:
        board = hub.leaderboard(name.owner, name.name, version=name.version, task_set=task_set)
    if here.output.json:
        here.output.answer(board)
    elif as_csv:
        writer = csv.writer(sys.stdout, lineterminator="\n")
        writer.writerow(COLUMNS)
        writer.writerows(_row(row, exact=True) for row in board.rows)
    else:
        _show(board)
    if board.rows:
        here.output.next(f"wander view {board.rows[0].run_id}")
    else:
        here.output.next(f"wander eval {name.owner}/{name.name} -m MODEL")


def _show(board: Leaderboard) -> None:
    output = current().output
    digest = f", task set {board.task_set_sha256[:12]}" if board.task_set_sha256 else ""
    if output.human:
        output.line(f"{board.owner}/{board.name} {board.version}", style="bold")
        output.line(f"{board.examples} examples x {board.rollouts_per_example} rollouts{digest}")
        output.line()
    output.table(COLUMNS, [_row(row, exact=False) for row in board.rows], shrink=["model"])
    if board.hidden_incomplete:
        output.note(f"{board.hidden_incomplete} incomplete runs are left out")
    if board.boards > 1:
        output.note(f"this version has {board.boards} boards; `--task-set` chooses another")


def _row(row: LeaderboardRow, *, exact: bool) -> list[Cell]:
    rank = str(row.rank_low) if row.rank_low == row.rank_high else f"{row.rank_low}-{row.rank_high}"
    rewards: list[Cell] = [row.reward_mean, row.reward_low, row.reward_high]
    if not exact:
        rewards = [f"{value:.4f}" for value in (row.reward_mean, row.reward_low, row.reward_high)]
    return [
        rank,
        row.model,
        *rewards,
        row.examples,
        row.rollouts,
        row.failed,
        row.level,
        row.posted_by,
        f"{row.posted_at:%Y-%m-%d}",
        row.run_id,
    ]
