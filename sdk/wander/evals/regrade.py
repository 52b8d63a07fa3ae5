"""Grades the rollouts of a run again in another version of its environment.

The recorded completions answer the model calls of the new version, as long as it asks exactly what the old
version asked. The new version computes the metrics and the reward. The new run therefore has the rewards that
the model would have got there, and it replays like any other run. No model is called.

| rollout | what happens to it |
|---|---|
| every model call is the same | graded again, and recorded in the new run |
| the new version asks something else | must be played again: it is missing from the new run |
| it failed, or its old record lacks an answer of a judge | must be played again |
| the new version does not have its example | left out |
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import groupby, islice
from pathlib import Path

from wander.clients.base import ModelRequest, ModelResponse
from wander.clients.replay import ReplayClient
from wander.errors import ConfigError
from wander.evals.run.plan import EvaluationPlan, planned_examples
from wander.evals.stats.summary import summarize_run
from wander.evals.store.examples import PackedExamples, RolloutOrder
from wander.evals.store.folder import RunFolder, run_folder, run_to_resume
from wander.evals.store.manifest import new_manifest
from wander.handle import EnvironmentHandle, RolloutRequest
from wander.types import Example, Rollout, canonical_json
from wander.wire import EnvironmentPin, RunManifest

PROMPT_CHANGED = "the new version asks the model something else"
FAILED_BEFORE = "the rollout failed"
NO_JUDGE = "the rewards need a model, and its answer is not on record"
NOT_RECORDED = "the run does not have the rollout"


@dataclass
class Regrading:
    """Number of rollouts of a run by what happened to them."""

    graded: int = 0
    """Rollouts that the new version graded from their recorded completions."""
    changed: int = 0
    """Graded rollouts whose reward changed."""
    failed: int = 0
    """Graded rollouts that failed in the new version; they are recorded as failed."""
    resumed: int = 0
    """Rollouts that an earlier session had graded."""
    to_play: Counter[str] = field(default_factory=Counter)
    """Rollouts that a model must play again, by reason."""
    gone: int = 0
    """Rollouts whose examples are not in the new version."""

    @property
    def is_complete(self) -> bool:
        """Whether no rollout has to be played again."""
        return not self.to_play


class RegradeClient(ReplayClient):
    """Answers with the recorded completions of rollouts, if the conversation is the recorded one."""

    async def complete(self, request: ModelRequest) -> ModelResponse:
        """Return the recorded completion; raises `ModelError` if the conversation differs from the record."""
        rollout = self._rollouts.get(request.rollout_id)
        if rollout is not None and request.turn < len(rollout.turns):
            length = rollout.turns[request.turn].context_messages
            asked = [*rollout.prompt, *rollout.completion][:length]
            if canonical_json(asked) != canonical_json(request.messages):
                raise self._lack(request.rollout_id, PROMPT_CHANGED)
        elif rollout is not None:
            raise self._lack(request.rollout_id, PROMPT_CHANGED)
        return await super().complete(request)


def plan_of(manifest: RunManifest) -> EvaluationPlan:
    """Return the plan of a run's evaluation. Raises `ConfigError` for runs that cannot be graded again."""
    if manifest.kind != "evaluation" or manifest.shard is not None:
        kind = "a shard" if manifest.shard is not None else f"of the kind `{manifest.kind}`"
        raise ConfigError(f"the run is {kind}; only whole evaluations can be graded again")
    if manifest.players:
        raise ConfigError("a run with several players cannot be graded again; replay it instead")
    return EvaluationPlan(
        num_examples=len(manifest.example_ids),
        rollouts_per_example=manifest.rollouts_per_example,
        split=manifest.split,
        seed=manifest.seed,
        sampling=manifest.sampling,
        shuffle="shuffled" in manifest.choice,
        strata="strata" in manifest.choice,
        notes=f"regraded from {manifest.run_id} ({manifest.environment.version or 'a folder'})",
    )


async def regrade(
    environment: EnvironmentHandle,
    pin: EnvironmentPin,
    recorded: RunFolder,
    run_dir: Path | None,
    *,
    concurrency: int = 64,
    on_progress: Callable[[int], None] = lambda done: None,
) -> Regrading:
    """Grade the rollouts of a recorded run in `environment`, and write the graded rollouts to `run_dir`.

    - `run_dir`: folder of the new run. If it has a run, this session continues it. With None, nothing is
      written, so the result is a plan.
    - `on_progress`: receives the number of rollouts that were looked at.

    The new run has the model, sampling and seed of the old one. Rollouts that must be played again are
    missing from it. Raises `ConfigError` for runs that cannot be graded again, and `RunError` if `run_dir`
    has another run.
    """
    old = recorded.manifest
    plan = plan_of(old)
    examples = await planned_examples(environment, plan)
    begun = run_to_resume(run_dir, resume=True)
    manifest = new_manifest(
        environment=pin,
        model=old.model,
        examples=examples,
        rollouts_per_example=plan.rollouts_per_example,
        sampling=plan.sampling,
        split=plan.split,
        seed=plan.seed,
        notes=plan.notes,
    ).model_copy(update={"choice": plan.choice, "spending": old.spending, "endpoints": old.endpoints})
    folder = run_folder(run_dir, manifest, begun)
    if begun is not None:
        begun.resume()
    result = Regrading()
    try:
        grader = _Grader(environment, old, plan, folder, result)
        done = folder.keys_done() if folder is not None else set()
        await grader.grade_all(recorded, examples, done, concurrency, on_progress)
        if folder is not None:
            summary = summarize_run(folder.manifest, folder.rollouts_in_order())
            if summary.rollouts == manifest.expected_rollouts:
                folder.finish(summary)
            else:
                folder.write_summary(summary)
    finally:
        if folder is not None:
            folder.close()
    return result


@dataclass
class _Grader:
    """Grades the rollouts of one run."""

    environment: EnvironmentHandle
    old: RunManifest
    plan: EvaluationPlan
    folder: RunFolder | None
    result: Regrading

    async def grade_all(
        self,
        recorded: RunFolder,
        examples: PackedExamples,
        done: set[tuple[str, int]],
        concurrency: int,
        on_progress: Callable[[int], None],
    ) -> None:
        """Grade the recorded rollouts that are not `done`, `concurrency` at a time."""
        unit = self.plan.rollouts_per_example if self.environment.info.group_rewards else 1
        order, result, seen = RolloutOrder(examples.ids, 1), self.result, 0
        with recorded.in_order() as lines:
            units = _units(lines, unit)
            while batch := list(islice(units, concurrency)):
                ready = []
                for rollouts in batch:
                    place = order.find((rollouts[0].example_id, 0))
                    if place is None:
                        result.gone += len(rollouts)
                        continue
                    seen += len(rollouts)
                    if done.issuperset(rollout.key for rollout in rollouts):
                        result.resumed += len(rollouts)
                    elif len(rollouts) < unit or any(rollout.failure is not None for rollout in rollouts):
                        result.to_play[FAILED_BEFORE] += len(rollouts)
                    else:
                        ready.append(self._grade(examples[place], rollouts))
                await asyncio.gather(*ready)
                on_progress(seen + result.gone)
        if unplayed := len(examples) * self.plan.rollouts_per_example - seen:
            result.to_play[NOT_RECORDED] = unplayed

    async def _grade(self, example: Example, rollouts: list[Rollout]) -> None:
        """Grade rollouts that are scored together, and record them unless the record lacks an answer."""
        client = RegradeClient(rollouts, self.old.model.name)
        request = RolloutRequest.of(
            client,
            example,
            [rollout.index for rollout in rollouts],
            run_seed=self.plan.seed,
            sampling=self.plan.sampling,
            together=self.environment.info.group_rewards,
        )
        graded = await self.environment.play_request(request)
        for rollout_id in request.rollout_ids:
            if (reason := client.lack(rollout_id)) is not None:
                known = reason if reason == PROMPT_CHANGED else NO_JUDGE
                self.result.to_play[known] += len(rollouts)
                return
        for before, after in zip(rollouts, graded, strict=True):
            self.result.graded += 1
            self.result.failed += after.failure is not None
            self.result.changed += after.reward != before.reward
            if self.folder is not None:
                self.folder.append(after)


def _units(rollouts: Iterable[Rollout], unit: int) -> Iterator[list[Rollout]]:
    """Yield the rollouts that are scored together. `rollouts` are in the order of their examples."""
    if unit == 1:
        yield from ([rollout] for rollout in rollouts)
    else:
        yield from (list(group) for _, group in groupby(rollouts, key=lambda rollout: rollout.example_id))
