"""`wander data`: turn rollouts into rows that a model can be fine-tuned on."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from wander_client.command import command_app
from wander_client.errors import FAILED
from wander_client.invocation import current

app = command_app()


@app.command()
def data(
    runs: Annotated[list[str], typer.Argument(help="folders or ids of runs")],
    out: Annotated[Path, typer.Option("-o", "--out", help="the file of rows")],
    min_reward: Annotated[float | None, typer.Option(help="drop rollouts with less")] = None,
    where: Annotated[
        list[str] | None, typer.Option(help="a condition on a metric, like `lost==0`; may repeat")
    ] = None,
    keep_repeats: Annotated[bool, typer.Option(help="keep conversations that occur twice")] = False,
) -> int | None:
    """Turn the rollouts of runs into training rows, and say what was dropped and why.

    \b
    wander data runs/RUN --min-reward 0.5 --out rows.jsonl
    wander data runs/RUN --where lost==0 --where format==1 --out rows.jsonl
    """
    from wander.train.data import Condition, select_rows, write_rows

    from wander_client.runs import run_folder

    output = current().output
    conditions = [Condition.parse(text) for text in where or []]
    folders = [run_folder(run) for run in runs]
    rows, report = select_rows(
        (rollout for folder in folders for rollout in folder.rollouts()),
        min_reward=min_reward,
        conditions=conditions,
        keep_repeats=keep_repeats,
    )
    for reason, count in sorted(report.dropped.items()):
        output.note(f"dropped {count}: {reason}")
    if not rows:
        output.warn(f"nothing is left of {report.rollouts} rollouts; `{out}` was not written")
        return FAILED
    write_rows(rows, out)
    output.answer(
        {"out": str(out), **report.as_dict()}, f"{out}: {report.kept} of {report.rollouts} rollouts"
    )
    output.next(f"wander sft {out} --model MODEL --out models/NAME")
    return None
