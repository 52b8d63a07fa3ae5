"""Run the phases of a training run one after the other, each in its own folder, and resume them."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shlex
import shutil
from collections.abc import Coroutine, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeVar

from wander.loop_thread import LoopThread
from wander.sandbox import SandboxPolicy
from wander.system.folders import replace_folder
from wander.train.phases import (
    PHASE,
    GRPOPhase,
    ModelPhase,
    Phase,
    RolloutsPhase,
    RowsPhase,
    SFTPhase,
    find_phase_model,
    phase_folders,
    read_phases,
)
from wander.train.records.files import Outcome, read_outcome, write_outcome
from wander.types import SamplingArgs

from wander_client.context import Invocation
from wander_client.environments.location import locate, parse_arguments
from wander_client.environments.sandbox import choose_policy, confines
from wander_client.errors import ClientError, Interrupted, NotFound, UsageError
from wander_client.runs.lookup import require_kind
from wander_client.runs.own_records import COMMAND_FILE, KeptCommand, foreign_record, read_command
from wander_client.settings import Settings
from wander_client.terminal.output import counted
from wander_client.training.run import (
    RunCommand,
    TrainingCommand,
    draw_curves,
    model_path,
    name_exactly,
    require_alone,
    require_not_collapsed,
    run_training,
    step_lines,
    warn_of_small_batch,
    with_models,
    with_path,
    with_workers,
)
from wander_client.training.text import repeat_alerts

if TYPE_CHECKING:
    from wander.train.preference import PreferenceResult
    from wander.train.sft import SFTResult

Result = TypeVar("Result")

ROWS = "rows.jsonl"
"""File with the selected rollouts of a phase."""

DOING = {"sft": "fine-tuning", "dpo": "DPO", "kto": "KTO"}
DESCRIBED = {
    "sft": "fine-tunes",
    "dpo": "DPO of",
    "kto": "KTO of",
    "rloo": "RLOO on",
    "distill": "distils a teacher into",
}
LEARNED = {"sft": "conversation", "dpo": "pair", "kto": "rollout"}


class PhasedCommand(RunCommand):
    """A training run with phases."""

    phases: list[Phase]

    def played_at(self, addresses: Sequence[str], token_file: str | None) -> PhasedCommand:
        """Return the same run with its environment at these addresses."""
        return self.model_copy(
            update={"phases": [_play_at(phase, addresses, token_file) for phase in self.phases]}
        )

    def folders(self, folder: Path) -> list[Path]:
        """Return the folders of the phases in the run's folder."""
        return list(phase_folders(folder, self.phases).values())


def new_command(
    context: Invocation,
    environment: str,
    config: Path | None,
    model: str | None,
    overrides: Sequence[str],
    arguments: Sequence[str],
    sandbox: SandboxPolicy | None = None,
    sections: Mapping[str, Mapping[str, Any]] = MappingProxyType({}),
) -> PhasedCommand | None:
    """Return the command with all its phases, or None if the settings file has no phases.

    `sections` override the settings of the file. Raises `UsageError` for settings that do not fit together.
    """
    if config is None:
        return None
    given = with_path(sections, model_path(model) if model else None)
    phases = read_phases(config, overrides, **given)
    if phases is None:
        return None
    if parse_arguments(list(arguments), None):
        raise UsageError(
            "with phases, the arguments come from the file",
            hint="pass `--set environment.arguments.KEY=VALUE`",
        )
    begun_with = {
        phase.settings.rollouts.model if isinstance(phase, RolloutsPhase) else phase.settings.model.path
        for phase in phases
        if not isinstance(phase, ModelPhase)
    }
    if model and given["model"]["path"] not in begun_with:
        raise UsageError(
            f"no phase of `{config}` starts from the model of `--model`",
            hint="remove `--model`, or remove the phases that create the model",
        )
    require_alone(f"`{config}` has phases, which")
    location = locate(context, environment)
    return PhasedCommand(
        environment=location.exact_name,
        label=location.label,
        phases=[_play_at(_anywhere(context, phase), [], None) for phase in phases],
        sandbox=sandbox,
    )


def _anywhere(context: Invocation, phase: Phase) -> Phase:
    """Return a phase with absolute paths of its model and rows."""
    if isinstance(phase, RowsPhase):
        rows = [text if text.startswith(PHASE) else str(Path(text).resolve()) for text in phase.rows]
        tuned = with_models(phase.settings, _full_path)
        return phase.model_copy(update={"rows": rows, "settings": tuned})
    if isinstance(phase, GRPOPhase):
        trained = with_models(name_exactly(context, phase.settings), _full_path)
        return phase.model_copy(update={"settings": trained})
    return phase


def _play_at(phase: Phase, addresses: Sequence[str], token_file: str | None) -> Phase:
    if isinstance(phase, RolloutsPhase):
        return phase.model_copy(update={"settings": with_workers(phase.settings, addresses, token_file)})
    if isinstance(phase, GRPOPhase):
        return phase.model_copy(update={"settings": with_workers(phase.settings, addresses, token_file)})
    return phase


def _full_path(model: str) -> str:
    return model if model.startswith(PHASE) else model_path(model)


def read_begun(folder: Path) -> KeptCommand[TrainingCommand] | KeptCommand[PhasedCommand]:
    """Read the command that a run was started with, and whether this user started it."""
    path = folder / COMMAND_FILE
    try:
        return read_command(path, PhasedCommand)
    except FileNotFoundError:
        raise NotFound(
            f"`{folder}` is not a run of `wander train`",
            hint="run `wander runs` to list your runs",
            code="no_run",
        ) from None
    except ClientError:
        pass  # a run without phases
    try:
        return read_command(path, TrainingCommand)
    except ClientError:
        require_kind(folder, "training")
        raise


def own_command(folder: Path, option: str = "--resume") -> TrainingCommand | PhasedCommand:
    """Return the command of a run that this user started on this machine.

    Raises `ClientError` for a run from somebody else. The error shows its settings.
    """
    kept = read_begun(folder)
    if kept.is_own:
        return kept.command
    words = f"wander train ENVIRONMENT CONFIG.toml {option} {shlex.quote(str(folder))}"
    hint = f"put the settings that you want to use into a file, and run `{words}`"
    raise foreign_record(folder, kept.command.asks(), hint)


def worker_addresses(command: TrainingCommand | PhasedCommand) -> list[str]:
    """Return the addresses of the workers of all phases, or an empty list if all phases play here."""
    parts = command.phases if isinstance(command, PhasedCommand) else [command]
    sections = [getattr(part.settings, "environment", None) for part in parts if hasattr(part, "settings")]
    workers = [section.workers for section in sections if section is not None]
    return [address for listed in workers if not isinstance(listed, int) for address in listed]


def confine_mixture(
    settings: Settings, command: TrainingCommand | PhasedCommand
) -> TrainingCommand | PhasedCommand:
    """Return a run with the sandbox on if it mixes in an environment from a hub that must be confined."""
    parts = command.phases if isinstance(command, PhasedCommand) else [command]
    mixed = [
        section.name
        for part in parts
        for section in getattr(getattr(part, "settings", None), "environments", [])
        if section.name is not None
    ]
    elsewhere = bool(worker_addresses(command))
    if command.sandbox is None and any(confines(settings, name, elsewhere=elsewhere) for name in mixed):
        return command.model_copy(update={"sandbox": choose_policy(True, None)})
    return command


class PhasedRun:
    """The phases of a run in its folder."""

    def __init__(self, context: Invocation, command: PhasedCommand, folder: Path) -> None:
        self._context = context
        self.command = command
        self.folder = folder
        self.folders = phase_folders(folder, command.phases)
        self.resume_command = f"wander train --resume {folder}"

    def begin(self) -> None:
        """Create the folder. Raises `UsageError` if it already contains a run."""
        if (self.folder / COMMAND_FILE).exists() or (self.folder / "run.json").exists():
            raise UsageError(
                f"`{self.folder}` already contains a run", hint=f"resume it with `{self.resume_command}`"
            )
        self.command.write(self.folder)
        for phase in self.command.phases:
            if isinstance(phase, GRPOPhase):
                warn_of_small_batch(phase.settings, self._context.output, f"phases.{phase.name}.")

    def run(self) -> list[dict[str, Any]]:
        """Run the unfinished phases, and return the results of all phases.

        Raises `Interrupted` with the command that resumes, or `ClientError` if a phase collapsed.
        """
        count, results = len(self.command.phases), []
        for number, phase in enumerate(self.command.phases, start=1):
            title = f"phase {number} of {count}, {phase.name}"
            outcome = read_outcome(self.folders[phase.name])
            if outcome is not None and outcome.finished:
                self._context.output.note(f"{title}: already finished")
            else:
                outcome = self._run_phase(phase, title)
            if phase.kind == "grpo" and outcome.best is None:
                require_not_collapsed(outcome.stopped, self.folders[phase.name])
            results.append({"phase": phase.name, "kind": phase.kind, **outcome.model_dump(mode="json")})
        self._keep_model()
        return results

    def _run_phase(self, phase: Phase, title: str) -> Outcome:
        folder = self.folders[phase.name]
        self._context.output.note(f"{title}: {describe_phase(phase)}\nsaving to {folder}")
        steps = 0
        if isinstance(phase, RolloutsPhase):
            self._play(phase, folder)
        elif isinstance(phase, ModelPhase):
            self._make(phase, folder)
        elif isinstance(phase, RowsPhase):
            steps = self._learn(phase, folder)
        else:
            return self._train(phase, folder)
        outcome = Outcome(steps=steps, finished=True)
        write_outcome(folder, outcome)
        return outcome

    def _model(self, text: str) -> str:
        """Return the folder of an earlier phase's model, or any other model unchanged."""
        if not text.startswith(PHASE):
            return text
        return str(find_phase_model(self.folders[text.removeprefix(PHASE)]))

    def _play(self, phase: RolloutsPhase, folder: Path) -> None:
        from wander_client.evaluate import evaluation as evaluations
        from wander_client.evaluate.settings import EvaluationSettings

        players = phase.settings.rollouts
        sampling = SamplingArgs(
            temperature=players.temperature, max_tokens=players.max_tokens, compact_at=players.compact_at
        )
        section = phase.settings.environment
        settings, location = evaluations.resolve_settings(
            self._context,
            EvaluationSettings(
                environment=self.command.environment,
                model=self._model(players.model or ""),
                base_url=players.base_url,
                arguments=section.arguments,
                worker_addresses=[] if isinstance(section.workers, int) else section.workers,
                worker_token_file=section.worker_token_file,
                rollout_timeout=section.rollout_timeout,
                max_rollouts=section.rollouts_at_once,
                num_examples=players.examples,
                rollouts=players.per_example,
                split=players.split,
                seed=players.seed,
                sampling=sampling,
                concurrency=players.concurrency,
                sandbox=self.command.sandbox,
            ),
            folder,
        )
        with self._context.output.progress("playing", None, unit="rollouts") as bar:

            def on_progress(progress: Any) -> None:
                bar.total = progress.total
                bar.update(progress.done)

            evaluation = evaluations.Evaluation(
                self._context, settings, location, folder, resume=(folder / "run.json").exists()
            )
            listeners = evaluations.Listeners(on_progress=on_progress)
            result = _run_here(evaluations.run_interruptible(evaluation, listeners))
        if result.interrupted:
            raise self._interruption(f"{result.summary.rollouts} of {result.summary.expected} rollouts")
        if result.summary.failed == result.summary.rollouts:
            raise evaluations.all_failed(result)
        self._keep_rows(phase, folder)

    def _keep_rows(self, phase: RolloutsPhase, folder: Path) -> None:
        from wander.evals.store.folder import RunFolder
        from wander.train.data import Condition, select_rows, write_rows

        section = phase.settings.filter
        rows, report = select_rows(
            RunFolder.open(folder).rollouts(),
            min_reward=section.min_reward,
            conditions=[Condition.parse(text) for text in section.where],
            keep_repeats=section.keep_repeats,
            near=section.near,
            whole=section.whole,
            per_example=section.per_example,
        )
        dropped = ", ".join(f"{count} {reason}" for reason, count in sorted(report.dropped.items()))
        if not rows:
            raise ClientError(
                f"the filter dropped all {report.rollouts} rollouts of phase `{phase.name}`: {dropped}",
                hint=f"view them with `wander view {folder}`, or relax `[phases.filter]`",
            )
        write_rows(rows, folder / ROWS)
        left_out = f"; dropped {dropped}" if dropped else ""
        self._context.output.note(f"kept {report.kept} of {report.rollouts} rollouts{left_out}")

    def _make(self, phase: ModelPhase, folder: Path) -> None:
        from itertools import islice

        from wander.evals.store.folder import RunFolder
        from wander.models.tiny import TinySize, create_tiny
        from wander.models.transcripts import ENOUGH_TRANSCRIPTS, transcript_of

        played = RunFolder.open(self.folders[phase.transcripts.removeprefix(PHASE)]).rollouts()
        texts = [transcript_of(rollout) for rollout in islice(played, ENOUGH_TRANSCRIPTS)]
        tiny = phase.settings.tiny
        size = TinySize.of_width(tiny.hidden, tiny.layers, tiny.vocabulary, characters=tiny.characters)
        shutil.rmtree(folder / "model", ignore_errors=True)  # left by a phase that was killed
        create_tiny(texts, folder / "model", seed=tiny.seed, size=size)

    def _learn(self, phase: RowsPhase, folder: Path) -> int:
        from wander.train.data import read_rows

        files = [
            self.folders[text.removeprefix(PHASE)] / ROWS if text.startswith(PHASE) else Path(text)
            for text in phase.rows
        ]
        rows = (row for file in files for row in read_rows(file))
        resume = (folder / "checkpoints").is_dir()  # without checkpoints, it starts again
        metric = "loss" if isinstance(phase, SFTPhase) else "rewards/margins"
        result: SFTResult | PreferenceResult
        with step_lines(self._context.output, DOING[phase.kind], metric) as show:
            if isinstance(phase, SFTPhase):
                from wander.train.sft import train_sft

                tuned = with_models(phase.settings, self._model)
                result = train_sft(rows, tuned, folder, progress=show, resume=resume)
                left_out = {f"longer than {tuned.batch.max_length} tokens": result.too_long}
            else:
                from wander.train.preference import train_preference

                settings = phase.settings
                tuned_settings = with_models(settings, self._model)
                result = train_preference(rows, tuned_settings, folder, progress=show, resume=resume)
                left_out = result.left_out
        if result.interrupted:
            raise self._interruption(f"{counted(result.steps, 'step')} of phase `{phase.name}`")
        self._context.output.note(
            f"learned from {counted(result.rows, LEARNED[phase.kind])}; "
            f"{counted(result.as_sampled, 'rollout')} kept the tokens as they were sampled"
        )
        for reason, count in sorted(left_out.items()):
            if count:
                self._context.output.warn(f"{counted(count, 'rollout')} left out: {reason}")
        return result.steps

    def _train(self, phase: GRPOPhase, folder: Path) -> Outcome:
        settings = with_models(phase.settings, self._model)
        given = self.command
        command = TrainingCommand(
            environment=given.environment, label=given.label, settings=settings, sandbox=given.sandbox
        )
        resume = (folder / "run.json").exists()
        result = run_training(self._context, command, folder, resume=resume)
        if result.interrupted:
            raise self._interruption(f"{counted(result.steps, 'step')} of phase `{phase.name}`")
        draw_curves(folder, command, self._context.output)
        repeat_alerts(folder, self._context.output)
        outcome = read_outcome(folder)
        assert outcome is not None
        return outcome

    def _interruption(self, kept: str) -> Interrupted:
        return Interrupted(
            f"interrupted; {kept} saved in `{self.folder}`", hint=f"resume with `{self.resume_command}`"
        )

    def _keep_model(self) -> None:
        """Link the last phase's model into the run's folder, where every training run has its model."""
        makers = [phase for phase in self.command.phases if phase.kind != "rollouts"]
        if not makers:
            return
        model = find_phase_model(self.folders[makers[-1].name])
        with replace_folder(self.folder / "model") as place:
            shutil.copytree(model, place, dirs_exist_ok=True, copy_function=_link)

    @property
    def last_folder(self) -> Path:
        """Run folder of the last phase."""
        return list(self.folders.values())[-1]

    @property
    def model(self) -> Path | None:
        """Final model of the run, or None if it does not exist yet."""
        folder = self.folder / "model"
        return folder if folder.is_dir() else None


def _run_here(work: Coroutine[Any, Any, Result]) -> Result:
    """Run a coroutine to its end. Uses a separate thread if a loop is running here, as in a notebook."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(work)
    with contextlib.closing(LoopThread("wander-phase")) as thread:
        return thread.run(work)


def _link(source: str, target: str) -> None:
    """Give a file a second name, which costs no space; copy it where that cannot be."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)


def describe_phase(phase: Phase) -> str:
    """Return what a phase is about to do, in words."""
    if isinstance(phase, RolloutsPhase):
        players = phase.settings.rollouts
        return f"{players.model} plays {players.examples} examples x {players.per_example} rollouts"
    if isinstance(phase, ModelPhase):
        return f"makes a tiny model from {phase.transcripts}"
    if isinstance(phase, RowsPhase):
        return f"{DESCRIBED[phase.kind]} {phase.settings.model.path} on {', '.join(phase.rows)}"
    batch, steps = phase.settings.batch, phase.settings.schedule.steps
    doing = DESCRIBED.get(phase.settings.algorithm.loss, "GRPO on")
    size = f"{counted(steps, 'step')} of {counted(batch.rollouts, 'rollout')}"
    return f"{doing} {phase.settings.model.path}: {size}"


def summary_rows(results: Sequence[dict[str, Any]]) -> list[list[Any]]:
    """Return a row for each phase: its name, kind, steps, and how it ended."""
    return [
        [
            result["phase"],
            result["kind"],
            result["steps"] or "",
            result["stopped"]["reason"] if result["stopped"] else "done",
            f"{result['best']['metric']} {result['best']['value']:.4g} at step {result['best']['step']}"
            if result["best"]
            else "",
        ]
        for result in results
    ]
