"""`wander leaderboard`: an environment's ranked runs."""

from __future__ import annotations

import csv
import json
import os
import sys
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from wander_client.context import current
from wander_client.runs.lookup import short_ids

if TYPE_CHECKING:
    from wander.wire import BoardInfo, Leaderboard, LeaderboardRow

    from wander_client.terminal.output import Cell

COLUMNS = [
    "rank",
    "model",
    "reward",
    "low",
    "high",
    "examples",
    "rollouts",
    "failed",
    "tokens",
    "usd",
    "level",
    "by",
    "posted",
    "run",
]
_PAGE = 200


class Level(StrEnum):
    """Levels that a row may be asked to have at least."""

    complete = "complete"
    rescored = "rescored"
    replayed = "replayed"
    rerun = "rerun"


class Sort(StrEnum):
    """Orders of rows."""

    reward = "reward"
    posted = "posted"
    tokens = "tokens"
    cost = "cost"


def leaderboard(
    environment: Annotated[str, typer.Argument(help="owner/name or owner/name@version")],
    task_set: Annotated[str | None, typer.Option(help="digest of another task set")] = None,
    board: Annotated[str | None, typer.Option(help="another board of the version, by its name")] = None,
    all_runs: Annotated[
        bool, typer.Option("--all", help="all runs instead of the best of each model")
    ] = False,
    level: Annotated[Level | None, typer.Option(help="only runs of at least this level")] = None,
    model: Annotated[str | None, typer.Option(help="only models whose name contains this")] = None,
    since: Annotated[str | None, typer.Option(help="only runs posted on or after this day (UTC)")] = None,
    until: Annotated[str | None, typer.Option(help="only runs posted before this day (UTC)")] = None,
    sort: Annotated[Sort | None, typer.Option(help="sort order: best, newest or least first")] = None,
    limit: Annotated[int, typer.Option("-n", min=1, help="rows to show")] = 50,
    metrics: Annotated[bool, typer.Option("--metrics", help="also show every metric and pass@k")] = False,
    as_csv: Annotated[
        str | None, typer.Option("--csv", help="write all rows to this file (`-`: stdout)")
    ] = None,
) -> None:
    """Show an environment's leaderboard.

    \b
    wander leaderboard wander/tictactoe
    wander leaderboard wander/tictactoe@0.1.0 --level replayed --model qwen --since 2026-11-01
    wander leaderboard wander/tictactoe --all --sort posted --metrics
    wander leaderboard wander/tictactoe --board 1f3a5c7e --csv board.csv

    A board holds runs that may be compared: one version, the same examples, arguments, token limit and
    rollouts of each. A rank is a range among models: those whose 95 % intervals overlap cannot be told apart.
    Filters leave rows out and change no rank.
    """
    from wander_client.names import parse_name

    here = current()
    name = parse_name(environment)
    wanted = {
        "runs": "all" if all_runs else None,
        "level": level.value if level else None,
        "model": model,
        "since": since,
        "until": until,
        "sort": sort.value if sort else None,
    }
    most = None if as_csv else limit
    shown = _fetch(name.owner, name.name, name.version, task_set, board, wanted, most)
    if as_csv:
        _write_csv(shown, as_csv)
    elif here.output.json:
        here.output.answer(shown)
    else:
        _show(shown, metrics=metrics)
    if shown.rows:
        here.output.next(f"wander view {shown.rows[0].run_id}")
    elif not shown.runs:
        here.output.next(f"wander eval {name.owner}/{name.name} -m MODEL")


def _fetch(
    owner: str,
    name: str,
    version: str | None,
    task_set: str | None,
    board: str | None,
    wanted: dict[str, str | None],
    most: int | None,
) -> Leaderboard:
    """Return a board with up to so many rows, for None with all."""
    with current().hub() as hub:
        size = min(most or _PAGE, _PAGE)
        shown = hub.leaderboard(
            owner, name, version=version, task_set=task_set, board=board, limit=size, **wanted
        )
        rows, following = list(shown.rows), shown.next
        while following is not None and (most is None or len(rows) < most):
            size = _PAGE if most is None else min(most - len(rows), _PAGE)
            page = hub.leaderboard(
                owner, name, version=shown.version, board=shown.board, limit=size, cursor=following, **wanted
            )
            rows += page.rows
            following = page.next
    return shown.model_copy(update={"rows": rows, "next": following})


def _write_csv(board: Leaderboard, target: str) -> None:
    from wander.wire.boards import csv_table

    if target == "-":
        csv.writer(sys.stdout, lineterminator="\n").writerows(csv_table(board.rows))
        return
    path = Path(target)
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with draft.open("w", newline="", encoding="utf-8") as file:
            csv.writer(file, lineterminator="\n").writerows(csv_table(board.rows))
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)
    current().output.note(f"wrote {len(board.rows)} rows to {path}")


def _show(board: Leaderboard, *, metrics: bool) -> None:
    output = current().output
    label = f"{board.owner}/{board.name} {board.version}"
    if not board.runs:
        output.note(f"{label} has no complete run")
    else:
        if board.title:
            output.note(board.title)
        if board.description:
            output.note(board.description)
        output.note(f"{label}, board {board.board}: {protocol(board)}")
    if output.human:
        _show_to_people(board, metrics=metrics)
    else:
        _show_to_programs(board, metrics=metrics)
    if board.next:
        which = "runs" if board.showing == "all" else "models"
        of = board.runs if board.showing == "all" else board.models
        output.note(f"{len(board.rows)} of {of} {which} at most; `-n {2 * len(board.rows)}` shows more")
    for hidden in board.hidden:
        output.note(f"hidden by {hidden.hidden_by}: {hidden.run_id} of {hidden.model}: {hidden.reason}")
    if board.hidden_incomplete:
        from wander_client.terminal.output import counted

        claims = counted(board.hidden_incomplete, "run")
        output.note(f"{claims} left out, only claimed: something is missing, or did not come out the same")
    if board.others:
        output.note(f"other boards of {label}, shown with `--board NAME`:")
        for one in board.others:
            runs = f"{one.runs} run{'' if one.runs == 1 else 's'}"
            output.note(f"  {one.board}  {runs}: {protocol(one)}")
    if board.boards > 1 + len(board.others):
        output.note(f"  and {board.boards - 1 - len(board.others)} more")
    for older in board.versions:
        best = f"best {older.best_reward:.4f} by {older.best_model}"
        runs = f"{older.runs} run{'' if older.runs == 1 else 's'}"
        output.note(f"version {older.version}, not comparable: board {older.board}, {runs}, {best}")


def _show_to_programs(board: Leaderboard, *, metrics: bool) -> None:
    """Print the same columns of every board, each number in one of its own."""
    names = list(dict.fromkeys(one for row in board.rows for one in row.metrics)) if metrics else []
    rates = sorted({one.k for row in board.rows for one in row.pass_rates}) if metrics else []
    titles = [
        *(f"pass@{k}" for k in rates),
        *(f"{one}{end}" for one in names for end in ("", "_low", "_high")),
    ]
    rows = [
        [
            *_row(row),
            *_pass_cells(row, rates),
            *(_number(value) for name in names for value in (row.metrics.get(name), *row.interval(name))),
        ]
        for row in board.rows
    ]
    current().output.table([*COLUMNS, *titles], rows)


def protocol(board: Leaderboard | BoardInfo) -> str:
    """Return what makes the rows of a board comparable."""
    each = board.rollouts_per_example
    said = f"{board.split} split, {board.examples} examples x {each} rollout{'' if each == 1 else 's'}"
    if board.arguments:
        said += f", {json.dumps(board.arguments, ensure_ascii=False)}"
    if board.max_tokens is not None:
        said += f", at most {board.max_tokens} tokens a turn"
    return f"{said}, task set {(board.task_set_sha256 or '')[:12]}"


_TITLES = {"interval": "95 % interval", "cost": "usd"}
"""What people read over a column, where it is not the column's name."""
_USUAL = ("rank", "model", "reward", "interval", "tokens", "cost", "level", "by", "posted")
"""Columns of a board whose owners chose none: without what all its rows have in common."""


def _show_to_people(board: Leaderboard, *, metrics: bool) -> None:
    """Print the columns that the board's owners chose, and the beginnings of the runs' ids."""
    columns = _people_columns(board, metrics=metrics)
    titles = [_TITLES.get(one, one.removeprefix("metric:")) for one in columns]
    shorts = short_ids([row.run_id for row in board.rows])
    rows: list[list[Cell]] = [
        [*(_cell(row, one) for one in columns), short] for row, short in zip(board.rows, shorts, strict=True)
    ]
    drop: list[str] = [one for one in ("usd", "examples", "tokens", "posted", "by") if one in titles]
    drop += [
        title for title, one in zip(titles, columns, strict=True) if one.startswith(("metric:", "pass@"))
    ][::-1]
    current().output.table(
        [*titles, "run"], rows, shrink=[one for one in ("model", "by") if one in titles], drop=drop
    )


def _people_columns(board: Leaderboard, *, metrics: bool) -> list[str]:
    """Return the columns to show, every metric and pass@k by its own name."""
    from wander.wire.boards import BOARD_COLUMNS

    every = {
        "pass": [f"pass@{k}" for k in sorted({one.k for row in board.rows for one in row.pass_rates})],
        "metrics": list(dict.fromkeys(f"metric:{one}" for row in board.rows for one in row.metrics)),
    }
    chosen = _USUAL if board.columns == list(BOARD_COLUMNS) else board.columns
    columns = [name for one in chosen for name in every.get(one, [one])]
    if metrics:
        after = columns.index("interval") + 1  # which no board leaves out
        columns[after:after] = [one for one in (*every["pass"], *every["metrics"]) if one not in columns]
    return list(dict.fromkeys(columns))


def _cell(row: LeaderboardRow, column: str) -> Cell:
    kind, colon, name = column.partition(":")
    if colon:
        low, high = row.interval(name)
        mean = _number(row.metrics.get(name))
        return f"{mean} ({low:.2f} to {high:.2f})" if low is not None and high is not None else mean
    if kind.startswith("pass@"):
        return _number({f"pass@{one.k}": one.pass_at_k for one in row.pass_rates}.get(kind))
    cells: dict[str, Cell] = {
        "rank": _rank(row),
        "model": row.model,
        "reward": f"{row.reward_mean:.4f}",
        "interval": f"{row.reward_low:.4f} to {row.reward_high:.4f}",
        "examples": row.examples,
        "tokens": _tokens(row),
        "cost": _usd(row),
        "level": row.level,
        "by": row.posted_by,
        "posted": f"{row.posted_at:%Y-%m-%d}",
    }
    return cells[kind]


def _rank(row: LeaderboardRow) -> str:
    return str(row.rank_low) if row.rank_low == row.rank_high else f"{row.rank_low}-{row.rank_high}"


def _tokens(row: LeaderboardRow) -> Cell:
    return f"{row.tokens_per_rollout:.0f}" if row.tokens_per_rollout is not None else ""


def _usd(row: LeaderboardRow) -> Cell:
    return f"{row.usd_per_rollout:.3g}" if row.usd_per_rollout is not None else ""


def _pass_cells(row: LeaderboardRow, rates: list[int]) -> list[Cell]:
    found = {one.k: one.pass_at_k for one in row.pass_rates}
    return [_number(found.get(k)) for k in rates]


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.4f}"


def _row(row: LeaderboardRow) -> list[Cell]:
    return [
        _rank(row),
        row.model,
        *(f"{value:.4f}" for value in (row.reward_mean, row.reward_low, row.reward_high)),
        row.examples,
        row.rollouts,
        row.failed,
        _tokens(row),
        _usd(row),
        row.level,
        row.posted_by,
        f"{row.posted_at:%Y-%m-%d}",
        row.run_id,
    ]
