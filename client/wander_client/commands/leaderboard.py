"""`wander leaderboard`: an environment's ranked runs."""

from __future__ import annotations

import csv
import json
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from wander_client.command import command_app
from wander_client.invocation import current
from wander_client.runs import short_ids

if TYPE_CHECKING:
    from wander.wire import BoardInfo, Leaderboard, LeaderboardRow

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
    board: Annotated[str | None, typer.Option(help="another board of the version, by its name")] = None,
    as_csv: Annotated[bool, typer.Option("--csv", help="comma-separated values")] = False,
) -> None:
    """Show an environment's leaderboard.

    \b
    wander leaderboard wander/tictactoe
    wander leaderboard wander/tictactoe@0.1.0 --csv
    wander leaderboard wander/tictactoe --board 1f3a5c7e
    wander leaderboard wander/tictactoe --json

    A board holds runs that may be compared: one version, the same examples, arguments and rollouts of each.
    A rank is a range: rows whose 95 % intervals overlap cannot be told apart.
    """
    from wander_client.packaging.resolve import parse_name

    here = current()
    name = parse_name(environment)
    with here.hub() as hub:
        shown = hub.leaderboard(name.owner, name.name, version=name.version, task_set=task_set, board=board)
    if here.output.json:
        here.output.answer(shown)
    elif as_csv:
        writer = csv.writer(sys.stdout, lineterminator="\n")
        writer.writerow(COLUMNS)
        writer.writerows(_row(row, exact=True) for row in shown.rows)
    else:
        _show(shown)
    if shown.rows:
        here.output.next(f"wander view {shown.rows[0].run_id}")
    else:
        here.output.next(f"wander eval {name.owner}/{name.name} -m MODEL")


def _show(board: Leaderboard) -> None:
    output = current().output
    label = f"{board.owner}/{board.name} {board.version}"
    if not board.rows:
        output.note(f"{label} has no complete run")
    else:
        output.note(f"{label}, board {board.board}: {_protocol(board)}")
    if output.human:
        _show_to_people(board)
    else:
        output.table(COLUMNS, [_row(row, exact=False) for row in board.rows])
    if board.hidden_incomplete:
        from wander_client.output import counted

        claims = counted(board.hidden_incomplete, "run")
        output.note(f"{claims} left out, only claimed: something is missing, or did not come out the same")
    if board.others:
        output.note(f"other boards of {label}, shown with `--board NAME`:")
        for one in board.others:
            runs = f"{one.runs} run{'' if one.runs == 1 else 's'}"
            output.note(f"  {one.board}  {runs}: {_protocol(one)}")
    if board.boards > 1 + len(board.others):
        output.note(f"  and {board.boards - 1 - len(board.others)} more")


def _protocol(board: Leaderboard | BoardInfo) -> str:
    """Return what makes the rows of a board comparable."""
    each = board.rollouts_per_example
    said = f"{board.split} split, {board.examples} examples x {each} rollout{'' if each == 1 else 's'}"
    if board.arguments:
        said += f", {json.dumps(board.arguments, ensure_ascii=False)}"
    return f"{said}, task set {(board.task_set_sha256 or '')[:12]}"


def _show_to_people(board: Leaderboard) -> None:
    """Print the rows without what all of a board have in common, and the beginnings of the runs' ids."""
    shorts = short_ids([row.run_id for row in board.rows])
    columns = ["rank", "model", "reward", "95 % interval", "level", "by", "posted", "run"]
    rows: list[list[Cell]] = [
        [
            _rank(row),
            row.model,
            f"{row.reward_mean:.4f}",
            f"{row.reward_low:.4f} to {row.reward_high:.4f}",
            row.level,
            row.posted_by,
            f"{row.posted_at:%Y-%m-%d}",
            short,
        ]
        for row, short in zip(board.rows, shorts, strict=True)
    ]
    current().output.table(columns, rows, shrink=["model", "by"], drop=["posted", "by"])


def _rank(row: LeaderboardRow) -> str:
    return str(row.rank_low) if row.rank_low == row.rank_high else f"{row.rank_low}-{row.rank_high}"


def _row(row: LeaderboardRow, *, exact: bool) -> list[Cell]:
    rewards: list[Cell] = [row.reward_mean, row.reward_low, row.reward_high]
    if not exact:
        rewards = [f"{value:.4f}" for value in (row.reward_mean, row.reward_low, row.reward_high)]
    return [
        _rank(row),
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
