"""`wander runs merge`: merge the shards of a run or of a suite."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from wander_client.context import current
from wander_client.errors import OK, PARTIAL
from wander_client.terminal.command import Argument, Option
from wander_client.terminal.output import shell_word

if TYPE_CHECKING:
    from wander_client.terminal.output import Cell


def merge(
    folders: Annotated[list[Path], Argument(help="folders of all shards, in any order")],
    out: Annotated[Path, Option("--out", help="folder of the merged run or suite")],
) -> int:
    """Merge the shards of a run or of a suite, in the order of the manifest.

    \b
    wander eval acme/wordle -m NAME --set shard=0/2 --out parts/0
    wander eval acme/wordle -m NAME --set shard=1/2 --out parts/1
    wander runs merge parts/0 parts/1 --out runs/wordle

    Pass every shard exactly once. All shards must be complete and have the same settings, or else nothing is
    written. The merged run contains the rollouts of the shards, byte for byte, and has the same results as a
    run without shards. Exit status 6 means that some rollouts failed.
    """
    from wander_client.runs.text import show_summary
    from wander_client.suites.merge import merge as merge_folders

    output = current().output
    merged = merge_folders(folders, out)
    data = {
        "out": str(out),
        "runs": [
            {
                "name": run.name,
                "run_id": run.manifest.run_id,
                "run_dir": str(run.run_dir),
                "summary": run.summary.model_dump(mode="json"),
            }
            for run in merged
        ],
    }

    def show() -> None:
        if (out / "run.json").exists():
            show_summary(merged[0].summary, output, merged[0].manifest)
            return
        rows: list[list[Cell]] = [
            [
                run.name,
                run.summary.rollouts,
                run.summary.reward_mean,
                run.summary.failed,
                run.run_dir.name,
            ]
            for run in merged
        ]
        output.table(["evaluation", "rollouts", "reward", "failed", "run"], rows, shrink=["evaluation"])

    output.answer(data, show)
    output.next(f"wander view {shell_word(merged[0].run_dir)}")
    return PARTIAL if any(run.summary.failed for run in merged) else OK
