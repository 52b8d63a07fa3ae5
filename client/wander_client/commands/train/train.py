"""`wander train`: train a policy on an environment with GRPO."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from wander_client.commands.train.sft import Overrides
from wander_client.context import current
from wander_client.environments.sandbox import (
    SandboxFlag,
    SandboxLimits,
    choose_policy,
    confines,
    require_here,
)
from wander_client.errors import OK, ClientError, NotFound, UsageError
from wander_client.terminal.command import (
    Argument,
    EnvironmentArguments,
    Option,
    Typed,
    WorkerAddresses,
    WorkerTokenFile,
    refuse_options,
)
from wander_client.terminal.output import counted, shell_word

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from wander.sandbox import SandboxPolicy
    from wander.train.grpo import GRPOResult
    from wander.train.phases import Phase

    from wander_client.training.phases import PhasedCommand
    from wander_client.training.run import TrainingCommand


Tracker = Literal["tensorboard", "trackio", "wandb"]
_ANYWHERE = ("worker", "worker_token_file")
"""Options that choose where the environment runs. They do not affect the weights."""


def train(
    typed: Typed,
    environment: Annotated[str | None, Argument(help="owner/name[@version], or ./folder")] = None,
    config: Annotated[Path | None, Argument(help="TOML file with settings")] = None,
    model: Annotated[str | None, Option("-m", "--model", help="a local model, as for `wander eval`")] = None,
    steps: Annotated[int | None, Option(min=1, help="number of steps")] = None,
    setting: Overrides = None,
    argument: EnvironmentArguments = None,
    out: Annotated[Path | None, Option("-o", "--out", help="the run's folder")] = None,
    log: Annotated[list[Tracker] | None, Option(help="also log metrics to this tracker; repeatable")] = None,
    started_from: Annotated[
        str | None,
        Option("--from", metavar="RUN[@STEP]", help="start from the weights of a run or checkpoint"),
    ] = None,
    dry_run: Annotated[bool, Option("--dry-run", help="show the plan without training")] = False,
    resume: Annotated[Path | None, Option(help="resume this run; needs no other option")] = None,
    checkpoint: Annotated[
        int | None, Option(min=0, help="with --resume: continue from this step's checkpoint; 0 starts over")
    ] = None,
    allow_changes: Annotated[
        bool, Option("--allow-changes", help="with --resume: accept changed inputs and record the changes")
    ] = False,
    verify: Annotated[Path | None, Option(help="repeat the first steps of this run and compare them")] = None,
    worker: WorkerAddresses = None,
    worker_token_file: WorkerTokenFile = None,
    sandbox: SandboxFlag = None,
    sandbox_limit: SandboxLimits = None,
) -> int:
    """Train a policy on an environment with GRPO.

    \b
    wander train admin/tictactoe grpo.toml
    wander train admin/tictactoe grpo.toml --model models/ttt-sft/model --steps 50
    wander train ./my-env --model smollm2 --set algorithm.loss=cispo --log tensorboard --dry-run
    wander train admin/tictactoe harder.toml --from runs/RUN@50
    wander train admin/tictactoe grpo.toml --worker tcp://HOST:7100 --worker-token-file token
    wander train --resume runs/RUN
    wander train --verify runs/RUN --steps 5    # are its first steps reproducible, bit for bit?

    The run's folder contains the manifest, metrics.jsonl, learning curves, sample rollouts and the model.
    The first Ctrl-C finishes the current step and saves a checkpoint to resume from.
    """
    from wander_client.runs.lookup import require_same_folder
    from wander_client.training import phases as training_phases
    from wander_client.training import run as training

    here, workers = current(), (worker or [], worker_token_file)
    if environment is None and (word := verify or resume) is not None:
        (_require_alone if verify else _require_same_settings)(typed, word)
    started = _find_started(verify, resume, changes=checkpoint is not None or allow_changes)
    if started is not None and (environment is None or training_phases.read_begun(started).is_own):
        (_require_alone if verify else _require_same_settings)(typed, started)
        own = training_phases.own_command(started, "--verify" if verify else "--resume").played_at(*workers)
        return _verify(own, started, steps) if verify else _resume(own, started, checkpoint, allow_changes)
    if environment is None:
        raise UsageError("missing argument `ENVIRONMENT`", hint="run `wander train --help` for examples")
    if verify:
        refuse_options("out", because="cannot be used with `--verify`, which keeps no run")
    elif started is not None:
        require_same_folder(started, out)
    _require_startable(environment, config, None if dry_run or started else out)
    overrides = [*(setting or []), *_overrides(None if verify else steps, log or [], *workers)]
    model = training.choose_model(here, model, started_from)
    by_default = confines(here.settings, environment, elsewhere=bool(worker))
    policy = choose_policy(sandbox, sandbox_limit, default=by_default)
    asked = (here, environment, config, model, overrides, argument or [], policy)
    made = training_phases.new_command(*asked) or training.new_command(*asked)
    if steps is not None and not verify:
        _require_one_phase(made, steps)
    command = made if sandbox is False else training_phases.confine_mixture(here.settings, made)
    if sandbox or sandbox_limit or here.settings.sandbox:
        require_here(command.sandbox, training_phases.worker_addresses(command))
    if dry_run:
        return _dry_run(command.environment, _phases_of(command), command.sandbox)
    if started is not None:  # started by somebody else, so every setting comes from this command line
        if verify:
            return _verify(command, started, steps)
        return _resume(command, started, checkpoint, allow_changes)
    return _begin(command, out)


def _phases_of(command: TrainingCommand | PhasedCommand) -> Sequence[Phase]:
    from wander.train.phases import only_phase

    from wander_client.training.run import TrainingCommand

    return [only_phase(command.settings)] if isinstance(command, TrainingCommand) else command.phases


def _find_started(verify: Path | None, resume: Path | None, *, changes: bool) -> Path | None:
    """Return the folder of the run to resume or verify. `changes` is valid only with `--resume`."""
    from wander_client.runs.lookup import resumable_folder

    if verify is not None and resume is not None:
        raise UsageError("`--verify` and `--resume` cannot be used together", hint="pass only one of them")
    if resume is None and changes:
        raise UsageError("`--checkpoint` and `--allow-changes` require `--resume RUN`")
    word = verify or resume
    return None if word is None else resumable_folder(current(), word)


def _overrides(
    steps: int | None, log: list[Tracker], workers: list[str], token_file: str | None
) -> Iterator[str]:
    """Yield the settings of options that stand for one setting."""
    for name, value in (
        ("schedule.steps", steps),
        ("logging.trackers", log),
        ("environment.workers", workers),
        ("environment.worker_token_file", token_file),
    ):
        if value:
            yield f"{name}={json.dumps(value)}"


def _dry_run(environment: str, phases: Sequence[Phase], policy: SandboxPolicy | None) -> int:
    from wander_client.training.plan import show_plan

    show_plan(current(), environment, phases, policy)
    return OK


def _require_one_phase(command: TrainingCommand | PhasedCommand, steps: int) -> None:
    """Raise `UsageError` for `--steps` of a training with phases."""
    from wander_client.training.phases import PhasedCommand

    if isinstance(command, PhasedCommand):
        setting = f"phases.{command.phases[-1].name}.schedule.steps={steps}"
        raise UsageError(
            "`--steps` does not apply to a training with phases",
            hint=f"set the steps of a phase: `--set {setting}`",
        )


def _begin(command: TrainingCommand | PhasedCommand, out: Path | None) -> int:
    from wander_client.training.phases import PhasedCommand
    from wander_client.training.run import fresh_run_dir, new_run_dir

    if not isinstance(command, PhasedCommand):
        return _run(command, out or new_run_dir(current(), command), resuming=False)
    return _run_phases(command, out or fresh_run_dir(current(), command.environment, "phases"))


def _verify(command: TrainingCommand | PhasedCommand, folder: Path, steps: int | None) -> int:
    from wander_client.training.phases import PhasedCommand
    from wander_client.training.run import verify_run

    if isinstance(command, PhasedCommand):
        raise UsageError(
            f"`{folder}` has several phases, and `--verify` repeats one phase",
            hint=f"pass the folder of a phase, such as `{command.folders(folder)[-1]}`",
        )
    return verify_run(current(), folder, command, steps)


def _require_alone(typed: Typed, folder: Path) -> None:
    from wander_client.training.run import require_alone

    require_alone("`--verify`")
    if others := sorted(typed.keys() - {"verify", "steps", *_ANYWHERE}):
        raise UsageError(
            f"`--verify` uses the settings of `{folder}`", hint=f"remove these options: {', '.join(others)}"
        )


def _resume(
    command: TrainingCommand | PhasedCommand, folder: Path, checkpoint: int | None, allow_changes: bool
) -> int:
    from wander_client.training import run as training

    if isinstance(command, training.TrainingCommand):
        if checkpoint is None:
            training.require_unfinished(folder)
        return _run(command, folder, resuming=True, checkpoint=checkpoint, allow_changes=allow_changes)
    if checkpoint is not None or allow_changes:
        raise UsageError(
            f"`{folder}` has several phases, and `--checkpoint` and `--allow-changes` apply to one phase",
            hint=f"pass the folder of a phase, such as `{command.folders(folder)[-1]}`",
        )
    return _run_phases(command, folder, resuming=True)


def _run_phases(command: PhasedCommand, folder: Path, *, resuming: bool = False) -> int:
    from wander_client.training.phases import PhasedRun, summary_rows
    from wander_client.training.text import has_collapsed

    run = PhasedRun(current(), command, folder)
    if resuming:
        command.write(folder)
    else:
        run.begin()
    results = run.run()
    output = current().output
    columns = ["phase", "kind", "steps", "ended", "best"]
    data = {"run_dir": str(folder), "model": str(run.model) if run.model else None, "phases": results}
    output.answer(data, lambda: output.table(columns, summary_rows(results)))
    if run.model is not None and not has_collapsed(run.last_folder):
        output.next(
            f"wander eval {shell_word(command.environment)} -m {shell_word(run.model)}",
            f"wander post {shell_word(run.last_folder)}",
        )
    return OK


def _require_same_settings(typed: Typed, resume: Path) -> None:
    free = {"resume", "checkpoint", "allow_changes", *_ANYWHERE}
    others = sorted(typed.keys() - free)
    if others:
        raise UsageError(
            f"cannot change {', '.join(f'`{name}`' for name in others)} of a resumed run",
            hint=f"run `wander train --resume {resume}` without other options, or start a new run without "
            "`--resume`",
            code="other_settings",
        )


def _require_startable(environment: str, config: Path | None, out: Path | None) -> None:
    """Check what can be checked before the trainer is imported, which takes long."""
    from wander.evals.store.folder import MANIFEST
    from wander.train.distributed import is_launched

    if config is not None and not config.is_file():
        raise NotFound(
            f"there is no settings file `{config}`",
            hint=f"check the path; `wander train {environment} --dry-run` prints all settings",
        )
    # If several processes were launched, the first one may have created the folder by now.
    if out is not None and not is_launched() and (out / MANIFEST).exists():
        raise ClientError(
            f"`{out}` already contains a run",
            hint=f"choose another folder, or resume this run: `wander train --resume {out}`",
            code="run_exists",
        )


def _run(
    command: TrainingCommand,
    folder: Path,
    *,
    resuming: bool,
    checkpoint: int | None = None,
    allow_changes: bool = False,
) -> int:
    from wander_client.training.run import train_and_report

    done = train_and_report(
        current(), command, folder, resume=resuming, checkpoint=checkpoint, allow_changes=allow_changes
    )
    if done is not None:
        _report(done.result, done.folder, done.plots, command.environment)
    return OK


def _report(result: GRPOResult, folder: Path, plots: list[Path], environment: str) -> None:
    from wander_client.training.text import describe_reward, has_collapsed

    output = current().output
    data: dict[str, Any] = {
        "run_dir": str(folder),
        "model": str(result.model),
        "steps": result.steps,
        "rollouts": result.rollouts,
        "first_reward": result.first_reward,
        "final_reward": result.final_reward,
        "averaged_steps": result.averaged_steps,
        "seconds": result.seconds,
        "plots": [str(plot) for plot in plots],
        "stopped": result.stopped.model_dump(mode="json") if result.stopped else None,
        "best": result.best.model_dump(mode="json") if result.best else None,
    }
    if result.stopped is not None:
        output.note(f"stopped after step {result.stopped.step}: {result.stopped.reason}")
    if result.best is not None and result.best.step == 0:
        output.warn(
            f"no evaluation was better than the one before training: `{folder / 'best'}` contains the "
            "initial weights"
        )
    elif result.best is not None:
        best = result.best
        output.note(f"best: {best.metric} {best.value:.4g} after step {best.step}, in {folder / 'best'}")
    output.answer(
        data,
        f"{result.model}: {describe_reward(result)}, {counted(result.steps, 'step')}, "
        f"{counted(result.rollouts, 'rollout')}, {result.seconds:.0f} s",
    )
    if not has_collapsed(folder):
        output.next(
            f"wander eval {shell_word(environment)} -m {shell_word(result.model)}",
            f"wander post {shell_word(folder)}",
        )
