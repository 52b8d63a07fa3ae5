"""`wander.train` and `wander.sft`: the training commands as Python functions."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from copy import copy
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from wander.errors import ConfigError

from wander_client.context import Invocation
from wander_client.environments.sandbox import choose_policy, confines
from wander_client.errors import ClientError, Interrupted, UsageError
from wander_client.python.background import called_from_python, wait_for
from wander_client.python.environment import LoadedEnvironment
from wander_client.python.keywords import find_near
from wander_client.python.output import PythonOutput, open_invocation
from wander_client.python.run import Run
from wander_client.terminal.output import counted
from wander_client.training.text import describe_reward

if TYPE_CHECKING:
    from wander.sandbox import SandboxPolicy
    from wander.train.grpo import GRPOResult
    from wander.train.sft import SFTResult

    from wander_client.training.phases import PhasedCommand, PhasedRun
    from wander_client.training.run import TrainingCommand

Model = str | os.PathLike[str] | Mapping[str, Any] | None
"""A checkpoint folder, `smollm2`, a Hugging Face name, or a section: `{"path": ..., "lora_rank": 8}`."""
Config = str | os.PathLike[str] | Mapping[str, Mapping[str, Any]] | None
"""Settings as a TOML file, or as its sections."""


class TrainingRun(Run):
    """A finished training run, with its folder, model and learning curves."""

    def __init__(
        self, path: str | os.PathLike[str], result: GRPOResult, phases: Mapping[str, Path] | None = None
    ) -> None:
        super().__init__(path)
        self.phases = dict(phases or {})
        """Folder of each phase, by name; empty for a run without phases."""
        self.result = result
        """Steps, seconds, rewards of the first and the last tenth of the steps, and the best checkpoint."""

    @property
    def checkpoint(self) -> Path:
        """Folder of the trained model, for `env.evaluate`."""
        return self.result.model

    @cached_property
    def history(self) -> list[dict[str, Any]]:
        """Metrics of every step."""
        from wander.train.records.files import read_metrics

        return read_metrics(self.path)

    @called_from_python
    def plot(self) -> Any:
        """Return the learning curves as a chart, or None if the run has fewer than two steps.

        Requires `wander-sdk[plots]`.
        """
        from wander.evals.report.charts import drawn_in_notebooks
        from wander.train.watch.plots import chart_runs, read_plotted

        chart = chart_runs([read_plotted(self.path)], title=f"{self.model} on {self.environment}")
        return drawn_in_notebooks(chart) if chart is not None else None

    def _facts(self) -> list[tuple[str, str]]:
        done = self.result
        return [
            ("environment", self.environment),
            ("model", str(done.model)),
            ("reward", describe_reward(done)),
            ("steps", f"{done.steps:,}, {done.rollouts:,} rollouts, {done.seconds:.0f} s"),
            ("folder", str(self.path)),
        ]

    def __repr__(self) -> str:
        done = self.result
        return (
            f"<training on {self.environment}: {describe_reward(done)}, {counted(done.steps, 'step')}, "
            f"in {self.path}>"
        )


@called_from_python
def new_model(
    out: str | os.PathLike[str],
    *,
    environment: LoadedEnvironment | str | os.PathLike[str] | None = None,
    transcripts: Run | str | os.PathLike[str] | Iterable[Run | str | os.PathLike[str]] = (),
    arguments: Mapping[str, Any] | None = None,
    player: str | None = None,
    episodes: int = 200,
    seed: int = 0,
    hidden: int = 128,
    layers: int = 4,
    vocabulary: int = 512,
    characters: bool = False,
    hub: str | None = None,
    token: str | None = None,
    progress: bool = True,
) -> Path:
    """Create an untrained tiny model, like `wander model new tiny`. Requires `wander-sdk[train]`.

    Its tokenizer is trained on transcripts. Pass either `environment` or `transcripts`; otherwise raises
    `UsageError`.
    - `out`: folder of the model, which is returned.
    - `environment`: environment that plays the transcripts: loaded, or a name as for `load`, with
    `arguments`. `player`
      (`scripted:MODULE:FUNCTION`; without it, random answers) plays `episodes` games.
    - `transcripts`: runs with transcripts.
    - `hidden`, `layers`, `vocabulary`: width, number of layers, maximum size of the vocabulary.
    - `characters`: use one token per character.
    """
    from wander_client.training.tiny_model import Transcripts, make_tiny

    context, _ = _context_of(environment, hub, token, None, progress=progress)
    own = environment.arguments if isinstance(environment, LoadedEnvironment) else {}
    runs = [transcripts] if isinstance(transcripts, str | os.PathLike) else transcripts
    source = Transcripts(
        runs=[os.fspath(run) for run in runs],
        environment=None if environment is None else _spec_of(environment),
        arguments={**own, **(arguments or {})},
        player=player,
        episodes=episodes,
    )
    size = {"hidden": hidden, "layers": layers, "vocabulary": vocabulary}
    wait_for(make_tiny(context, Path(out), source, seed=seed, characters=characters, **size))
    return Path(out)


def _spec_of(environment: LoadedEnvironment | str | os.PathLike[str]) -> str:
    """Return the name of an environment for the commands."""
    if isinstance(environment, LoadedEnvironment):
        return environment.name
    return environment if isinstance(environment, str) else str(Path(environment).resolve())


@called_from_python
def train(
    environment: LoadedEnvironment | str | os.PathLike[str],
    config: Config = None,
    /,
    *,
    model: Model = None,
    steps: int | None = None,
    arguments: Mapping[str, Any] | None = None,
    out: str | os.PathLike[str] | None = None,
    resume: str | os.PathLike[str] | None = None,
    sandbox: bool | None = None,
    hub: str | None = None,
    token: str | None = None,
    progress: bool = True,
    **sections: Mapping[str, Any],
) -> TrainingRun:
    """Train a policy on an environment with GRPO, like `wander train`. Requires `wander-sdk[train]`.

    - `environment`: a loaded environment, whose name, arguments and sandbox are used, or a name as for
    `load`.
    - `config`: a TOML file, which can have phases, or its sections as mappings. Other keywords are sections
    that override
      it: `train(env, model="smollm2", batch={"rollouts": 64})`.
    - `model`: a checkpoint folder, `smollm2`, or a Hugging Face name. `steps`: steps of the policy.
    - `out`: folder of the run; the default is a new folder in `runs`. `resume`: folder of a run to resume.
    Returns when the run ends. With phases, returns the last GRPO run with the final model of all phases. An
    interrupt finishes the current step and saves a checkpoint. Raises `ConfigError` for an unknown setting,
    and `ClientError` if learning collapsed.
    """
    from wander_client.training import phases as training_phases
    from wander_client.training.run import fresh_run_dir, new_run_dir, require_unfinished, train_and_report

    command: TrainingCommand | PhasedCommand
    context, policy = _context_of(environment, hub, token, sandbox, progress=progress)
    settings = (context, environment, config, model, steps, arguments, sections)
    if resume is not None:
        folder = Path(resume)
        asked = {"config": config, "model": model, "steps": steps, "out": out, **sections}
        given = [name for name, value in asked.items() if value is not None]
        is_own = training_phases.read_begun(folder).is_own
        if given and is_own:
            raise UsageError(
                f"cannot change `{given[0]}` of a resumed run",
                hint="pass only `resume`",
            )
        # If somebody else started the run, all settings come from this call.
        own = training_phases.own_command
        command = _new_command(*settings, sandbox=policy, said=sandbox) if given else own(folder)
        if not isinstance(command, training_phases.PhasedCommand):
            require_unfinished(folder)
    else:
        command = _new_command(*settings, sandbox=policy, said=sandbox)
        if out is not None:
            folder = Path(out)
        elif isinstance(command, training_phases.PhasedCommand):
            folder = fresh_run_dir(context, command.environment, "phases")
        else:
            folder = new_run_dir(context, command)
        if (folder / "run.json").exists():
            raise ClientError(
                f"`{folder}` already contains a run", hint=f'resume it with `resume="{folder}"`'
            )
    try:
        if isinstance(command, training_phases.PhasedCommand):
            return _train_phases(
                training_phases.PhasedRun(context, command, folder), resume=resume is not None
            )
        done = train_and_report(context, command, folder, resume=resume is not None)
    except Interrupted as stopped:
        raise KeyboardInterrupt(f"{stopped}; resume with `resume`") from stopped
    assert done is not None, "only a single process calls this"
    return TrainingRun(done.folder, done.result)


def _context_of(
    environment: object, hub: str | None, token: str | None, sandbox: bool | None, *, progress: bool
) -> tuple[Invocation, SandboxPolicy | None]:
    """Return the state and the sandbox: those of a loaded environment, or those of the arguments."""
    if not isinstance(environment, LoadedEnvironment):
        context = open_invocation(hub, token, progress=progress)
        return context, choose_policy(
            sandbox, [], default=isinstance(environment, str) and confines(context.settings, environment)
        )
    if given := [name for name, value in (("hub", hub), ("token", token), ("sandbox", sandbox)) if value]:
        raise UsageError(f"`{given[0]}` is set by the loaded environment", hint="pass it to `wander.load`")
    context = environment._loaded.context
    if not progress:
        context = copy(context)
        context.output = PythonOutput(progress=False)
    return context, environment._loaded.sandbox


def _train_phases(run: PhasedRun, *, resume: bool) -> TrainingRun:
    """Run the unfinished phases. Returns the last GRPO run, with the model of the last phase."""
    from wander.train.grpo import result_of
    from wander.train.records.files import read_metrics, read_outcome

    if not resume:
        run.begin()
    run.run()
    place = run.folders[next(phase.name for phase in reversed(run.command.phases) if phase.kind == "grpo")]
    outcome, entries = read_outcome(place), read_metrics(place)
    assert outcome is not None, "it is finished"
    seconds = sum(entry.get("seconds/step") or 0.0 for entry in entries)
    result = result_of(place, entries, outcome, seconds)
    return TrainingRun(place, replace(result, model=run.model or result.model), phases=run.folders)


def _new_command(
    context: Invocation,
    environment: LoadedEnvironment | str | os.PathLike[str],
    config: Config,
    model: Model,
    steps: int | None,
    arguments: Mapping[str, Any] | None,
    sections: Mapping[str, Mapping[str, Any]],
    *,
    sandbox: SandboxPolicy | None,
    said: bool | None,
) -> TrainingCommand | PhasedCommand:
    """Return the command to run. `said` is whether the caller chose for or against the sandbox."""
    from wander_client.training import phases as training_phases
    from wander_client.training.run import new_command, require_alone

    require_alone("`wander.train`")
    file, given = _read_config(config, sections, model, steps)
    own = dict(environment.arguments) if isinstance(environment, LoadedEnvironment) else {}
    if wanted := {**own, **(arguments or {})}:
        section = given.get("environment", {})
        given["environment"] = {**section, "arguments": {**section.get("arguments", {}), **wanted}}
    spec = _spec_of(environment)
    asked = (context, spec, file, _path_of(given), (), (), sandbox, given)
    phased = training_phases.new_command(*asked)
    if phased is None:
        command = new_command(*asked)
        return command if said is False else training_phases.confine_mixture(context.settings, command)
    if steps is not None:
        only = f'phases={{"{phased.phases[-1].name}": {{"schedule": {{"steps": {steps}}}}}}}'
        raise UsageError(
            "`steps` does not apply to a training with phases", hint=f"set the steps of a phase: `{only}`"
        )
    if not any(phase.kind == "grpo" for phase in phased.phases):
        raise UsageError(
            f"`wander.train` returns a GRPO run, but no phase of `{file}` is GRPO",
            hint=f"run `wander train {spec} {file}`, or fine-tune with `wander.sft`",
        )
    return phased if said is False else training_phases.confine_mixture(context.settings, phased)


def _read_config(
    config: Config, sections: Mapping[str, Mapping[str, Any]], model: Model, steps: int | None
) -> tuple[Path | None, dict[str, Mapping[str, Any]]]:
    """Return the settings file, and the sections that override it."""
    for name, section in sections.items():
        if not isinstance(section, Mapping):
            hint = _section_of(name, section) or find_near(train, name)
            raise ConfigError(
                f"`{name}` is not a section of the settings: `{section!r}`",
                hint=hint or 'pass sections as mappings, such as `batch={"rollouts": 64}`',
            )
    file = None if config is None or isinstance(config, Mapping) else Path(config)
    given: dict[str, Mapping[str, Any]] = dict(config) if isinstance(config, Mapping) else {}
    over: dict[str, Mapping[str, Any]] = {**sections}
    if model is not None:
        over["model"] = model if isinstance(model, Mapping) else {"path": os.fspath(model)}
    if steps is not None:
        over["schedule"] = {**over.get("schedule", {}), "steps": steps}
    for name, section in over.items():
        given[name] = {**given.get(name, {}), **section}
    return file, given


def _section_of(name: str, value: object) -> str | None:
    """Return a hint for a field that was passed without its section."""
    from wander.train.config import GRPOSettings

    for section, field in GRPOSettings.model_fields.items():
        if name in getattr(field.annotation, "model_fields", ()):
            return f'pass `{section}={{"{name}": {value!r}}}`'
    return None


def _path_of(sections: Mapping[str, Mapping[str, Any]]) -> str | None:
    """Return the model in the sections, whose path is relative to the working directory."""
    path = sections.get("model", {}).get("path")
    return None if path is None else str(path)


@called_from_python
def sft(
    rows: Run | Iterable[Run] | str | os.PathLike[str],
    config: Config = None,
    /,
    *,
    model: Model = None,
    out: str | os.PathLike[str] | None = None,
    steps: int | None = None,
    min_reward: float | None = None,
    resume: bool = False,
    progress: bool = True,
    **sections: Mapping[str, Any],
) -> SFTResult:
    """Fine-tune a model on rollouts, like `wander model sft`. Requires `wander-sdk[train]`.

    - `rows`: a file that `wander runs data` wrote, or runs, whose rollouts with at least `min_reward` are
    used.
    - `config` and other keywords: settings, as for `train`.
    - `out`: the folder; the result is in its subfolder `model`. `resume=True` resumes the run in this folder.
    Raises `ConfigError` for an unknown setting, and `ClientError` if no rollout is selected.
    """
    from wander_client.training.run import require_alone
    from wander_client.training.tuning import resume_tuning, tune

    require_alone("fine-tuning")
    context = open_invocation(progress=progress)
    if out is None:
        raise UsageError("`out` is missing", hint='for example: `out="models/tuned"`')
    folder = Path(out)
    try:
        if resume:
            return resume_tuning(context, folder)
        file, given = _read_config(config, sections, model, steps)
        place = _find_rows(rows, folder, min_reward, context)
        return tune(context, place, folder, file, _path_of(given), [], given)
    except Interrupted as stopped:
        raise KeyboardInterrupt(f"{stopped}; resume with `resume=True`") from stopped


def _find_rows(
    rows: Run | Iterable[Run] | str | os.PathLike[str],
    folder: Path,
    min_reward: float | None,
    context: Invocation,
) -> Path:
    """Return the file with the rows. Rows from runs are selected into the folder."""
    from wander.train.data import select_rows, write_rows

    if isinstance(rows, str | os.PathLike) and not isinstance(rows, Run):
        if min_reward is not None:
            raise UsageError(
                "`min_reward` applies only to runs", hint="remove it: the rows in a file are already selected"
            )
        return Path(rows)
    runs = [rows] if isinstance(rows, Run) else list(rows)
    kept, report = select_rows((rollout for run in runs for rollout in run.rollouts), min_reward=min_reward)
    dropped = ", ".join(f"{count} {reason}" for reason, count in sorted(report.dropped.items()))
    if not kept:
        raise ClientError(
            f"all {report.rollouts} rollouts were dropped: {dropped}", hint="relax the conditions"
        )
    context.output.note(
        f"kept {report.kept} of {report.rollouts} rollouts" + (f"; dropped {dropped}" * bool(dropped))
    )
    write_rows(kept, folder / "rows.jsonl")
    return folder / "rows.jsonl"
