"""`wander runs plot`: the curves of training runs, drawn on the same axes."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

import typer

from wander_client.context import current
from wander_client.errors import UsageError

if TYPE_CHECKING:
    from wander.train.watch.plots import Across

ACROSS = ("step", "rollouts", "hours")


def plot(
    runs: Annotated[list[str], typer.Argument(help="folders or ids of training runs, or NAME=RUN")],
    out: Annotated[
        list[Path] | None, typer.Option("-o", "--out", help="a file: .svg, .png, .html, .json; may repeat")
    ] = None,
    metric: Annotated[
        list[str] | None, typer.Option(help="draw this metric alone, such as `rewards/won`; may repeat")
    ] = None,
    across: Annotated[str, typer.Option("-x", help="step, rollouts or hours")] = "step",
) -> None:
    """Draw the curves of training runs: one in detail, or several on the same axes.

    \b
    wander runs plot runs/RUN
    wander runs plot small=runs/A large=runs/B -o comparison.html
    wander runs plot runs/A runs/B --metric reward --metric entropy -x rollouts -o two.png
    """
    from wander.train.watch.plots import draw_runs, read_plotted

    from wander_client.runs.lookup import run_folder

    output = current().output
    if across not in ACROSS:
        raise UsageError(f"`-x {across}` is unknown", hint=f"use one of {', '.join(ACROSS)}")
    plotted, folders = [], []
    for word in runs:
        name, named, place = word.partition("=")
        folder = run_folder(current(), place if named else word).path
        folders.append(folder)
        plotted.append(read_plotted(folder, name if named else None))
    names = [one.name for one in plotted]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise UsageError(f"two runs are called `{twice[0]}`", hint="name them: `first=RUN second=RUN`")
    files = out or [folders[0] / "learning_curve.svg" if len(runs) == 1 else Path("comparison.svg")]
    title = f"training run {names[0]}" if len(names) == 1 else f"{len(names)} training runs"
    drawn = draw_runs(plotted, files, title=title, across=cast("Across", across), metrics=metric or [])
    if not drawn:
        output.note("there is nothing to draw yet: a curve needs two steps")
    output.answer(
        {"runs": names, "plots": [str(file) for file in drawn]},
        "\n".join(str(file) for file in drawn) if drawn else None,
    )
