"""Rollouts for training: played on any environment by the policy, turned into token sequences.

The environment lives on an event loop in a thread of its own, so a synchronous trainer can ask for a batch
and wait, and a worker process's connection stays open between steps. A failed rollout never costs the step:
it is played once more, and if that fails too it counts as unscored.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any, TypeVar

from wander.clients.policy import PolicyClient
from wander.errors import RunError
from wander.seeding import derived_rng, derived_seed
from wander.train.environments import EnvironmentChoice, EnvironmentOpener
from wander.types import EnvironmentInfo, Example, Rollout, SamplingArgs, TurnTokens

Result = TypeVar("Result")


@dataclass(frozen=True)
class Trajectory:
    """A rollout, or a part of one, as the tokens that the policy saw and sampled in one sequence."""

    prompt_ids: list[int]
    completion_ids: list[int]
    """Everything after the first prompt, the environment's tokens included."""
    mask: list[int]
    """1 for a token of the policy, 0 for one of the environment; as long as `completion_ids`."""
    logprobs: list[float]
    """Log-probability each policy token was sampled with; 0.0 for the environment's."""


def trajectories_of(rollout: Rollout) -> list[Trajectory]:
    """Join the turns of a rollout into sequences; none when a turn has no tokens.

    That is one sequence, unless the chat template rewrites history (some drop earlier reasoning): a turn
    whose context does not continue the tokens of the turn before it begins a sequence of its own. Each is
    what the model saw when it sampled, so each can be trained on.
    """
    turns = [turn.tokens for turn in rollout.turns if turn.tokens is not None]
    if len(turns) != len(rollout.turns):
        return []
    parts: list[list[TurnTokens]] = []
    known: list[int] = []
    for turn in turns:
        if parts and turn.prompt_ids[: len(known)] == known:
            parts[-1].append(turn)
        else:
            parts.append([turn])
        known = [*turn.prompt_ids, *turn.completion_ids]
    return [_joined(part) for part in parts]


def _joined(turns: Sequence[TurnTokens]) -> Trajectory:
    """Join turns of which each continues the one before it."""
    prompt = turns[0].prompt_ids
    ids: list[int] = []
    mask: list[int] = []
    logprobs: list[float] = []
    for turn in turns:
        between = turn.prompt_ids[len(prompt) + len(ids) :]
        ids += [*between, *turn.completion_ids]
        mask += [0] * len(between) + [1] * len(turn.completion_ids)
        logprobs += [0.0] * len(between) + list(turn.logprobs)
    return Trajectory(prompt, ids, mask, logprobs)


def trajectory_of(rollout: Rollout) -> Trajectory | None:
    """Return the sequence of a rollout that a step learns from; None when it has no turn with tokens.

    A step has one row a rollout. Of a rollout in several sequences, one is drawn by the rollout's seed and
    index; the advantage is the rollout's, whichever it is.
    """
    parts = trajectories_of(rollout)
    if len(parts) < 2:
        return parts[0] if parts else None
    return derived_rng("sequence", rollout.seed, rollout.index, len(rollout.turns)).choice(parts)


@dataclass(frozen=True)
class Assignment:
    """One rollout to play: which row of the training order, and which of its group."""

    position: int
    """Place in the training order; the environment's rows repeat in order when they run out."""
    index: int


@dataclass
class StepRollouts:
    """What one step played, in the order it was asked for."""

    rollouts: list[Rollout]
    trajectories: list[Trajectory | None]
    seconds: float = 0.0
    model_seconds: float = 0.0
    retried: int = 0
    sampled_tokens: int = 0
    entropy: float = 0.0
    """Mean over sampled tokens, nats."""
    failures: dict[str, int] = field(default_factory=dict)
    """Rollouts that failed twice, by boundary."""


class LoopThread:
    """An event loop in a thread of its own, for a synchronous caller."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, name="wander-rollouts", daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, Result]) -> Result:
        """Run a coroutine there and wait for its result; an interrupt of the caller cancels it."""
        future = asyncio.run_coroutine_threadsafe(work, self.loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def close(self) -> None:
        """Stop the loop and the thread."""
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()
        self.loop.close()


class RolloutSource:
    """Plays training rollouts on one environment with one policy."""

    def __init__(
        self,
        open_environment: EnvironmentOpener,
        client: PolicyClient,
        *,
        sampling: SamplingArgs,
        run_seed: int,
        choice: EnvironmentChoice | None = None,
    ) -> None:
        self.client = client
        self.choice = choice or EnvironmentChoice()
        self.sampling = sampling
        self.run_seed = run_seed
        self._thread = LoopThread()
        self._opening = open_environment(self.choice)
        try:
            self.environment = self._thread.run(self._opening.__aenter__())
        except BaseException:
            self._thread.close()
            raise
        self._examples: dict[int, Example] = {}

    @property
    def info(self) -> EnvironmentInfo:
        """What the environment says about itself."""
        return self.environment.info

    @property
    def length(self) -> int | None:
        """Number of training rows, or None when they are endless."""
        return self.info.train_examples

    def examples(self, positions: Sequence[int]) -> list[Example]:
        """Return the examples at these places of the training order."""
        rows = [position % self.length if self.length else position for position in positions]
        missing = sorted({row for row in rows if row not in self._examples})
        if missing:
            fetched = self._thread.run(
                self.environment.examples("train", missing[0], missing[-1] - missing[0] + 1)
            )
            self._examples |= dict(zip(range(missing[0], missing[-1] + 1), fetched, strict=True))
        return [self._examples[row] for row in rows]

    def play(self, assignments: Sequence[Assignment]) -> StepRollouts:
        """Play one step's rollouts and return them in order.

        Raises `RunError` when every single one failed: then nothing can be learnt, and going on hides it.
        """
        started = perf_counter()
        examples = self.examples([assignment.position for assignment in assignments])
        rollouts = self._thread.run(self._play(assignments, examples))
        again = self._to_play_again(assignments, rollouts)
        if again:
            replayed = self._thread.run(
                self._play([assignments[n] for n in again], [examples[n] for n in again], attempt=1)
            )
            for number, rollout in zip(again, replayed, strict=True):
                rollouts[number] = rollout
        totals = self.client.take_totals()
        failures: dict[str, int] = {}
        for rollout in rollouts:
            if rollout.failure is not None:
                failures[rollout.failure.boundary] = failures.get(rollout.failure.boundary, 0) + 1
        if rollouts and sum(failures.values()) == len(rollouts):
            failure = rollouts[0].failure
            assert failure is not None
            raise RunError(
                f"all {len(rollouts)} rollouts of a step failed twice, the first with "
                f"{failure.type}: {failure.message}",
                hint="run `wander eval` on this environment and model to see the failures",
            )
        return StepRollouts(
            rollouts=rollouts,
            trajectories=[trajectory_of(rollout) for rollout in rollouts],
            seconds=perf_counter() - started,
            model_seconds=totals.seconds,
            retried=len(again),
            sampled_tokens=totals.tokens,
            entropy=totals.mean_entropy,
            failures=failures,
        )

    def _to_play_again(self, assignments: Sequence[Assignment], rollouts: Sequence[Rollout]) -> list[int]:
        """Return the places of the rollouts that failed; of whole groups, where these are scored together."""
        failed = [number for number, rollout in enumerate(rollouts) if rollout.failure is not None]
        if not self.info.group_rewards:
            return failed
        positions = {assignments[number].position for number in failed}
        return [number for number, each in enumerate(assignments) if each.position in positions]

    async def _play(
        self, assignments: Sequence[Assignment], examples: Sequence[Example], attempt: int = 0
    ) -> list[Rollout]:
        names = [f"{a.position}/{a.index}" + (f"/{attempt}" if attempt else "") for a in assignments]
        # All begin before any asks, so that every batch holds every rollout still playing.
        for name in names:
            self.client.begin(name)
        play = self._play_groups if self.info.group_rewards else self._play_each
        try:
            return await play(names, assignments, examples)
        finally:
            for name in names:
                self.client.end(name)

    async def _play_each(
        self, names: Sequence[str], assignments: Sequence[Assignment], examples: Sequence[Example]
    ) -> list[Rollout]:
        return await asyncio.gather(
            *(
                self._play_one(name, assignment, example)
                for name, assignment, example in zip(names, assignments, examples, strict=True)
            )
        )

    async def _play_groups(
        self, names: Sequence[str], assignments: Sequence[Assignment], examples: Sequence[Example]
    ) -> list[Rollout]:
        """Play the rollouts of each example together, since a reward function compares them."""
        groups: dict[int, list[int]] = {}
        for number, assignment in enumerate(assignments):
            groups.setdefault(assignment.position, []).append(number)
        played = await asyncio.gather(
            *(
                self.environment.rollout_group(
                    self.client,
                    examples[numbers[0]],
                    indices=[assignments[number].index for number in numbers],
                    run_seed=self._seed_at(position),
                    sampling=self.sampling,
                    rollout_ids=[names[number] for number in numbers],
                )
                for position, numbers in groups.items()
            )
        )
        order = [number for numbers in groups.values() for number in numbers]
        found = dict(zip(order, (rollout for group in played for rollout in group), strict=True))
        return [found[number] for number in range(len(assignments))]

    async def _play_one(self, name: str, assignment: Assignment, example: Example) -> Rollout:
        try:
            return await self.environment.rollout(
                self.client,
                example,
                index=assignment.index,
                run_seed=self._seed_at(assignment.position),
                sampling=self.sampling,
                rollout_id=name,
            )
        finally:
            self.client.end(name)

    def _seed_at(self, position: int) -> int:
        """Return the run seed at a place of the training order.

        Rows that come again meet new chances; within a group they are shared.
        """
        epoch = position // self.length if self.length else 0
        return derived_seed(self.run_seed, "epoch", epoch)

    def close(self) -> None:
        """Close the environment, the client's thread and the loop."""
        try:
            self._thread.run(self._opening.__aexit__(None, None, None))
            self._thread.run(self.client.close())
        finally:
            self._thread.close()
