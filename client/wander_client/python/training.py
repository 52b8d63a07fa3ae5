"""`wander.train` and `wander.sft`: the code of the commands, called from Python."""

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

if TYPE_CHECKING:
    from wander.sandbox import SandboxPolicy
    from wander.train.grpo import GRPOResult
    from wander.train.sft import SFTResult

    from wander_client.training.phases import PhasedCommand, PhasedRun
    from wander_client.training.run import TrainingCommand

Model = str | os.PathLike[str] | Mapping[str, Any] | None
"""A checkpoint's folder, `smollm2`, a Hugging Face name; or a section: `{"path": ..., "lora_rank": 8}`."""
Config = str | os.PathLike[str] | Mapping[str, Mapping[str, Any]] | None
"""Settings as a TOML file, or as its sections."""


class TrainingRun(Run):
    """A finished training run: its folder, its model, and how it learnt."""

    def __init__(
        self, path: str | os.PathLike[str], result: GRPOResult, phases: Mapping[str, Path] | None = None
    ) -> None:
        super().__init__(path)
        self.phases = dict(phases or {})
        """The folder of each phase, by name; empty of a run without phases."""
        self.result = result
        """Steps, seconds, the reward of the first and the last tenth of the steps, the best checkpoint."""

    @property
    def checkpoint(self) -> Path:
        """Folder of the trained model, for `env.evaluate`."""
        return self.result.model

    @cached_property
    def history(self) -> list[dict[str, Any]]:
        """The metrics of every step."""
        from wander.train.records.files import read_metrics

        return read_metrics(self.path)

    @called_from_python
    def plot(self) -> Any:
        """Return the learning curves as one chart, None of a run of fewer than two steps.

        Needs `wander-sdk[plots]`.
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
            ("reward", f"{done.first_reward:.3f} → {done.final_reward:.3f}"),
            ("steps", f"{done.steps:,}, {done.rollouts:,} rollouts, {done.seconds:.0f} s"),
            ("folder", str(self.path)),
        ]

    def __repr__(self) -> str:
        done = self.result
        return (
            f"<training on {self.environment}: reward {done.first_reward:.3f} -> {done.final_reward:.3f}, "
            f"{counted(done.steps, 'step')}, in {self.path}>"
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
    """Make an untrained tiny model, as `wander model new tiny` does; needs `wander-sdk[train]`.

    Its tokenizer is made from transcripts. Pass either `environment` or `transcripts`, else it raises
    `UsageError`.

    - `out`: the model's folder, which is returned.
    - `environment`: plays the transcripts: a loaded one, or a name as `load` takes it, with `arguments`.
      `player` (`scripted:MODULE:FUNCTION`; without one, random answers) plays `episodes` games.
    - `transcripts`: runs to take them from.
    - `hidden`, `layers`, `vocabulary`: width, number of layers, largest number of tokens.
    - `characters`: spell words, one token per letter.
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
    """Return the name of an environment as the commands take it."""
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
    """Improve a policy by GRPO on an environment, as `wander train` does; needs `wander-sdk[train]`.

    - `environment`: a loaded one, whose name, arguments and sandbox count, or a name as `load` takes it.
    - `config`: a TOML file, which may have phases, or its sections as mappings; further keywords are
      sections over those: `train(env, model="smollm2", batch={"rollouts": 64})`.
    - `model`: a checkpoint's folder, `smollm2`, or a Hugging Face name; `steps`: of the policy.
    - `out`: the run's folder, by default a new one below `runs`; `resume`: the folder of a run to go on with.

    The call returns when the run ends, of phases the last run of GRPO with the model that all of them made;
    interrupted, it finishes its step and keeps a checkpoint. Raises
    `ConfigError` for a setting that there is not, `ClientError` where learning collapsed.
    """
    from wander_client.training import phases as training_phases
    from wander_client.training.run import fresh_run_dir, new_run_dir, require_unfinished, train_and_tell

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
                f"a run resumes with the settings it was started with: `{given[0]}` cannot change",
                hint="give `resume` alone",
            )
        # Of a run that somebody else began, all settings are the given ones.
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
            raise ClientError(f"`{folder}` holds a run already", hint=f'go on with `resume="{folder}"`')
    try:
        if isinstance(command, training_phases.PhasedCommand):
            return _train_phases(
                training_phases.PhasedRun(context, command, folder), resume=resume is not None
            )
        done = train_and_tell(context, command, folder, resume=resume is not None)
    except Interrupted as stopped:
        raise KeyboardInterrupt(f"{stopped}; go on with `resume`") from stopped
    assert done is not None, "one process alone calls this"
    return TrainingRun(done.folder, done.result)


def _context_of(
    environment: object, hub: str | None, token: str | None, sandbox: bool | None, *, progress: bool
) -> tuple[Invocation, SandboxPolicy | None]:
    """Return settings, output and sandbox: those of an environment that is loaded, or what is asked for."""
    if not isinstance(environment, LoadedEnvironment):
        context = open_invocation(hub, token, progress=progress)
        return context, choose_policy(
            sandbox, [], default=isinstance(environment, str) and confines(context.settings, environment)
        )
    if given := [name for name, value in (("hub", hub), ("token", token), ("sandbox", sandbox)) if value]:
        raise UsageError(f"`{given[0]}` is that of the loaded environment", hint="give it to `wander.load`")
    context = environment._loaded.context
    if not progress:
        context = copy(context)
        context.output = PythonOutput(progress=False)
    return context, environment._loaded.sandbox


def _train_phases(run: PhasedRun, *, resume: bool) -> TrainingRun:
    """Run the phases that are not finished; return the last of GRPO, with the model of the last of all."""
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
    """Return what is run; `said` is whether the program asked for the sandbox, or against it."""
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
        made = new_command(*asked)
        return made if said is False else training_phases.confine_mixture(context.settings, made)
    if steps is not None:
        only = f'phases={{"{phased.phases[-1].name}": {{"schedule": {{"steps": {steps}}}}}}}'
        raise UsageError("`steps` does not say which phase it is for", hint=f"write `{only}`")
    if not any(phase.kind == "grpo" for phase in phased.phases):
        raise UsageError(
            f"no phase of `{file}` is GRPO, whose run `wander.train` returns",
            hint=f"run `wander train {spec} {file}`, or fine-tune with `wander.sft`",
        )
    return phased if said is False else training_phases.confine_mixture(context.settings, phased)


def _read_config(
    config: Config, sections: Mapping[str, Mapping[str, Any]], model: Model, steps: int | None
) -> tuple[Path | None, dict[str, Mapping[str, Any]]]:
    """Return the file of settings, and the sections that are given over it."""
    for name, section in sections.items():
        if not isinstance(section, Mapping):
            hint = _section_of(name, section) or find_near(train, name)
            raise ConfigError(
                f"`{name}` is no section of settings: it is `{section!r}`",
                hint=hint or 'write sections as mappings, such as `batch={"rollouts": 64}`',
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
    """Return the hint for a field that was given without its section."""
    from wander.train.config import GRPOSettings

    for section, field in GRPOSettings.model_fields.items():
        if name in getattr(field.annotation, "model_fields", ()):
            return f'write `{section}={{"{name}": {value!r}}}`'
    return None


def _path_of(sections: Mapping[str, Mapping[str, Any]]) -> str | None:
    """Return the model that sections name, which is then looked for from here."""
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
    """Fine-tune a model on rollouts, as `wander model sft` does; needs `wander-sdk[train]`.

    - `rows`: a file of `wander runs data`, or runs, whose rollouts of at least `min_reward` are taken.
    - `config` and further keywords: settings as for `train`.
    - `out`: the folder; its `model` is the result. `resume=True` goes on with the run there.

    Raises `ConfigError` for a setting that there is not, `ClientError` where no rollout passes.
    """
    from wander_client.training.run import require_alone
    from wander_client.training.tuning import go_on, tune

    require_alone("fine-tuning")
    context = open_invocation(progress=progress)
    if out is None:
        raise UsageError("the folder of the model is missing", hint='pass `out="models/tuned"`')
    folder = Path(out)
    try:
        if resume:
            return go_on(context, folder)
        file, given = _read_config(config, sections, model, steps)
        place = _find_rows(rows, folder, min_reward, context)
        return tune(context, place, folder, file, _path_of(given), [], given)
    except Interrupted as stopped:
        raise KeyboardInterrupt(f"{stopped}; go on with `resume=True`") from stopped


def _find_rows(
    rows: Run | Iterable[Run] | str | os.PathLike[str],
    folder: Path,
    min_reward: float | None,
    context: Invocation,
) -> Path:
    """Return the file of the rows, those of runs selected into the folder."""
    from wander.train.data import select_rows, write_rows

    if isinstance(rows, str | os.PathLike) and not isinstance(rows, Run):
        if min_reward is not None:
            raise UsageError("`min_reward` selects from runs", hint="leave it out: rows are selected already")
        return Path(rows)
    runs = [rows] if isinstance(rows, Run) else list(rows)
    kept, report = select_rows((rollout for run in runs for rollout in run.rollouts), min_reward=min_reward)
    dropped = ", ".join(f"{count} {reason}" for reason, count in sorted(report.dropped.items()))
    if not kept:
        raise ClientError(
            f"none of {report.rollouts} rollouts can be learnt from: {dropped}", hint="ask for less"
        )
    context.output.note(
        f"kept {report.kept} of {report.rollouts} rollouts" + (f"; dropped {dropped}" * bool(dropped))
    )
    write_rows(kept, folder / "rows.jsonl")
    return folder / "rows.jsonl"
