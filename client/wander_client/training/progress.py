"""Train, and tell how it goes: what begins, the steps, and in the end whether it learnt."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from wander.train.distributed import is_beside_main

from wander_client.errors import Interrupted, name_option
from wander_client.terminal.output import counted
from wander_client.training.panel import open_display
from wander_client.training.run import (
    TrainingCommand,
    agree_on_folder,
    draw_curves,
    require_not_collapsed,
    run_training,
    warn_of_small_batch,
)

if TYPE_CHECKING:
    from wander.train.grpo import GRPOResult

    from wander_client.context import Invocation


@dataclass(frozen=True)
class Trained:
    """A run that came to its end."""

    result: GRPOResult
    folder: Path
    plots: list[Path]


def train_and_tell(
    context: Invocation,
    command: TrainingCommand,
    folder: Path,
    *,
    resume: bool,
    checkpoint: int | None = None,
    allow_changes: bool = False,
) -> Trained | None:
    """Train into a folder; None in the processes of a run that only help the first one.

    Raises `Interrupted` with what was kept, `ClientError` where learning collapsed.
    """
    output, settings = context.output, command.settings
    folder = agree_on_folder(folder, settings)
    output.note(
        f"training {settings.model.path} on {command.environment}: "
        f"{counted(settings.schedule.steps, 'step')} of "
        f"{settings.batch.groups} examples x {settings.batch.group_size} rollouts\nsaving to {folder}"
    )
    if not (resume or is_beside_main()):
        warn_of_small_batch(settings, output)
    with open_display(f"training on {command.label}", folder, output) as display:
        result = run_training(
            context,
            command,
            folder,
            display.show,
            resume=resume,
            checkpoint=checkpoint,
            allow_changes=allow_changes,
            played=display.played,
        )
    if is_beside_main():
        return None
    if result.interrupted:
        reached = "before the end of the first step"
        if result.steps:
            reached = f"after step {result.steps}; a checkpoint and the model so far are in `{folder}`"
        go_on = name_option("resume", str(folder), command="wander train")
        raise Interrupted(f"interrupted {reached}", hint="continue with " + go_on)
    plots = draw_curves(folder, command, output)
    require_not_collapsed(result.stopped, folder)
    return Trained(result, folder, plots)
