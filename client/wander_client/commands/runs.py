"""`wander runs`: list the runs of this machine."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from wander_client.command import command_app
from wander_client.errors import NotFound
from wander_client.invocation import current

if TYPE_CHECKING:
    from wander_client.output import Cell

app = command_app()


@app.command()
def runs(
    folder: Annotated[Path | None, typer.Argument(help="another folder of runs")] = None,
) -> None:
    """List the runs of this machine, the newest first.

    \b
    wander runs
    wander runs --json
    """
    from wander_client.runs import local_runs, short_ids

    here = current()
    if folder is not None and not folder.is_dir():
        raise NotFound(f"there is no folder `{folder}`", hint="`wander runs` lists those of this folder")
    place = folder or here.settings.runs_dir
    data = []
    rows: list[list[Cell]] = []
    for run in local_runs(place):
        manifest, summary = run.manifest, run.summary()
        environment = manifest.environment
        name = f"{environment.owner}/{environment.name}" if environment.owner else environment.name
        mean = summary.reward_mean if summary else None
        done = summary.rollouts if summary else len(run.keys_done())
        data.append(
            {
                "run_dir": str(run.path),
                "run_id": manifest.run_id,
                "kind": manifest.kind,
                "environment": name,
                "version": environment.version,
                "model": manifest.model.name,
                "rollouts": done,
                "expected": manifest.expected_rollouts,
                "reward_mean": mean,
                "started_at": manifest.started_at,
                "ended_at": manifest.ended_at,
            }
        )
        count = f"{done}/{manifest.expected_rollouts}"
        rows.append(
            [
                manifest.run_id,
                f"{manifest.started_at:%Y-%m-%d %H:%M}",
                name,
                manifest.model.name,
                count,
                mean,
                str(run.path),
            ]
        )
    if not rows and here.output.human:
        here.output.note(f"there is no run in `{place}`")
        here.output.next("wander eval OWNER/NAME -m MODEL")
        return
    columns = ["run", "started", "environment", "model", "rollouts", "reward", "folder"]
    if here.output.human:
        for row, short in zip(rows, short_ids([str(one["run_id"]) for one in data]), strict=True):
            row[0] = short
    drop = ["folder", "started"]
    here.output.answer(data, lambda: here.output.table(columns, rows, shrink=["model"], drop=drop))
    here.output.next(f"wander view {rows[0][0]}")
