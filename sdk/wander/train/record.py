"""The run folder of a training run: manifest, metrics of every step, sample rollouts, learning curves, and
the digests of the weights that it saved.

It has the form of every other run (`wander view`, `wander post` take it); `kind` is `training`, and the
rollouts are a sample: the first group of every `output.rollouts_every`-th step.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from wander.clients.policy import PolicyClient
from wander.errors import RunError
from wander.evals import jsonl
from wander.evals.manifest import differing_pins, model_pin, new_manifest
from wander.evals.statistics import summarise
from wander.evals.store import RunFolder
from wander.models.loading import LoadedModel, weights_digest
from wander.posting import Checkpoint
from wander.train.config import GRPOSettings
from wander.train.environments import PinSource
from wander.train.rollouts import Assignment, RolloutSource, StepRollouts
from wander.wire import EnvironmentPin, RunManifest

METRICS = "metrics.jsonl"
CHECKPOINTS = "checkpoints.jsonl"


class TrainingRecord:
    """Writes what a GRPO run leaves behind."""

    def __init__(self, folder: RunFolder, settings: GRPOSettings) -> None:
        self.folder = folder
        self.settings = settings

    @classmethod
    def open(
        cls,
        path: Path,
        settings: GRPOSettings,
        source: RolloutSource,
        client: PolicyClient,
        loaded: LoadedModel,
        pin: PinSource | None = None,
        *,
        resume: bool = False,
    ) -> TrainingRecord:
        """Write the manifest before the first rollout, or check that a resumed run is the same one.

        Raises `RunError` when the folder holds a run already, or, on resume, another one.
        """
        manifest = training_manifest(settings, source, client, loaded, pin)
        if not resume:
            return cls(RunFolder.create(path, manifest), settings)
        folder = RunFolder.open(path)
        differing = differing_pins(folder.manifest, manifest)
        if differing:
            raise RunError(
                f"`{path}` was trained with other settings: {', '.join(differing)}",
                hint="resume with the settings it was started with, or choose another folder",
            )
        folder.resume()
        return cls(folder, settings)

    def keep(self, step: int, assignments: list[Assignment], played: StepRollouts) -> None:
        """Keep the first group of the step's rollouts, when it is this step's turn."""
        every = self.settings.output.rollouts_every
        if every == 0 or (step != 1 and step % every != 0):
            return
        first = assignments[0].position
        for assignment, rollout in zip(assignments, played.rollouts, strict=True):
            if assignment.position == first:
                self.folder.append(rollout)
        self.folder.sync()

    def keep_weights(self, step: int, folder: Path) -> None:
        """Keep the digest of weights that were just saved, so that evaluations of them find this run."""
        sha256 = weights_digest(folder)
        if sha256 is None:
            return
        made = Checkpoint(step=step, weights_sha256=sha256)
        earlier = [one for one in read_checkpoints(self.folder.path) if one.weights_sha256 != sha256]
        lines = [one.model_dump_json() + "\n" for one in (*earlier, made)]
        jsonl.write_whole(self.folder.path / CHECKPOINTS, "".join(lines).encode())

    def finish(self) -> None:
        """Derive the summary of what was kept and close the folder."""
        expected = self.folder.manifest.expected_rollouts
        self.folder.finish(summarise(self.folder.rollouts(), expected=expected))

    def close(self) -> None:
        """Close the folder as it is; the run can be resumed."""
        self.folder.close()


def training_manifest(
    settings: GRPOSettings,
    source: RolloutSource,
    client: PolicyClient,
    loaded: LoadedModel,
    pin: PinSource | None,
) -> RunManifest:
    """Return what pins the run: environment, every example it will play, starting weights, settings."""
    groups = settings.schedule.steps * settings.batch.groups
    examples = source.examples(range(min(groups, source.length or groups)))
    model = model_pin(client)
    model.weights_sha256 = weights_digest(loaded.path) if loaded.path else None
    return new_manifest(
        environment=pin(source.choice)
        if pin is not None
        else EnvironmentPin(name=source.info.name, info=source.info),
        model=model,
        examples=examples,
        rollouts_per_example=settings.batch.group_size,
        sampling=source.sampling,
        split="train",
        seed=source.run_seed,
        kind="training",
        training=settings.model_dump(mode="json"),
    )


def read_checkpoints(folder: Path) -> list[Checkpoint]:
    """Return which weights a training run saved, in the order in which it did."""
    file = folder / CHECKPOINTS
    if not file.is_file():
        return []
    return [Checkpoint.model_validate_json(line) for line in file.read_bytes().splitlines()]


def read_metrics(folder: Path) -> list[dict[str, Any]]:
    """Return the metrics of every finished step."""
    file = folder / METRICS
    if not file.is_file():
        raise RunError(f"`{folder}` has no {METRICS}", hint="give the folder of a training run")
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines() if line.strip()]
