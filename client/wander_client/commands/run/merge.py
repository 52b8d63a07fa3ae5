"""`wander runs merge`: one run, or suite, of the shards in which it was played."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from wander_client.context import current
from wander_client.errors import OK, PARTIAL
from wander_client.terminal.command import Argument, Option

if TYPE_CHECKING:
    from wander_client.terminal.output import Cell


def merge(
    folders: Annotated[list[Path], Argument(help="the folders of all shards, in any order")],
    out: Annotated[Path, Option("--out", help="the folder of the run, or the suite, that they make")],
) -> int:
    """Make one run of its shards, or one suite of its shards, in the manifest's order.

    \b
    wander eval acme/wordle -m NAME --shard 0/2 --out parts/0
    wander eval acme/wordle -m NAME --shard 1/2 --out parts/1
    wander runs merge parts/0 parts/1 --out runs/wordle

    Every shard must be there once, played to its end, and pin the same; else nothing is written. The run has
    the lines of its shards, byte for byte, and the numbers of a run that was played at once. Exit status 6
    means that rollouts in it failed.
    """
    from wander_client.runs.text import show_summary
    from wander_client.suites.merge import merge as merge_folders

    output = current().output
    merged = merge_folders(folders, out)
    data = {
        "out": str(out),
        "runs": [
            {
                "name": each.name,
                "run_id": each.manifest.run_id,
                "run_dir": str(each.run_dir),
                "summary": each.summary.model_dump(mode="json"),
            }
            for each in merged
        ],
    }

    def show() -> None:
        if (out / "run.json").exists():
            show_summary(merged[0].summary, output, merged[0].manifest)
            return
        rows: list[list[Cell]] = [
            [
                each.name,
                each.summary.rollouts,
                each.summary.reward_mean,
                each.summary.failed,
                each.run_dir.name,
            ]
            for each in merged
        ]
        output.table(["evaluation", "rollouts", "reward", "failed", "run"], rows, shrink=["evaluation"])

    output.answer(data, show)
    output.next(f"wander view {merged[0].run_dir}")
    return PARTIAL if any(each.summary.failed for each in merged) else OK
