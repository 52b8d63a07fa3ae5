"""The run folder of a training run: manifest, metrics of every step, sample rollouts, learning curves, and
the digests of the weights that it saved.

It has the form of every other run (`wander view`, `wander post` take it); `kind` is `training`, and the
rollouts are a sample: the first group of every `output.rollouts_every`-th step.
"""

from __future__ import annotations

import contextlib
from contextlib import AbstractContextManager
from datetime import UTC, datetime
from pathlib import Path

from transformers import TrainerCallback

from wander.errors import RunError
from wander.evals.stats.summary import summarise_run
from wander.evals.store import jsonl
from wander.evals.store.folder import RunFolder
from wander.evals.store.manifest import model_pin, new_manifest, player_pins
from wander.models.loading import LoadedModel, weights_digest
from wander.models.policy import PolicyClient
from wander.train.config import GRPOSettings
from wander.train.distributed import World, current_world, shards_policy
from wander.train.records.checkpoints import (
    BATCH,
    SavedCheckpoint,
    checkpoint_to_resume,
    give_up_later,
    list_checkpoints,
    seal_checkpoint,
    seal_model,
    write_saved,
)
from wander.train.records.checkpoints import read_saved as read_checkpoints
from wander.train.records.outcome import OUTCOME
from wander.train.records.reproduction import (
    arithmetic,
    looseness,
    reproduction_of,
    training_differences,
)
from wander.train.records.step_hash import STEPS, StepHashes
from wander.train.rollouts.ahead import AHEAD, KeptStep
from wander.train.rollouts.environments import PinSource
from wander.train.rollouts.source import RolloutSource
from wander.train.rollouts.step import PlayedStep, plan_examples
from wander.train.trainer import OnSave
from wander.types import task_set_digest
from wander.wire import EnvironmentPin, RunManifest
from wander.wire.postings import Checkpoint
from wander.wire.reproduction import AllowedChange
from wander.wire.run_record import MixedEnvironment


class TrainingRecord:
    """Writes what a GRPO run leaves behind."""

    def __init__(
        self, folder: RunFolder, settings: GRPOSettings, checkpoint: SavedCheckpoint | None = None
    ) -> None:
        self.folder = folder
        self.settings = settings
        self.checkpoint = checkpoint
        """Where a resumed run goes on; None from the beginning."""
        begun = checkpoint.step if checkpoint else 0
        self.hashes = StepHashes(folder.path / STEPS, keep=begun)

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
        checkpoint: int | None = None,
        allow_changes: bool = False,
    ) -> TrainingRecord:
        """Write the manifest before the first rollout, or check that a resumed run is the same one.

        Raises `RunError` when the folder holds a run already, or, on resume, another one, and names all that
        differs; `allow_changes` writes that into the record instead.
        """
        manifest, diff = make_manifest(settings, source, client, loaded, pin)
        if not resume:
            folder = RunFolder.create(path, manifest)
            if manifest.reproduction and manifest.reproduction.changes and manifest.reproduction.changes.file:
                jsonl.write_whole(path / manifest.reproduction.changes.file, diff)
            return cls(folder, settings)
        folder = RunFolder.open(path)
        found = checkpoint_to_resume(path, checkpoint)
        begun = found.step if found else 0
        differences = training_differences(folder.manifest, manifest)
        if differences and not allow_changes:
            listed = "".join(f"\n  {each}" for each in differences)
            raise RunError(
                f"`{path}` would not go on as it was begun:{listed}",
                hint=f"restore that, or have it recorded: `wander train --resume {path} --allow-changes`",
            )
        if found is not None:
            _require_processes(path, found, current_world(settings.model.device).size)
        folder.resume()
        if (made := folder.manifest.reproduction) and differences:
            at = datetime.now(UTC)
            changes = [
                AllowedChange(field=each.field, before=each.before, after=each.after, step=begun, at=at)
                for each in differences
            ]
            folder.set_reproduction(made.model_copy(update={"allowed": [*made.allowed, *changes]}))
        (path / OUTCOME).unlink(missing_ok=True)  # it has not ended
        folder.cut(found.seal.rollouts_bytes if found else 0)
        give_up_later(path, begun)
        return cls(folder, settings, found)

    def callbacks_of(self, world: World) -> list[TrainerCallback]:
        """Return what the trainer must call in a process, after all that writes into a checkpoint."""

        def seal(step: int) -> None:
            world.exchange([])  # until all processes have written their part of it
            if world.is_main:
                sealed = seal_checkpoint(self.folder.path, step, self.folder.plain_bytes())
                self.keep_weights(step, sealed)

        # To hash a sharded policy takes all processes, each of which has its part of it.
        hashes = [self.hashes] if world.is_main or shards_policy(self.settings) else []
        return [OnSave(seal), *hashes]

    def arithmetic(self) -> AbstractContextManager[None]:
        """Compute as the record says: in its mode, with its number of threads."""
        made = self.folder.manifest.reproduction
        return arithmetic(made.mode, made.threads) if made else contextlib.nullcontext()

    def keep(self, step: int, played: PlayedStep, version: int) -> None:
        """Hash the rollouts of the steps from `step` on, and keep their first group when it is their turn.

        `version` counts the updates before the weights that played them, where their turns do not tell it.
        """
        self.hashes.take(played.rollouts)
        every, steps = self.settings.output.rollouts_every, self.settings.algorithm.num_iterations
        if every == 0 or (step != 1 and -step % every >= steps):
            return
        for rollout in played.groups[0].rollouts:
            told = [turn.tokens.step for turn in rollout.turns if turn.tokens is not None]
            first = min((step for step in told if step is not None), default=version)
            self.folder.append(rollout.model_copy(update={"step": first}))
        self.folder.sync()

    def keep_weights(self, step: int, folder: Path) -> None:
        """Keep the digest of weights that were just saved, so that evaluations of them find this run."""
        sha256 = weights_digest(folder)
        if sha256 is None:
            return
        made = Checkpoint(step=step, weights_sha256=sha256)
        earlier = [one for one in read_checkpoints(self.folder.path) if one.weights_sha256 != sha256]
        write_saved(self.folder.path, [*earlier, made])

    def keep_model(self, step: int, folder: Path) -> None:
        """Keep the digests of the model that the run ends with."""
        self.keep_weights(step, folder)
        seal_model(self.folder.path, folder.name)

    def finish(self) -> None:
        """Derive the summary of what was kept and close the folder."""
        folder = self.folder
        folder.finish(summarise_run(folder.manifest, folder.rollouts()))

    def close(self) -> None:
        """Close the folder as it is; the run can be resumed."""
        self.folder.close()


def _require_processes(run: Path, checkpoint: SavedCheckpoint, processes: int) -> None:
    """Raise `RunError` where a checkpoint keeps rollouts that other processes share than so many."""
    sharing = _count_sharing(checkpoint)
    if sharing in (None, processes):
        return
    step = next(
        (
            one.step
            for one in reversed(list_checkpoints(run))
            if one.step < checkpoint.step and _count_sharing(one) in (None, processes) and not one.fault()
        ),
        0,
    )
    raise RunError(
        f"the checkpoint of step {checkpoint.step} keeps rollouts for {sharing} processes to share, "
        f"and now there are {processes}",
        hint=f"`wander train --resume {run} --checkpoint {step} --allow-changes` goes on "
        + (f"from that of step {step}" if step else "from the beginning"),
    )


def _count_sharing(checkpoint: SavedCheckpoint) -> int | None:
    """Return how many processes share the rollouts that a checkpoint keeps; None where it keeps none."""
    ahead = {kept.process for kept in jsonl.read_records(checkpoint.path / AHEAD, KeptStep)}
    return len(ahead) or len(list(checkpoint.path.glob(BATCH.format("*")))) or None


def make_manifest(
    settings: GRPOSettings,
    source: RolloutSource,
    client: PolicyClient,
    loaded: LoadedModel,
    pin: PinSource | None,
) -> tuple[RunManifest, bytes]:
    """Return what pins the run, and the diff of uncommitted changes.

    That is environment, every example it will play, starting weights, settings, and what computes.
    """
    made, diff = reproduction_of(
        [each.info for each in source.environments],
        loaded.model.device,
        processes=current_world(settings.model.device).size,
        looseness=looseness(settings),
    )
    examples = plan_examples(source, settings)
    pins = [
        pin(choice) if pin is not None else EnvironmentPin(name=opened.info.name, info=opened.info)
        for choice, opened in zip(source.choices, source.environments, strict=True)
    ]
    model = model_pin(client)
    model.weights_sha256 = weights_digest(loaded.path) if loaded.path else None
    model.revision = loaded.revision
    manifest = new_manifest(
        environment=pins[0],
        model=model,
        examples=examples[0],
        rollouts_per_example=settings.batch.group_size,
        sampling=source.sampling,
        split="train",
        seed=source.run_seed,
        kind="training",
        training=settings.on_record(),
    )
    mixture = [
        MixedEnvironment(
            label=label,
            weight=section.weight,
            environment=environment,
            examples=len(own),
            task_set_sha256=task_set_digest(own),
        )
        for label, section, environment, own in zip(
            source.labels, settings.environments, pins, examples, strict=bool(settings.environments)
        )
    ]
    players = player_pins(source.join(client))
    return manifest.model_copy(update={"reproduction": made, "mixture": mixture, "players": players}), diff
