"""The run folder of a GRPO run: its manifest, the metrics and hashes of every step, sample rollouts, the
digests of saved weights, and its outcome.

It has the same form as other run folders, so `wander view` and `wander post` accept it. Its `kind` is
`training`, and its rollouts are a sample: the first group of every `output.rollouts_every`-th step.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from contextlib import AbstractContextManager
from datetime import UTC, datetime
from pathlib import Path
from time import perf_counter
from typing import Any

from wander.errors import RunError
from wander.evals.stats.summary import summarize_run
from wander.evals.store import jsonl
from wander.evals.store.folder import RunFolder
from wander.evals.store.manifest import model_pin, new_manifest, player_pins
from wander.models.loading import LoadedModel, weights_digest
from wander.models.policy import PolicyClient
from wander.rollout.spans import rollout_spans
from wander.train.config import GRPOSettings
from wander.train.distributed import World, current_world, shards_policy
from wander.train.records.checkpoints import (
    BATCH,
    BEST_MODEL,
    MODEL,
    SavedCheckpoint,
    checkpoint_to_resume,
    give_up_later,
    list_checkpoints,
    read_saved,
    read_seal,
    seal_checkpoint,
    seal_folder,
    write_saved,
)
from wander.train.records.files import (
    OUTCOME,
    BestCheckpoint,
    Outcome,
    Stopped,
    append_samples,
    read_samples,
    write_outcome,
    write_samples,
)
from wander.train.records.record import Progress, TrainingRecord
from wander.train.records.reproduction import (
    arithmetic,
    reproduction_of,
    training_differences,
)
from wander.train.records.step_hash import (
    STEPS,
    StepHash,
    WeightClock,
    read_steps,
    rewards_hash,
    rollouts_hash,
    update_hash,
)
from wander.train.rollouts.ahead import AHEAD, KeptStep
from wander.train.rollouts.environments import PinSource
from wander.train.rollouts.source import Assignment, RolloutSource
from wander.train.rollouts.step import PlayedStep, plan_examples
from wander.types import task_set_digest
from wander.wire import EnvironmentPin, RunManifest
from wander.wire.postings import Checkpoint
from wander.wire.reproduction import AllowedChange
from wander.wire.run_record import MixedEnvironment


class GRPORecord(TrainingRecord):
    """Writes the record of a GRPO run. Each of several processes has its own, in a separate folder."""

    def __init__(
        self,
        folder: RunFolder,
        settings: GRPOSettings,
        source: RolloutSource,
        world: World,
        checkpoint: SavedCheckpoint | None = None,
        progress: Progress | None = None,
    ) -> None:
        covered = checkpoint.step if checkpoint else 0
        super().__init__(folder.path, covered, progress, world)
        self.folder = folder
        self.settings = settings
        self.checkpoint = checkpoint
        """Checkpoint that a resumed run continues from; None means the beginning."""
        self._source = source
        # Hashing a sharded policy needs all processes, because each holds a part of it.
        self._hashes = world.is_main or shards_policy(settings)
        steps = [line for line in read_steps(self.path / STEPS) if line.step <= covered]
        last = steps[-1] if steps else None
        self._played = (last.rollouts, last.rewards) if last else None
        """Hashes of the rollouts that the next update learns from, which may be the same as those of the last
        update."""
        self._clock = WeightClock()
        self._spans = rollout_spans(folder.manifest) if world.is_main else None
        known = read_samples(self.path) if covered else []
        self._samples = [sample for sample in known if sample.step is not None and sample.step <= covered]
        jsonl.write_records(self.path / STEPS, steps)

    @classmethod
    def open(
        cls,
        path: Path,
        settings: GRPOSettings,
        source: RolloutSource,
        client: PolicyClient,
        loaded: LoadedModel,
        world: World,
        pin: PinSource | None = None,
        *,
        resume: bool = False,
        checkpoint: int | None = None,
        allow_changes: bool = False,
        progress: Progress | None = None,
    ) -> GRPORecord:
        """Write the manifest before the first rollout, or check that a resumed run is the same run.

        Raises `RunError` if the folder already contains a run, or if a resumed run would differ, with a list
        of all differences. `allow_changes` records the differences instead.
        """
        manifest, diff = make_manifest(settings, source, client, loaded, pin)
        if not resume:
            folder = RunFolder.create(path, manifest)
            if manifest.reproduction and manifest.reproduction.changes and manifest.reproduction.changes.file:
                jsonl.write_whole(path / manifest.reproduction.changes.file, diff)
            return cls(folder, settings, source, world, progress=progress)
        folder = RunFolder.open(path)
        start = checkpoint_to_resume(path, checkpoint)
        begun = start.step if start else 0
        differences = training_differences(folder.manifest, manifest)
        if differences and not allow_changes:
            listed = "".join(f"\n  {difference}" for difference in differences)
            raise RunError(
                f"`{path}` cannot be resumed, because these values changed since it started:{listed}",
                hint=f"restore them, or record the changes: `wander train --resume {path} --allow-changes`",
            )
        if start is not None:
            _require_processes(path, start, world.size)
        folder.resume()
        if (reproduction := folder.manifest.reproduction) and differences:
            at = datetime.now(UTC)
            changes = [
                AllowedChange(field=item.field, before=item.before, after=item.after, step=begun, at=at)
                for item in differences
            ]
            folder.change_manifest(
                reproduction=reproduction.model_copy(update={"allowed": [*reproduction.allowed, *changes]})
            )
        (path / OUTCOME).unlink(missing_ok=True)  # because the run has not ended
        folder.cut(read_seal(start.path).rollouts_bytes if start else 0)
        give_up_later(path, begun)
        return cls(folder, settings, source, world, start, progress)

    def on_train_begin(self, args: Any, state: Any, control: Any, **unused: Any) -> None:
        """Remove the samples of steps that will be repeated."""
        if self._takes_samples:
            write_samples(self.path, self._samples)

    def on_step_begin(self, args: Any, state: Any, control: Any, **unused: Any) -> None:
        """Play the fixed prompts before a step if samples are due."""
        if self._takes_samples and state.global_step % self.settings.output.rollouts_every == 0:
            self._play_samples(state.global_step)

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
        """Record a step and its hashes."""
        super().on_log(args, state, control, logs, **kwargs)
        if logs and "loss" in logs and self._hashes:
            self._hash_step(state, logs, kwargs.get("model"))

    def on_train_end(self, args: Any, state: Any, control: Any, **unused: Any) -> None:
        """Play the fixed prompts with the final weights, unless the run was interrupted."""
        if self._takes_samples and not self.stop_requested:
            self._play_samples(state.global_step)

    @property
    def _takes_samples(self) -> bool:
        output = self.settings.output
        return self.world.is_main and bool(output.rollouts_every and output.fixed_prompts)

    def _play_samples(self, step: int) -> None:
        """Let the policy play the first examples with the seeds of training; this does not influence the
        training."""
        if any(sample.step == step for sample in self._samples):
            return
        started = perf_counter()
        wanted, length = self.settings.output.fixed_prompts, self._source.length()
        count = min(wanted, length or wanted)
        played = self._source.play([Assignment(position, 0) for position in range(count)]).rollouts
        self.note_pause(perf_counter() - started, {})
        fresh = [rollout.model_copy(update={"step": step}) for rollout in played]
        self._samples += fresh
        append_samples(self.path, fresh)

    def _hash_step(self, state: Any, logs: Mapping[str, Any], model: Any) -> None:
        # All processes must hash a sharded policy, so this comes before the return: after a resume, only the
        # main process knows the rollouts that the update learns from.
        weights = self._clock.hash_weights(model, state.global_step, state.max_steps)
        if self._played is None:
            return
        rollouts, rewards = self._played
        line = StepHash(
            step=state.global_step,
            rollouts=rollouts,
            rewards=rewards,
            update=update_hash(logs),
            weights=weights,
        )
        with (self.path / STEPS).open("a", encoding="utf-8") as stream:
            stream.write(line.model_dump_json() + "\n")

    def seal(self, step: int) -> None:
        """Mark the checkpoint of a step as complete after all processes have written their parts."""
        self.world.exchange([])
        if self.world.is_main:
            self.keep_weights(step, seal_checkpoint(self.path, step, self.folder.plain_bytes()))

    def arithmetic(self) -> AbstractContextManager[None]:
        """Return a context that computes in the record's mode with its number of threads."""
        reproduction = self.folder.manifest.reproduction
        if reproduction is None:
            return contextlib.nullcontext()
        return arithmetic(reproduction.mode, reproduction.threads)

    def keep(self, step: int, played: PlayedStep, version: int) -> None:
        """Hash the rollouts of the steps from `step` on, and save their first group if a sample is due.

        `version` is the training step of the weights that played them, for turns that do not record it.
        """
        self._played = rollouts_hash(played.rollouts), rewards_hash(played.rollouts)
        if self._spans is not None:
            for rollout in played.rollouts:
                self._spans.add(rollout.model_copy(update={"step": step}))
        every, steps = self.settings.output.rollouts_every, self.settings.algorithm.num_iterations
        if every == 0 or (step != 1 and -step % every >= steps):
            return
        for rollout in played.groups[0].rollouts:
            versions = [turn.tokens.step for turn in rollout.turns if turn.tokens is not None]
            first = min((step for step in versions if step is not None), default=version)
            self.folder.append(rollout.model_copy(update={"step": first}))
        self.folder.sync()

    def keep_weights(self, step: int, folder: Path) -> None:
        """Record the digest of saved weights, so that evaluations of them can be linked to this run."""
        sha256 = weights_digest(folder)
        if sha256 is None:
            return
        line = Checkpoint(step=step, weights_sha256=sha256)
        earlier = [line for line in read_saved(self.path) if line.weights_sha256 != sha256]
        write_saved(self.path, [*earlier, line])

    def end(self, steps: int, stopped: Stopped | None, best: BestCheckpoint | None) -> Outcome:
        """Record the digests of the final models, the summary and the outcome.

        An interrupted run can be resumed, so its folder stays open.
        """
        interrupted = self.stop_requested
        if best is not None:
            self.keep_weights(best.step, self.path / BEST_MODEL)
        self.keep_weights(steps, self.path / MODEL)
        if self.world.is_main:
            seal_folder(self.path / MODEL, steps)
        if not interrupted:
            self.folder.finish(summarize_run(self.folder.manifest, self.folder.rollouts()))
        outcome = Outcome(
            steps=steps, finished=not interrupted, stopped=None if interrupted else stopped, best=best
        )
        write_outcome(self.path, outcome)
        return outcome

    def close(self) -> None:
        """Close the folder unfinished, so that the run can be resumed."""
        self.folder.close()


def _require_processes(run: Path, checkpoint: SavedCheckpoint, processes: int) -> None:
    """Raise `RunError` if a checkpoint contains rollouts of a different number of processes."""
    sharing = _count_sharing(checkpoint)
    if sharing in (None, processes):
        return
    step = next(
        (
            earlier.step
            for earlier in reversed(list_checkpoints(run))
            if earlier.step < checkpoint.step
            and _count_sharing(earlier) in (None, processes)
            and not earlier.fault()
        ),
        0,
    )
    raise RunError(
        f"the checkpoint of step {checkpoint.step} contains rollouts of {sharing} processes, "
        f"but now there are {processes}",
        hint=(f"resume from step {step}" if step else "start again")
        + f": `wander train --resume {run} --checkpoint {step} --allow-changes`",
    )


def _count_sharing(checkpoint: SavedCheckpoint) -> int | None:
    """Return the number of processes whose rollouts a checkpoint contains; None without rollouts."""
    ahead = {kept.process for kept in jsonl.read_records(checkpoint.path / AHEAD, KeptStep)}
    return len(ahead) or len(list(checkpoint.path.glob(BATCH.format("*")))) or None


def make_manifest(
    settings: GRPOSettings,
    source: RolloutSource,
    client: PolicyClient,
    loaded: LoadedModel,
    pin: PinSource | None,
) -> tuple[RunManifest, bytes]:
    """Return the manifest of the run, and the diff of uncommitted changes.

    The manifest contains the environment, every example that the run will play, the initial weights, the
    settings, and the machine and software.
    """
    reproduction, diff = reproduction_of(
        [opened.info for opened in source.environments],
        loaded.model.device,
        processes=current_world(settings.model.device).size,
        engine=settings.inference.engine,
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
    return manifest.model_copy(
        update={"reproduction": reproduction, "mixture": mixture, "players": players}
    ), diff
