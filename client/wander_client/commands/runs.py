"""`wander runs`: list the runs of this machine or of the hub."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from wander_client.command import command_app
from wander_client.errors import NotFound, UsageError
from wander_client.invocation import current

if TYPE_CHECKING:
    from wander_client.output import Cell

app = command_app(
    help="""List, show, compare and export runs.

    Without a word it lists: `wander runs` is `wander runs list`.""",
    default="list",
)


@app.command("list")
def list_runs(
    folder: Annotated[Path | None, typer.Argument(help="another folder of runs")] = None,
    environment: Annotated[
        str | None, typer.Option("--environment", "-e", help="owner/name, a name, or a pattern: `acme/*`")
    ] = None,
    model: Annotated[str | None, typer.Option("--model", "-m", help="part of its name, or a pattern")] = None,
    since: Annotated[str | None, typer.Option(help="7d, 36h, 2w, or a day: 2026-01-31")] = None,
    posted: Annotated[bool, typer.Option("--posted", help="runs on the hub instead")] = False,
    level: Annotated[
        list[str] | None, typer.Option(help="of this verification level, on the hub; may be repeated")
    ] = None,
    sort: Annotated[
        str, typer.Option(help="started, reward, model, environment, rollouts; -reward: highest first")
    ] = "-started",
    limit: Annotated[int | None, typer.Option(min=1, help="rows of the list")] = None,
) -> None:
    """List runs of this machine, or with `--posted` of the hub, the newest first.

    \b
    wander runs
    wander runs -e acme/wordle -m smollm2 --since 7d --sort -reward
    wander runs --posted --level replayed --json
    """
    from itertools import islice

    from wander_client.run_listing import (
        SORTED_BY,
        RunFilter,
        checked_level,
        local_rows,
        moment,
        posted_rows,
        run_sorted,
    )

    here = current()
    posted = posted or bool(level)
    if folder is not None and posted:
        raise UsageError("a folder holds no posted runs", hint="leave the folder or `--posted` out")
    if folder is not None and not folder.is_dir():
        raise NotFound(f"there is no folder `{folder}`", hint="`wander runs` lists those of this folder")
    wanted = RunFilter(
        environment, model, moment(since) if since else None, frozenset(map(checked_level, level or []))
    )
    if sort.removeprefix("-") not in SORTED_BY:
        run_sorted([], sort)  # says so before anything is read
    place = folder or here.settings.runs_dir
    rows = (row for row in (posted_rows(environment) if posted else local_rows(place)) if wanted.takes(row))
    data = list(islice(rows, limit)) if sort == "-started" else run_sorted(list(rows), sort)[:limit]
    if not data and here.output.human:
        here.output.note("no run on the hub is like that" if posted else f"there is no run in `{place}`")
        if wanted == RunFilter():
            here.output.next("wander eval OWNER/NAME -m MODEL")
        return
    here.output.answer(data, lambda: _show_list(data, posted))
    if data:
        here.output.next(f"wander view {data[0]['run_id']}")


def _show_list(data: list[dict[str, Any]], posted: bool) -> None:
    from wander_client.runs import short_ids

    output = current().output
    shown = [str(row["run_id"]) for row in data]
    ids = short_ids(shown) if output.human else shown
    last = "level" if posted else "run_dir"
    rows: list[list[Cell]] = [
        [
            run_id,
            f"{row['started_at']:%Y-%m-%d %H:%M}",
            row["environment"],
            row["model"],
            f"{row['rollouts']}/{row['expected']}",
            row["reward_mean"],
            row[last],
        ]
        for run_id, row in zip(ids, data, strict=True)
    ]
    columns = [
        "run",
        "started",
        "environment",
        "model",
        "rollouts",
        "reward",
        "level" if posted else "folder",
    ]
    drop = ["started"] if posted else ["folder", "started"]
    output.table(columns, rows, shrink=["model"], drop=drop)
