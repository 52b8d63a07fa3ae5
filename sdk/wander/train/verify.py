"""Verification of a training run: repeat its first steps from its recorded settings and initial weights, and
check its checkpoints.

The parts of every step are compared in order: the rollouts, their rewards, the update, the weights. The
repetition ends at the first difference, because all later steps follow from it. Only runs in exact mode can
be compared, because even two repetitions of a run in fast mode differ.
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import Any

from pydantic import Field, ValidationError
from transformers import TrainerCallback

from wander.errors import RunError
from wander.evals.store.folder import RunFolder
from wander.models.loading import weights_digest
from wander.train.config import (
    EvaluationSection,
    GRPOSettings,
    LoggingSection,
    OutputSection,
)
from wander.train.grpo import train_grpo
from wander.train.records.checkpoints import (
    BEST_MODEL,
    MODEL,
    SAVED,
    SEAL,
    find_faults,
    list_checkpoints,
    read_saved,
    read_seal,
)
from wander.train.records.files import read_best
from wander.train.records.record import Progress
from wander.train.records.reproduction import arithmetic, training_differences
from wander.train.records.step_hash import STEPS, Part, StepHash, read_steps, weights_hash
from wander.train.rollouts.environments import EnvironmentOpener, PinSource
from wander.train.settings.sections import StoppingSection
from wander.types import Record
from wander.wire import RunManifest

_COMPUTING = "reproduction."
"""Prefix of fields about the machine and software. The bits may be the same even if these fields differ."""


class StepDifference(Record):
    """The first difference of a repetition."""

    step: int
    part: Part


class TrainingVerification(Record):
    """The result of repeating a run's first steps."""

    run_id: str
    asked: int
    """Number of steps to repeat."""
    compared: int = 0
    weights_compared: int = 0
    """Number of steps whose weights were also compared; the record contains weights only of some steps."""
    difference: StepDifference | None = None
    refused: str | None = None
    """Reason why the run cannot be repeated bit for bit, or why no more steps were compared."""
    changed: list[str] = Field(default_factory=list)
    """Libraries and hardware that differ from the run's, which is the likely cause of different steps."""
    seconds: float = 0.0
    files: int = 0
    """Number of files of checkpoints and models whose digests were compared."""
    damaged: list[str] = Field(default_factory=list)
    """Files of checkpoints and models that changed since the run saved them, each with the reason."""

    @property
    def sound(self) -> bool:
        """Whether all files of the checkpoints and models are unchanged."""
        return not self.damaged

    @property
    def same(self) -> bool:
        """Whether all requested steps were repeated without a difference."""
        return self.difference is None and self.compared == self.asked


def verify_training(
    run: Path,
    open_environment: EnvironmentOpener,
    *,
    steps: int,
    pin: PinSource | None = None,
    progress: Progress | None = None,
) -> TrainingVerification:
    """Repeat a run's first `steps`, compare each with its hashes, and check the digests of the checkpoints.

    `open_environment` opens the environments in the run's manifest. Raises `RunError` for a folder that is
    not a training run.
    """
    started = time.monotonic()
    manifest = RunFolder.open(run).manifest
    if manifest.kind != "training":
        raise RunError(
            f"`{run}` is not a training run", hint=f"replay an evaluation with `wander runs replay {run}`"
        )
    recorded = read_steps(run / STEPS)
    files, damaged = check_files(run)
    report = TrainingVerification(run_id=manifest.run_id, asked=steps, files=files, damaged=damaged)
    comparable, why = _comparable(manifest, recorded, steps)
    if comparable == 0 or manifest.reproduction is None:
        return report.model_copy(update={"refused": why})
    comparison = _Comparison(manifest, recorded[:comparable])
    reproduction = manifest.reproduction
    settings = _read_settings(manifest, reproduction.device)
    try:
        with (
            tempfile.TemporaryDirectory(prefix="wander-training-") as folder,
            arithmetic(reproduction.mode, reproduction.threads),
        ):
            comparison.folder = Path(folder) / "run"
            result = train_grpo(
                open_environment,
                _without_watching(settings),
                comparison.folder,
                pin=pin,
                progress=progress,
                observers=[comparison],
            )
            if result.interrupted:
                raise KeyboardInterrupt
    except _OtherRun as error:
        why = str(error)
    return report.model_copy(
        update={
            "compared": comparison.compared,
            "weights_compared": comparison.weights_compared,
            "difference": comparison.difference,
            "refused": why if comparison.compared < steps and comparison.difference is None else None,
            "changed": comparison.changed,
            "seconds": time.monotonic() - started,
        }
    )


class _OtherRun(RunError):
    """Raised if the training would differ from the recorded run."""


class _Comparison(TrainerCallback):  # type: ignore[misc]
    """Compares every step with the record, and stops the training at the first difference."""

    folder: Path

    def __init__(self, manifest: RunManifest, recorded: list[StepHash]) -> None:
        self._manifest = manifest
        self._recorded = recorded
        self.compared = self.weights_compared = 0
        self.difference: StepDifference | None = None
        self.changed: list[str] = []

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Raise an error if the environment or the weights differ from the run's."""
        differences = training_differences(self._manifest, RunFolder.open(self.folder).manifest)
        self.changed = [
            str(difference) for difference in differences if difference.field.startswith(_COMPUTING)
        ]
        # The settings come from the manifest; only settings that do not influence the weights were changed.
        others = [
            difference
            for difference in differences
            if not difference.field.startswith((_COMPUTING, "training."))
        ]
        if others:
            raise _OtherRun("the training would differ from the run: " + "; ".join(map(str, others)))

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> Any:
        """Compare the finished step with the record."""
        if not logs or "loss" not in logs or self._done:
            return control
        repeated = read_steps(self.folder / STEPS)[-1]
        wanted = self._recorded[self.compared]
        if wanted.weights is not None and repeated.weights is None:
            repeated = repeated.model_copy(update={"weights": weights_hash(kwargs["model"])})
        part = wanted.first_difference(repeated)
        if part is not None:
            self.difference = StepDifference(step=repeated.step, part=part)
        self.compared += 1
        self.weights_compared += wanted.weights is not None
        control.should_training_stop |= self._done
        return control

    @property
    def _done(self) -> bool:
        return self.difference is not None or self.compared == len(self._recorded)


def _comparable(manifest: RunManifest, recorded: list[StepHash], steps: int) -> tuple[int, str | None]:
    """Return the number of first steps that can be compared, and the reason if it is smaller than `steps`."""
    reproduction = manifest.reproduction
    if reproduction is None or not recorded:
        return 0, "the run has no hashes of its steps"
    if reproduction.mode == "fast":
        return (
            0,
            f"the run was trained in fast mode, which gives different bits each time: {reproduction.reason}",
        )
    if reproduction.exact_steps is not None and reproduction.exact_steps < min(steps, len(recorded)):
        return reproduction.exact_steps, (
            f"after step {reproduction.exact_steps} the run continued with changes that were allowed: "
            f"{', '.join(sorted({change.field for change in reproduction.allowed}))}"
        )
    if len(recorded) < steps:
        return len(recorded), f"the run has only {len(recorded)} steps"
    return steps, None


def _read_settings(manifest: RunManifest, device: str) -> GRPOSettings:
    """Return the settings of a run, with the device that it used."""
    try:
        settings = GRPOSettings.model_validate(manifest.training)
    except ValidationError as error:
        raise RunError(f"the settings of run `{manifest.run_id}` cannot be read: {error}") from error
    return settings.model_copy(update={"model": settings.model.model_copy(update={"device": device})})


def _without_watching(settings: GRPOSettings) -> GRPOSettings:
    """Return settings without parts that do not influence the weights: evaluation, stopping, checkpoints,
    trackers."""
    return settings.model_copy(
        update={
            "evaluation": EvaluationSection(),
            "stopping": StoppingSection(collapse=False),
            "output": OutputSection(rollouts_every=0),
            "logging": LoggingSection(),
        }
    )


def check_files(run: Path) -> tuple[int, list[str]]:
    """Compare every file of a run's checkpoints and models with its digest.

    Returns the number of files, and a description of each problem.
    """
    best, saved = read_best(run), {checkpoint.weights_sha256 for checkpoint in read_saved(run)}
    if best is not None and best.weights_sha256 is not None:
        saved.add(best.weights_sha256)  # the run adds it to the list only when it ends
    files, damaged = 0, []
    folders = [checkpoint.path for checkpoint in list_checkpoints(run)]
    folders += [run / name for name in (MODEL, BEST_MODEL) if (run / name / SEAL).is_file()]
    for folder in folders:
        name = folder.relative_to(run).as_posix()
        try:
            digests = read_seal(folder).files
        except RunError as error:
            damaged.append(str(error))
            continue
        faults = [f"{name}/{file} {problem}" for file, problem in find_faults(folder, digests)]
        if not faults and weights_digest(folder) not in {None, *saved}:
            faults = [f"{name}: its weights are not listed in `{SAVED}`"]
        files += len(digests)
        damaged += faults
    return files, damaged
