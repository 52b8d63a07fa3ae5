"""Run training from the command line's settings, and continue a run from its folder."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

from pydantic import ValidationError
from wander.sandbox import SandboxPolicy
from wander.train.config import GRPOSettings, SFTSettings, read_settings
from wander.train.distributed import is_beside_main
from wander.types import Record

from wander_client.environments.location import Location, locate, parse_arguments
from wander_client.errors import ClientError, NotFound, UsageError
from wander_client.models.reference import require_no_slip
from wander_client.models.server import ServeChoice, serve
from wander_client.runs.lookup import require_kind, resumable_folder
from wander_client.training.environments import TrainingEnvironments

if TYPE_CHECKING:
    from wander.train.config import InferenceSection
    from wander.train.grpo import GRPOResult
    from wander.train.records.outcome import Stopped
    from wander.train.rollouts.environments import EnvironmentChoice
    from wander.wire import EnvironmentPin

    from wander_client.context import Invocation
    from wander_client.terminal.output import Output, Progress

Settings = TypeVar("Settings", GRPOSettings, SFTSettings)

COMMAND_FILE = "command.json"
"""The settings of the command, in the run's folder, so that `--resume` needs nothing else."""


class TrainingCommand(Record):
    """What `wander train` was asked for."""

    environment: str
    """`owner/name@version`, exact, or the absolute path of a folder."""
    label: str
    """Short name of the environment for folders and titles."""
    settings: GRPOSettings
    sandbox: SandboxPolicy | None = None
    """The limits of the sandbox that the environment runs in; None means in none."""


def new_command(
    context: Invocation,
    environment: str,
    config: Path | None,
    model: str | None,
    overrides: Sequence[str],
    arguments: Sequence[str],
    sandbox: SandboxPolicy | None = None,
) -> TrainingCommand:
    """Resolve what was typed: the environment to an exact version, the model's folder to a full path."""
    given: dict[str, dict[str, Any]] = {"model": {"path": model}} if model else {}
    settings = read_settings(GRPOSettings, config, overrides, **given)
    section = settings.environment.model_copy(
        update={
            "arguments": {**settings.environment.arguments, **parse_arguments(list(arguments), None)},
        }
    )
    if settings.environments and arguments:
        raise UsageError(
            "each of `[[environments]]` has its own arguments", hint="write them there instead of `--arg`"
        )
    settings = settings.model_copy(update={"environment": section})
    settings = with_model(exactly_named(context, settings), model_path(settings.model.path))
    location = locate(context, environment)
    return TrainingCommand(
        environment=exact_name(location), label=location.label, settings=settings, sandbox=sandbox
    )


def exactly_named(context: Invocation, settings: GRPOSettings) -> GRPOSettings:
    """Return settings whose mixed environments have their exact names."""
    mixed = [
        each.model_copy(update={"name": exact_name(locate(context, each.name))}) if each.name else each
        for each in settings.environments
    ]
    return settings.model_copy(update={"environments": mixed})


def with_model(settings: Settings, path: str) -> Settings:
    """Return settings of training that begins with the model at `path`."""
    model = settings.model.model_copy(update={"path": path})
    return settings.model_copy(update={"model": model})


def exact_name(location: Location) -> str:
    """Return `owner/name@version` of an installed environment, else the path of its folder."""
    return str(location.installed.name) if location.installed else str(location.folder)


def read_command(folder: Path) -> TrainingCommand:
    """Return the command a run was started with."""
    path = folder / COMMAND_FILE
    try:
        return TrainingCommand.model_validate_json(path.read_bytes())
    except FileNotFoundError:
        raise NotFound(
            f"`{folder}` is not a run of `wander train`",
            hint="`wander runs` lists the runs here",
            code="no_run",
        ) from None
    except ValidationError as error:
        require_kind(folder, "training")
        raise ClientError(f"`{path}` was changed and cannot be read", detail=str(error)) from error


def new_run_dir(context: Invocation, command: TrainingCommand) -> Path:
    """Return a fresh folder under the runs folder, named after environment and model."""
    from wander.models.loading import model_name

    name = command.settings.model.path
    shown = model_name(Path(name)) if Path(name).is_dir() else name
    return fresh_run_dir(context, command.environment, f"grpo-{shown}")


def fresh_run_dir(context: Invocation, environment: str, what: str) -> Path:
    """Return a fresh folder under the runs folder, named after environment and what is trained."""
    from wander_client.evaluate.evaluation import new_run_dir

    return new_run_dir(context.settings.runs_dir, locate(context, environment), what)


def model_path(name: str) -> str:
    """Return a model's name as it can be used from any folder."""
    folder = Path(name).expanduser()
    if folder.is_dir():
        return str(folder.resolve())
    require_no_slip(name)
    return name.removeprefix("hf:")


def choose_model(context: Invocation, model: str | None, started_from: str | None) -> str | None:
    """Return the model that `--model` or `--from` names; raises `UsageError` when both do."""
    if started_from is None:
        return model
    if model is not None:
        raise UsageError("`--from` and `--model` both name the weights to start from: pass only one")
    return find_weights(context, started_from)


def find_weights(context: Invocation, word: str) -> str:
    """Return the weights that `--from RUN[@STEP]` means: a checkpoint's, or those that the run ended with.

    `RUN` alone is its best where it kept one, `RUN@last` always those of its end.
    """
    from wander.train.phases import find_made_model

    name, _, step = word.rpartition("@") if "@" in word else (word, "", "")
    folder = resumable_folder(context, Path(name))
    if step and step != "last":
        place = folder / "checkpoints" / f"checkpoint-{step}"
    else:
        place = folder / "model" if step else find_made_model(folder)
    if place.is_dir():
        return str(place.resolve())
    steps = sorted(
        int(path.name.rpartition("-")[2]) for path in (folder / "checkpoints").glob("checkpoint-*")
    )
    there = [str(each) for each in steps] + (["last"] if (folder / "model").is_dir() else [])
    raise NotFound(
        f"`{folder}` has no weights of `{step}`" if step else f"`{folder}` has no model",
        hint=f"it has {', '.join(f'`{folder}@{each}`' for each in there)}"
        if there
        else "a run keeps checkpoints with `--set output.checkpoint_every=10`",
        code="no_checkpoint",
    )


def require_not_collapsed(stopped: Stopped | None, folder: Path) -> None:
    """Raise `ClientError` for a run that ended because learning failed."""
    if stopped is not None and stopped.collapsed:
        raise ClientError(
            f"stopped after step {stopped.step}: {stopped.reason}",
            hint=f"`{folder}` keeps metrics and model; a smaller learning rate or more rollouts may help",
            code="collapsed",
        )


def require_unfinished(folder: Path) -> None:
    """Raise `UsageError` when there is nothing to go on with."""
    from wander.train.records.outcome import read_outcome

    outcome = read_outcome(folder)
    if outcome is not None and outcome.finished:
        raise UsageError(
            f"`{folder}` is finished: it has {outcome.steps} steps",
            hint=f"continue from its weights with `wander train ENVIRONMENT CONFIG --from {folder}`",
            code="finished",
        )


def run_training(
    context: Invocation,
    command: TrainingCommand,
    folder: Path,
    show: Callable[[dict[str, Any]], None],
    *,
    resume: bool,
    checkpoint: int | None = None,
    allow_changes: bool = False,
) -> GRPOResult:
    """Train, with the environment in a process of its own."""
    from wander.train.grpo import train_grpo

    environments = TrainingEnvironments(
        context,
        command.environment,
        folder,
        workers=command.settings.environment.workers,
        sandbox=command.sandbox,
    )

    def pin(choice: EnvironmentChoice) -> EnvironmentPin:
        if is_beside_main():
            return environments.pin(choice)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / COMMAND_FILE).write_text(command.model_dump_json(indent=2) + "\n", encoding="utf-8")
        return environments.pin(choice)

    return train_grpo(
        environments.open,
        command.settings,
        folder,
        pin=pin,
        progress=show,
        resume=resume,
        checkpoint=checkpoint,
        allow_changes=allow_changes,
        serve=functools.partial(training_server, context),
    )


def draw_curves(folder: Path, command: TrainingCommand, output: Output) -> list[Path]:
    """Draw the run's learning curves where the packages for it are installed."""
    from wander.errors import MissingExtra
    from wander.train.records.record import read_metrics
    from wander.train.watch.plots import draw_learning_curve

    try:
        return draw_learning_curve(read_metrics(folder), folder, title=f"GRPO on {command.label}")
    except MissingExtra as error:
        output.warn(f"{error}; {error.hint}")
        return []


class StepLines:
    """Shows the steps of a training run: a progress line on stderr, or one JSON object a step."""

    def __init__(self, output: Output, title: str, metrics: Sequence[str]) -> None:
        self._output = output
        self.title = title
        self.metrics = metrics
        self._bar: Progress | None = None
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> StepLines:
        self._bar = self._stack.enter_context(self._output.progress(self.title, None, unit="steps"))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.__exit__(kind, error, trace)

    def show(self, entry: dict[str, Any]) -> None:
        """Show one step."""
        if self._bar is None:
            return
        self._bar.total = entry["steps"]
        known = [name for name in self.metrics if isinstance(entry.get(name), int | float)]
        self._bar.update(entry["step"], "  ".join(f"{name} {entry[name]:.3f}" for name in known))


DEV_MODE = {"VLLM_SERVER_DEV_MODE": "1"}
"""Opens the endpoints that take weights; the server listens on loopback only."""


@contextlib.contextmanager
def training_server(context: Invocation, checkpoint: Path, section: InferenceSection) -> Iterator[str]:
    """Serve a checkpoint until the block ends, and yield the server's address."""
    from wander.train.rollouts.source import LoopThread

    choice = ServeChoice(
        arguments=server_arguments(section), python=section.python, environment=tuple(DEV_MODE.items())
    )
    serving = serve(context, str(checkpoint), choice, log_path=checkpoint.parent / "server.log")
    with contextlib.closing(LoopThread()) as thread:
        yield thread.enter(serving).base_url


def server_arguments(section: InferenceSection) -> tuple[str, ...]:
    """Return what a server is started with so that it can be trained with; the settings' own come last."""
    arguments = ["--logprobs-mode", "processed_logprobs", "--enable-prompt-tokens-details"]
    if section.sync == "nccl":
        arguments += ["--weight-transfer-config", '{"backend": "nccl"}']
    if section.sleep:
        arguments += ["--enable-sleep-mode", "--gpu-memory-utilization", str(section.memory)]
    return (*arguments, *section.arguments)
