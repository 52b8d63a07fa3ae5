"""Run a training from the command line's settings, resume it, or repeat its first steps."""

from __future__ import annotations

import contextlib
import functools
import json
import math
import os
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeVar

from wander.sandbox import SandboxPolicy
from wander.train.config import GRPOSettings, PolicySettings
from wander.train.distributed import current_world, is_launched, is_secondary_process
from wander.train.phases import RolloutsSettings
from wander.train.settings.sections import EARLIER, FROZEN, SCRIPTED, SELF
from wander.train.settings.toml_file import read_settings
from wander.types import Record
from wander.wire.postings import file_digest
from wander.wire.source_tree import TreeEntry, tree_digest

from wander_client.environments.location import locate, parse_arguments
from wander_client.environments.opening import OpenedEnvironment, open_environment
from wander_client.environments.replay import locate_started
from wander_client.environments.workers import WorkerChoice, absolute_path, expand_addresses
from wander_client.errors import (
    FAILED,
    OK,
    PARTIAL,
    ClientError,
    Interrupted,
    NotFound,
    UsageError,
    name_option,
)
from wander_client.models.reference import (
    HF_SCHEME,
    HUB_SCHEME,
    NAMED,
    is_local_model,
    local_path,
    require_no_typo,
)
from wander_client.models.server import ServeChoice, serve
from wander_client.names import looks_like_path
from wander_client.runs.lookup import resumable_folder
from wander_client.runs.own_records import COMMAND_FILE, restore_if_refused, write_command
from wander_client.terminal.output import counted
from wander_client.training.progress import TrainingProgress
from wander_client.training.text import repeat_alerts

if TYPE_CHECKING:
    from wander.handle import EnvironmentHandle
    from wander.train.config import InferenceSection
    from wander.train.grpo import GRPOResult
    from wander.train.records.files import Stopped
    from wander.train.rollouts.environments import EnvironmentChoice
    from wander.train.settings.sections import TeacherSection
    from wander.train.verify import TrainingVerification
    from wander.wire import EnvironmentPin

    from wander_client.context import Invocation
    from wander_client.terminal.output import Output

Settings = TypeVar("Settings", bound=PolicySettings)
PlayedSettings = TypeVar("PlayedSettings", GRPOSettings, RolloutsSettings)


def require_alone(what: str) -> None:
    """Raise `UsageError` if several processes were launched for something that runs in a single process."""
    if is_launched():
        raise UsageError(
            f"{what} needs a single process",
            hint="run it without `torchrun` or `accelerate launch`; several processes share a run of GRPO "
            "or `wander model sft`",
        )


class RunCommand(Record):
    """The settings of `wander train`."""

    environment: str
    """`owner/name@version`, or the absolute path of a folder."""
    label: str
    """Short name of the environment for folders and titles."""
    sandbox: SandboxPolicy | None = None
    """Limits of the environment's sandbox; None means no sandbox."""

    def write(self, folder: Path) -> None:
        """Save the settings in a run's folder, signed."""
        folder.mkdir(parents=True, exist_ok=True)
        write_command(folder / COMMAND_FILE, self)

    def asks(self) -> Iterator[str]:
        """Yield the settings, one per line, without defaults."""
        yield f"environment={self.environment}"
        yield from flatten(
            self.model_dump(mode="json", include={"settings", "phases"}, exclude_defaults=True)
        )


def flatten(value: Any, name: str = "") -> Iterator[str]:
    """Yield settings by their dotted names, one per line."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from flatten(inner, f"{name}.{key}" if name else key)
    elif isinstance(value, list) and any(isinstance(item, dict) for item in value):
        for number, inner in enumerate(value, start=1):
            yield from flatten(inner, f"{name}[{number}]")
    else:
        yield f"{name}={json.dumps(value)}"


class TrainingCommand(RunCommand):
    """The settings of a GRPO run that has only one phase."""

    settings: GRPOSettings

    def played_at(self, addresses: Sequence[str], token_file: str | None) -> TrainingCommand:
        """Return the same run with its environment at these addresses."""
        return self.model_copy(update={"settings": with_workers(self.settings, addresses, token_file)})


def new_command(
    context: Invocation,
    environment: str,
    config: Path | None,
    model: str | None,
    overrides: Sequence[str],
    arguments: Sequence[str],
    sandbox: SandboxPolicy | None = None,
    sections: Mapping[str, Mapping[str, Any]] = MappingProxyType({}),
) -> TrainingCommand:
    """Resolve the settings: an exact version of the environment, and the full path of the model.

    `sections` are settings from Python, which override those of the file.
    """
    given = with_path(sections, model)
    settings = read_settings(GRPOSettings, config, overrides, **given)
    merged = {**settings.environment.arguments, **parse_arguments(list(arguments), None)}
    section = settings.environment.model_copy(update={"arguments": merged})
    if settings.environments and arguments:
        raise UsageError(
            "each of `[[environments]]` has its own arguments", hint="set them there instead of with `--arg`"
        )
    settings = settings.model_copy(update={"environment": section})
    settings = with_models(name_exactly(context, settings), model_path)
    settings = with_workers(settings, [], None)
    location = locate(context, environment)
    return TrainingCommand(
        environment=location.exact_name, label=location.label, settings=settings, sandbox=sandbox
    )


def with_path(sections: Mapping[str, Mapping[str, Any]], model: str | None) -> dict[str, Mapping[str, Any]]:
    """Return sections of settings with the path of the model that was chosen separately."""
    return {**sections, "model": {**sections.get("model", {}), "path": model}} if model else {**sections}


def name_exactly(context: Invocation, settings: GRPOSettings) -> GRPOSettings:
    """Return settings with exact versions of mixed environments and absolute paths of players' models."""
    mixed = [
        section.model_copy(update={"name": locate(context, section.name).exact_name})
        if section.name
        else section
        for section in settings.environments
    ]
    players = {
        name: player.model_copy(update={"model": player_path(player.model)})
        for name, player in settings.players.items()
    }
    cells = [
        cell.model_copy(
            update={"players": {name: player_path(model) for name, model in cell.players.items()}}
        )
        for cell in settings.evaluation.cells
    ]
    evaluation = settings.evaluation.model_copy(update={"cells": cells})
    return settings.model_copy(update={"environments": mixed, "players": players, "evaluation": evaluation})


def player_path(model: str) -> str:
    """Return the model of another player with an absolute path."""
    if model in (SELF, FROZEN, EARLIER) or model.startswith(SCRIPTED):
        return model
    if is_local_model(model):
        return local_path(model)
    raise UsageError(
        f"`{model}` is neither a player in training nor a model on this machine",
        hint=f"use `{SELF}`, `{FROZEN}`, `{EARLIER}`, `scripted:MODULE:FUNCTION`, or a checkpoint: "
        "`./FOLDER`, `hub:OWNER/NAME`, `hf:NAME`",
    )


def with_models(settings: Settings, find: Callable[[str], str]) -> Settings:
    """Return settings with the paths of the model and the teacher replaced by the result of a function."""
    update: dict[str, Any] = {"model": settings.model.model_copy(update={"path": find(settings.model.path)})}
    teacher: TeacherSection | None = getattr(settings, "teacher", None)
    if teacher is not None and teacher.path is not None:
        update["teacher"] = teacher.model_copy(update={"path": find(teacher.path)})
    return settings.model_copy(update=update)


def with_workers(
    settings: PlayedSettings, addresses: Sequence[str], token_file: str | None
) -> PlayedSettings:
    """Return settings with the environment's workers at these addresses. Empty values change nothing.

    The path of the token file becomes absolute.
    """
    workers = addresses or settings.environment.workers
    update: dict[str, Any] = {} if isinstance(workers, int) else {"workers": expand_addresses(workers)}
    if token_file := token_file or settings.environment.worker_token_file:
        update["worker_token_file"] = absolute_path(token_file)
    section = settings.environment.model_copy(update=update)
    return settings.model_copy(update={"environment": section})


def new_run_dir(context: Invocation, command: TrainingCommand) -> Path:
    """Return a new folder in the runs folder, named after the environment and the model."""
    from wander.models.loading import model_name

    name = command.settings.model.path
    shown = model_name(Path(name)) if Path(name).is_dir() else name
    return fresh_run_dir(context, command.environment, f"grpo-{shown}")


def fresh_run_dir(context: Invocation, environment: str, what: str) -> Path:
    """Return a new folder in the runs folder, named after the environment and the kind of training."""
    from wander_client.evaluate.evaluation import new_run_dir

    return new_run_dir(context.settings.runs_dir, locate(context, environment), what)


def model_path(name: str) -> str:
    """Return a model's name with an absolute path."""
    if name.startswith(HUB_SCHEME) or looks_like_path(name) or Path(name).is_dir() or name.count("/") > 1:
        return local_path(name)
    require_no_typo(name)
    if "/" not in name and not name.startswith(HF_SCHEME) and name.lower() not in NAMED:
        raise NotFound(
            f"`{name}` is neither a folder nor the name of a model on this machine",
            hint=f"list your models with `wander model list`, use `hf:{name}` for Hugging Face, or "
            f"create a tiny model with `wander model new tiny --transcripts RUN --out {name}`",
            code="model_not_found",
        )
    return name.removeprefix(HF_SCHEME)


def choose_model(context: Invocation, model: str | None, started_from: str | None) -> str | None:
    """Return the model of `--model` or `--from`. Raises `UsageError` if both are given.

    `--from RUN@STEP` means the weights of a checkpoint, `RUN@last` the final weights, and `RUN` the best
    weights if the run kept them.
    """
    from wander.train.phases import find_phase_model

    if started_from is None:
        return model
    if model is not None:
        raise UsageError("`--from` and `--model` both name the weights to start from: pass only one")
    name, _, step = started_from.rpartition("@") if "@" in started_from else (started_from, "", "")
    folder = resumable_folder(context, Path(name))
    if step and step != "last":
        place = folder / "checkpoints" / f"checkpoint-{step}"
    else:
        place = folder / "model" if step else find_phase_model(folder)
    if place.is_dir():
        return str(place.resolve())
    numbers = (path.name.rpartition("-")[2] for path in (folder / "checkpoints").glob("checkpoint-*"))
    steps = sorted(int(number) for number in numbers if number.isdecimal())
    names = [str(step) for step in steps] + (["last"] if (folder / "model").is_dir() else [])
    raise NotFound(
        f"`{folder}` has no checkpoint `{step}`" if step else f"`{folder}` has no model",
        hint=f"it has {', '.join(f'`{folder}@{known}`' for known in names)}"
        if names
        else "runs save checkpoints with `--set output.checkpoint_every=10`",
        code="no_checkpoint",
    )


def require_not_collapsed(stopped: Stopped | None, folder: Path) -> None:
    """Raise `ClientError` if a run stopped because learning collapsed."""
    if stopped is not None and stopped.collapsed:
        raise ClientError(
            f"stopped after step {stopped.step}: {stopped.reason}",
            hint=f"metrics and model are in `{folder}`; a smaller learning rate or more rollouts may help",
            code="collapsed",
        )


ENOUGH_ROLLOUTS = 256
"""Rollouts per step that were enough: runs on games collapsed with 64, and did not with 256."""


def warn_of_small_batch(settings: GRPOSettings, output: Output, where: str = "") -> None:
    """Warn about steps that are too small to learn from. `where` is a prefix of the setting to change."""
    rollouts, needed = settings.batch.rollouts, ENOUGH_ROLLOUTS
    if rollouts < needed:
        size = settings.batch.group_size
        output.warn(
            f"{rollouts} rollouts per step are few: runs on games with fewer than {needed} collapsed; "
            f"`--set {where}batch.rollouts={math.ceil(needed / size) * size}` needs no more memory "
            "(`batch.rows_at_once` limits it)"
        )


def require_unfinished(folder: Path) -> None:
    """Raise `UsageError` if a run is already finished."""
    from wander.train.records.files import read_outcome

    outcome = read_outcome(folder)
    if outcome is not None and outcome.finished:
        raise UsageError(
            f"`{folder}` is finished: it has {counted(outcome.steps, 'step')}",
            hint=f"continue from its weights with `wander train ENVIRONMENT CONFIG --from {folder}`",
            code="finished",
        )


class TrainingEnvironments:
    """Opens the environments of a training run, each in its own process.

    `run` is the run's folder. After the run has started, its manifest pins the version of the environment.
    """

    def __init__(self, context: Invocation, command: TrainingCommand, run: Path) -> None:
        self._context = context
        self._command = command
        self._run = run
        self._section = command.settings.environment
        self._workers = WorkerChoice.of(self._section.workers, self._section)
        self._opened: list[tuple[EnvironmentChoice, OpenedEnvironment]] = []

    @contextlib.asynccontextmanager
    async def open(self, choice: EnvironmentChoice) -> AsyncIterator[EnvironmentHandle]:
        """Open an environment, in the version that the run was started with."""
        location = (
            locate_started(self._context, self._command.environment, self._run)
            if choice.name is None
            else locate(self._context, choice.name)
        )
        async with open_environment(
            self._context,
            location,
            choice.arguments,
            sandbox=self._command.sandbox,
            workers=self._workers_of(choice),
        ) as environment:
            self._opened.append((choice, environment))
            yield environment.handle

    def _workers_of(self, choice: EnvironmentChoice) -> WorkerChoice:
        """Return the workers of an environment. Remote workers play only the command's own environment."""
        if choice.workers is not None:
            return WorkerChoice.of(choice.workers, self._section)
        if choice.name is None or not self._workers.addresses:
            return self._workers
        return WorkerChoice.of(1, self._section)

    def pin(self, choice: EnvironmentChoice) -> EnvironmentPin:
        """Return the pin of an open environment for the manifest.

        For a folder, it includes a digest of the code.
        """
        opened = next(environment for opened_choice, environment in self._opened if opened_choice == choice)
        folder = opened.location.folder
        if folder is None:
            return opened.pin
        digest = tree_digest(
            TreeEntry(path.relative_to(folder).as_posix(), False, bytes.fromhex(file_digest(path)))
            for path in _source_files(folder)
        )
        return opened.pin.model_copy(update={"source_sha256": digest})


def _source_files(folder: Path) -> Iterator[Path]:
    """Yield the Python files and the `pyproject.toml` of an environment's folder."""
    for place, folders, files in os.walk(folder):
        folders[:] = [name for name in folders if not name.startswith(".") and name != "site-packages"]
        for name in files:
            if name.endswith(".py") or (name == "pyproject.toml" and Path(place) == folder):
                yield Path(place, name)


@dataclass(frozen=True)
class Trained:
    """A finished training run."""

    result: GRPOResult
    folder: Path
    plots: list[Path]


def train_and_report(
    context: Invocation,
    command: TrainingCommand,
    folder: Path,
    *,
    resume: bool,
    checkpoint: int | None = None,
    allow_changes: bool = False,
) -> Trained | None:
    """Train into a folder, and return the result.

    If `torchrun` or `accelerate launch` started several processes, all but the first return None.
    Raises `Interrupted` with the saved work, and `ClientError` if learning collapsed.
    """
    output, settings = context.output, command.settings
    if is_launched():  # all processes use the folder name of the main process
        folder = current_world(settings.model.device).from_main(lambda: folder.resolve())
    output.note(
        f"training {settings.model.path} on {command.environment}: "
        f"{counted(settings.schedule.steps, 'step')} of "
        f"{settings.batch.groups} examples x {settings.batch.group_size} rollouts\nsaving to {folder}"
    )
    if not (resume or is_secondary_process()):
        warn_of_small_batch(settings, output)
    result = run_training(
        context, command, folder, resume=resume, checkpoint=checkpoint, allow_changes=allow_changes
    )
    if is_secondary_process():
        return None
    if result.interrupted:
        reached = "before the end of the first step"
        if result.steps:
            reached = f"after step {result.steps}; a checkpoint and the model so far are in `{folder}`"
        go_on = name_option("resume", str(folder), command="wander train")
        raise Interrupted(f"interrupted {reached}", hint="continue with " + go_on)
    plots = draw_curves(folder, command, output)
    repeat_alerts(folder, output)
    require_not_collapsed(result.stopped, folder)
    return Trained(result, folder, plots)


def run_training(
    context: Invocation,
    command: TrainingCommand,
    folder: Path,
    *,
    resume: bool,
    checkpoint: int | None = None,
    allow_changes: bool = False,
) -> GRPOResult:
    """Train with the environment in its own process, and show the progress."""
    from wander.train.grpo import train_grpo

    environments = TrainingEnvironments(context, command, folder)

    def pin(choice: EnvironmentChoice) -> EnvironmentPin:
        if not is_secondary_process():
            command.write(folder)
        return environments.pin(choice)

    with (
        TrainingProgress("training", folder, context.output) as display,
        restore_if_refused(folder / COMMAND_FILE),
    ):
        return train_grpo(
            environments.open,
            command.settings,
            folder,
            pin=pin,
            progress=display.show,
            resume=resume,
            checkpoint=checkpoint,
            allow_changes=allow_changes,
            serve=functools.partial(training_server, context),
            played=display.played,
        )


def draw_curves(folder: Path, command: TrainingCommand, output: Output) -> list[Path]:
    """Draw the run's learning curves if the required packages are installed."""
    from wander.errors import MissingExtra
    from wander.train.records.files import read_metrics
    from wander.train.watch.plots import draw_learning_curve

    try:
        return draw_learning_curve(read_metrics(folder), folder, title=f"GRPO on {command.label}")
    except MissingExtra as error:
        output.warn(f"{error}; {error.hint}")
        return []


@contextlib.contextmanager
def step_lines(output: Output, title: str, metric: str) -> Iterator[Callable[[dict[str, Any]], None]]:
    """Yield a callback that shows steps as a progress line on stderr, with one of their metrics."""
    with output.progress(title, None, unit="steps") as bar:

        def show(entry: dict[str, Any]) -> None:
            bar.total = entry["steps"]
            value = entry.get(metric)
            bar.update(entry["step"], f"{metric} {value:.3f}" if isinstance(value, int | float) else "")

        yield show


@contextlib.contextmanager
def training_server(context: Invocation, checkpoint: Path, section: InferenceSection) -> Iterator[str]:
    """Serve a checkpoint until the block ends, and yield the server's URL."""
    from wander.loop_thread import LoopThread

    arguments = ["--logprobs-mode", "processed_logprobs", "--enable-prompt-tokens-details"]
    if section.sync == "nccl":
        arguments += ["--weight-transfer-config", '{"backend": "nccl"}']
    if section.sleep:
        arguments += ["--enable-sleep-mode", "--gpu-memory-utilization", str(section.memory)]
    choice = ServeChoice(
        arguments=(*arguments, *section.arguments),  # the user's arguments come last, so that they win
        python=section.python,
        # Both enable endpoints that accept weights. The server listens only on loopback.
        environment=(("VLLM_SERVER_DEV_MODE", "1"), ("VLLM_ALLOW_RUNTIME_LORA_UPDATING", "True")),
    )
    serving = serve(context, str(checkpoint), choice, log_path=checkpoint.parent / "server.log")
    with contextlib.closing(LoopThread("wander-server")) as thread:
        yield thread.enter(serving).base_url


VERIFIED_STEPS = 3
"""Default number of steps to repeat."""


def verify_run(
    context: Invocation,
    run: Path,
    command: TrainingCommand,
    steps: int | None,
) -> int:
    """Repeat a run's first steps, check its checkpoints, print the result, and return the exit status.

    Returns 0 if everything is the same, 1 if something differs or the run cannot be repeated, and 6 if it has
    fewer steps.
    """
    from wander.train.verify import verify_training

    environments = TrainingEnvironments(context, command, run)
    wanted = steps or VERIFIED_STEPS
    with step_lines(context.output, "repeating", "reward") as show:
        report = verify_training(
            run,
            environments.open,
            steps=wanted,
            pin=environments.pin,
            progress=lambda entry: show({**entry, "steps": wanted}),
        )
    data = {**report.model_dump(mode="json"), "same": report.same, "sound": report.sound}
    context.output.answer(data, lambda: show_verification(report, context.output))
    if report.difference is not None or report.compared == 0 or not report.sound:
        return FAILED
    return OK if report.same else PARTIAL


def show_verification(report: TrainingVerification, output: Output) -> None:
    """Print the results of repeating the steps and of checking the checkpoints."""
    if report.compared == 0:
        output.line(f"not repeated: {report.refused}")
    else:
        _show_repetition(report, output)
    output.line(f"checkpoints  {report.files} files compared with their digests")
    for fault in report.damaged:
        output.line(f"  differs: {fault}", style="error")


def _show_repetition(report: TrainingVerification, output: Output) -> None:
    difference = report.difference
    same = report.compared - (difference is not None)
    output.line(f"repeated     {report.compared} of {report.asked} steps in {report.seconds:.1f} s")
    output.line(f"same         {same}, with weights compared after {report.weights_compared} of them")
    if difference is not None:
        cause = {
            "rollouts": "different tokens were sampled, or the same tokens with different probabilities",
            "rewards": "the environment gave different rewards or metrics for the same tokens",
            "update": "the same rollouts and rewards gave a different loss or gradient",
            "weights": "the same gradient gave different weights",
        }[difference.part]
        output.line(f"differs      step {difference.step}, in its {difference.part}: {cause}", style="error")
    elif report.refused is not None:
        output.line(f"ended        {report.refused}")
    for change in report.changed:
        output.line(f"  {change}")
