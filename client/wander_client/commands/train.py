"""`wander train`: improve a policy by GRPO on an environment."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from wander_client.command import command_app, typed_options
from wander_client.errors import OK, Interrupted, UsageError
from wander_client.invocation import current
from wander_client.sandboxing import SandboxFlag, SandboxLimits, chosen_policy

if TYPE_CHECKING:
    from wander.train.grpo import GRPOResult

    from wander_client.training import TrainingCommand

app = command_app()


@app.command()
def train(
    context: typer.Context,
    environment: Annotated[str | None, typer.Argument(help="owner/name[@version], or ./folder")] = None,
    config: Annotated[Path | None, typer.Argument(help="settings, TOML")] = None,
    model: Annotated[str | None, typer.Option("-m", "--model", help="smollm2, or a folder")] = None,
    steps: Annotated[int | None, typer.Option(min=1)] = None,
    setting: Annotated[
        list[str] | None, typer.Option("--set", help="section.field=value; may repeat")
    ] = None,
    argument: Annotated[list[str] | None, typer.Option("-a", "--arg", help="environment: KEY=VALUE")] = None,
    out: Annotated[Path | None, typer.Option("-o", "--out", help="the run's folder")] = None,
    log: Annotated[
        list[str] | None, typer.Option(help="tensorboard, trackio or wandb, beside metrics.jsonl; may repeat")
    ] = None,
    resume: Annotated[Path | None, typer.Option(help="go on with this run; needs nothing else")] = None,
    checkpoint: Annotated[
        int | None, typer.Option(min=0, help="with --resume: from this step's checkpoint; 0 begins again")
    ] = None,
    allow_changes: Annotated[
        bool, typer.Option("--allow-changes", help="with --resume: whatever changed, which is recorded")
    ] = False,
    verify: Annotated[
        Path | None, typer.Option(help="train the first --steps of this run again, and compare")
    ] = None,
    sandbox: SandboxFlag = None,
    sandbox_limit: SandboxLimits = None,
) -> int:
    """Improve a policy by GRPO on an environment.

    \b
    wander train wander/tictactoe grpo.toml
    wander train wander/tictactoe grpo.toml --model models/ttt-sft/model --steps 50
    wander train ./my-env --model smollm2 --set algorithm.loss=cispo --log tensorboard
    wander train --resume runs/RUN
    wander train --verify runs/RUN --steps 5    # do its first steps come out the same, bit for bit?

    The run's folder holds the manifest, metrics.jsonl, learning curves, sample rollouts and the model.
    The first Ctrl-C finishes the step and keeps a checkpoint to resume from.
    """
    from wander_client import training
    from wander_client.runs import resumable_folder

    if verify is not None:
        _alone(context, "--verify", {"verify", "steps"})
        from wander_client.training_verification import verify_run

        return verify_run(resumable_folder(verify), steps)
    if resume is not None:
        others = sorted(typed_options(context).keys() - {"resume", "checkpoint", "allow_changes"})
        if others:
            raise UsageError(
                f"a run goes on with the settings it was begun with: {', '.join(others)} cannot change",
                hint=f"go on with `wander train --resume {resume}` alone, or leave `--resume` out",
                code="other_settings",
            )
        folder = resumable_folder(resume)
        return _run(
            training.stored_command(folder),
            folder,
            resuming=True,
            checkpoint=checkpoint,
            allow_changes=allow_changes,
        )
    if checkpoint is not None or allow_changes:
        raise UsageError("`--checkpoint` and `--allow-changes` go with `--resume RUN`")
    if environment is None:
        raise UsageError("the environment is missing", hint="run `wander train --help` for examples")
    overrides = [*(setting or []), *([f"schedule.steps={steps}"] if steps else [])]
    overrides += [f"logging.trackers={json.dumps(log)}"] if log else []
    policy = chosen_policy(sandbox, sandbox_limit)
    command = training.new_command(environment, config, model, overrides, argument or [], policy)
    return _run(command, out or training.new_run_dir(command), resuming=False)


def _alone(context: typer.Context, option: str, allowed: set[str]) -> None:
    others = sorted(typed_options(context).keys() - allowed)
    if others:
        raise UsageError(f"`{option}` takes the run's settings: leave {', '.join(others)} out")


def _run(
    command: TrainingCommand,
    folder: Path,
    *,
    resuming: bool,
    checkpoint: int | None = None,
    allow_changes: bool = False,
) -> int:
    from wander_client import training
    from wander_client.launched import agreed_folder, is_beside_main
    from wander_client.training_panel import training_display

    output = current().output
    settings = command.settings
    folder = agreed_folder(folder, settings)
    output.note(
        f"training {settings.model.path} on {command.environment}: {settings.schedule.steps} steps of "
        f"{settings.batch.groups} examples x {settings.batch.group_size} rollouts\nsaving to {folder}"
    )
    with training_display(f"training on {command.label}", folder, output) as display:
        result = training.run_training(
            command,
            folder,
            display.show,
            resume=resuming,
            checkpoint=checkpoint,
            allow_changes=allow_changes,
        )
    if is_beside_main():
        return OK
    if result.interrupted:
        raise Interrupted(
            f"interrupted after step {result.steps}; a checkpoint and the model so far are in `{folder}`",
            hint=f"go on with `wander train --resume {folder}`",
        )
    _report(result, folder, training.draw_curves(folder, command))
    return OK


def _report(result: GRPOResult, folder: Path, plots: list[Path]) -> None:
    output = current().output
    data: dict[str, Any] = {
        "run_dir": str(folder),
        "model": str(result.model),
        "steps": result.steps,
        "rollouts": result.rollouts,
        "first_reward": result.first_reward,
        "final_reward": result.final_reward,
        "seconds": result.seconds,
        "plots": [str(plot) for plot in plots],
    }
    output.answer(
        data,
        f"{result.model}: reward {result.first_reward:.3f} -> {result.final_reward:.3f}, "
        f"{result.steps} steps, {result.rollouts} rollouts, {result.seconds:.0f} s",
    )
    output.next(f"wander eval ENVIRONMENT -m {result.model}", f"wander post {folder}")
