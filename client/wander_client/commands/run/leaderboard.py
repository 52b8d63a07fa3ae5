"""`wander leaderboard`: an environment's ranked runs."""

from __future__ import annotations

import csv
import io
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from wander_client.context import current
from wander_client.errors import UsageError
from wander_client.runs.board_text import cell_of, columns_of, metric_columns, protocol_text, title_of
from wander_client.runs.lookup import short_ids
from wander_client.terminal.command import Argument, Option, refuse_options, require_date

if TYPE_CHECKING:
    from wander.wire import Leaderboard

    from wander_client.terminal.output import Cell, Output

Level = Literal["complete", "rescored", "replayed"]
Sort = Literal["reward", "posted", "tokens", "cost"]


def leaderboard(
    environment: Annotated[str, Argument(help="owner/name or owner/name@version")],
    task_set: Annotated[
        str | None, Option(metavar="DIGEST", help="show the board of the task set with this digest")
    ] = None,
    board: Annotated[
        str | None, Option(metavar="NAME", help="show this board (the end of the list names the others)")
    ] = None,
    all_runs: Annotated[
        bool, Option("--all", help="show all runs, not only the first per model and account")
    ] = False,
    level: Annotated[Level | None, Option(help="only runs of at least this level")] = None,
    model: Annotated[str | None, Option(help="only models whose name contains this")] = None,
    since: Annotated[
        str | None,
        Option(metavar="DATE", callback=require_date, help="only runs posted on or after this day (UTC)"),
    ] = None,
    until: Annotated[
        str | None,
        Option(metavar="DATE", callback=require_date, help="only runs posted before this day (UTC)"),
    ] = None,
    sort: Annotated[
        Sort | None,
        Option(help="sort by best reward, newest, or rank and then fewest tokens or lowest cost"),
    ] = None,
    stratum: Annotated[
        int | None, Option(help="also show the reward on this stratum of the examples")
    ] = None,
    limit: Annotated[int, Option("--limit", min=1, help="rows to show")] = 50,
    metrics: Annotated[bool, Option("--metrics", help="also show every metric and pass@k")] = False,
    as_csv: Annotated[str | None, Option("--csv", help="write all rows to this file (`-`: stdout)")] = None,
) -> None:
    """Show an environment's leaderboard.

    \b
    wander leaderboard admin/tictactoe
    wander leaderboard admin/tictactoe@0.1.0 --level replayed --model qwen --since 2026-11-01
    wander leaderboard admin/tictactoe --all --sort posted --metrics
    wander leaderboard admin/tictactoe --board 1f3a5c7e --csv board.csv

    A board lists comparable runs: they have the same version, examples, arguments, token limit and number of
    rollouts. By default, only the first run per model and account is ranked, so posting again does not change
    a rank. Rows with overlapping 95% intervals share a range of ranks, such as 2-4. Filters hide rows, but do
    not change ranks.
    """
    from wander_client.names import parse_name

    here = current()
    if as_csv:
        reason = "does not apply to `--csv`, which contains all rows and columns"
        refuse_options("limit", "metrics", because=reason)
        if here.output.json:
            raise UsageError("`--csv` and `--json` cannot be used together", hint="pass only one of them")
    name = parse_name(environment)
    params: dict[str, Any] = {
        "version": name.version,
        "task_set": task_set,
        "board": board,
        "runs": "all" if all_runs else None,
        "level": level,
        "model": model,
        "since": since,
        "until": until,
        "sort": sort,
        "stratum": stratum,
    }
    with here.hub() as hub:
        most = None if as_csv else limit
        shown = hub.whole_leaderboard(name.owner, name.name, most=most, **params)
    if as_csv:
        _write_csv(shown, as_csv)
    elif here.output.json:
        here.output.answer(shown)
    else:
        _show(shown, metrics=metrics, stratum=stratum)
    if shown.rows:
        here.output.next(f"wander view {shown.rows[0].run_id}")
    elif not shown.runs:
        here.output.next(f"wander eval {name.owner}/{name.name} -m MODEL")


def _write_csv(board: Leaderboard, target: str) -> None:
    from wander.evals.store.jsonl import write_whole
    from wander.wire.boards import csv_table

    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(csv_table(board.rows))
    if target == "-":
        sys.stdout.write(text.getvalue())
        return
    write_whole(Path(target), text.getvalue().encode())
    current().output.note(f"wrote {len(board.rows)} rows to {target}")


def _show(board: Leaderboard, *, metrics: bool, stratum: int | None) -> None:
    output = current().output
    label = f"{board.owner}/{board.name} {board.version}"
    if not board.runs:
        output.note(f"{label} has no complete run")
    else:
        if board.title:
            output.note(board.title)
        if board.description:
            output.note(board.description)
        output.note(f"{label}, board {board.board}: {protocol_text(board)}")
    if output.human:
        _show_to_people(board, metrics=metrics, stratum=stratum)
    else:
        from wander.wire.boards import csv_table

        header, *rows = csv_table(board.rows)
        output.table(list(map(str, header)), rows)
    _explain_rows(board, output)
    if board.next:
        which = "runs" if board.showing == "all" else "rows"
        of = board.runs if board.showing == "all" else board.models
        output.note(f"{len(board.rows)} of {of} {which}; show more with `-n {2 * len(board.rows)}`")
    for hidden in board.hidden:
        output.note(f"hidden by {hidden.hidden_by}: {hidden.run_id} of {hidden.model}: {hidden.reason}")
    if board.hidden_incomplete:
        from wander_client.terminal.output import counted

        claims = counted(board.hidden_incomplete, "run")
        output.note(f"{claims} at level `claimed` not shown: rollouts are missing, or the replay differed")
    if board.strata and stratum is None:
        output.note(
            f"strata of the examples: {', '.join(map(str, board.strata))}; show one with `--stratum N`"
        )
    _note_other_boards(board, label, output)


def _explain_rows(board: Leaderboard, output: Output) -> None:
    """Print notes on self-reported values, rows that stand for several models, and similar model names."""
    if board.rows:
        from wander.wire.boards import BOARD_COLUMNS

        stated = ", ".join(name for name, column in BOARD_COLUMNS.items() if column.stated)
        output.note(f"self-reported and not verified: {stated}")
    for row in board.rows:
        others = [name for name in row.names if name != row.model]
        if others:
            named = "`, `".join(others)
            output.note(f"the row of `{row.model}` also represents `{named}`, which gave the same answers")
    for model, names in {row.model: row.looks_like for row in board.rows if row.looks_like}.items():
        output.note(f"`{model}` looks like `{'` and `'.join(names)}`, but is a different name")
    if any(row.players_stated_by for row in board.rows):
        output.note("the other players are self-reported, so rows have at most the level `complete`")
    if any(row.stated_endings for row in board.rows):
        output.note(
            "cut short: rollouts that reached a time limit or the model's context limit (self-reported)"
        )
    if len({row.level for row in board.rows}) > 1:
        output.note("rows are ranked by level first: replayed, then rescored, then the others")


def _note_other_boards(board: Leaderboard, label: str, output: Output) -> None:
    if board.others:
        output.note(f"other boards of {label}, shown with `--board NAME`:")
        for other in board.others:
            runs = f"{other.runs} run{'' if other.runs == 1 else 's'}"
            output.note(f"  {other.board}  {runs}: {protocol_text(other)}")
    if board.boards > 1 + len(board.others):
        output.note(f"  and {board.boards - 1 - len(board.others)} more")
    for result in board.elsewhere:
        output.note(
            f"`{result.model}` has {result.reward_mean:.4f} on board {result.board.board} of "
            f"{result.version}, which cannot be compared: {result.because}"
        )
    for older in board.versions:
        best = f"best {older.best_reward:.4f} by {older.best_model}"
        runs = f"{older.runs} run{'' if older.runs == 1 else 's'}"
        output.note(f"version {older.version}, which cannot be compared: board {older.board}, {runs}, {best}")


def _show_to_people(board: Leaderboard, *, metrics: bool, stratum: int | None) -> None:
    """Print the columns that the board's owners chose, and a short form of the run IDs."""
    from wander.wire.boards import REQUIRED_COLUMNS

    columns = columns_of(board)
    after = columns.index("interval") + 1  # every board has this column
    if metrics:
        attempts = sorted({rate.k for row in board.rows for rate in row.pass_rates})
        more = [*(f"pass:{k}" for k in attempts), *metric_columns(board)]
        columns[after:after] = [name for name in more if name not in columns]
    optional = [column for column in columns if column not in REQUIRED_COLUMNS]
    if any(row.stated_endings for row in board.rows):
        columns.insert(after, "cut short")
    if stratum is not None:
        columns.insert(after, "stratum")
    if any(row.name for row in board.rows):
        columns.insert(columns.index("model") + 1, "name")
    titles = {column: title_of(board, column) for column in columns}
    if stratum is not None:
        titles["stratum"] = f"stratum {stratum}"
    shorts = short_ids([row.run_id for row in board.rows])
    rows: list[list[Cell]] = [
        [*(cell_of(row, column) for column in columns), short]
        for row, short in zip(board.rows, shorts, strict=True)
    ]
    current().output.table(
        [*titles.values(), "run"],
        rows,
        shrink=[titles[column] for column in ("model", "name", "by") if column in titles],
        drop=[titles[column] for column in reversed(optional)],
    )
