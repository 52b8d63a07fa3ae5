"""Rollouts for training, played by the policy on any environment.

The environment runs on an event loop in a separate thread. A synchronous trainer can therefore request a
batch and wait, and the connection of a worker process stays open between steps. A failed rollout never stops
the step: it is played again, and if it still fails, it counts as unscored.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from time import monotonic, perf_counter
from typing import Any

from wander.clients.base import Client
from wander.errors import RunError
from wander.handle import EnvironmentHandle, RolloutRequest
from wander.loop_thread import LoopThread
from wander.models.policy import PolicyClient
from wander.rollout.garbage import fewer_collections
from wander.seeding import derived_seed
from wander.train.rollouts.concurrent_play import is_lost, play_concurrently
from wander.train.rollouts.environments import EnvironmentChoice, EnvironmentOpener, require_distinct
from wander.train.rollouts.opponents import Opponents
from wander.types import EnvironmentInfo, Example, Rollout, SamplingArgs

PAGE = 1000
"""Number of rows that are requested at a time to read their strata."""


@dataclass(frozen=True)
class Assignment:
    """A rollout to play: its row in the training order, and its index in its group."""

    position: int
    """Position in the training order, `epoch * length + row`."""
    index: int
    environment: int = 0
    """Number of the environment, if the run trains on several."""

    @property
    def group(self) -> tuple[int, int]:
        """Key that all rollouts of a group share."""
        return self.environment, self.position

    @property
    def name(self) -> str:
        """Id of the rollout in its step."""
        mixed = f"{self.environment}:" if self.environment else ""
        return f"{mixed}{self.position}/{self.index}"


@dataclass
class StepRollouts:
    """The rollouts of a step, in the requested order."""

    rollouts: list[Rollout]
    seconds: float = 0.0
    model_seconds: float = 0.0
    retried: int = 0
    sampled_tokens: int = 0
    entropy: float = 0.0
    """Mean over sampled tokens, in nats."""


Played = Callable[[int, int], None]
"""Function that is called with the number of finished rollouts and the number that are played together."""


class RolloutSource:
    """Plays training rollouts on one environment or several, with a single policy.

    A rollout that fails is played again up to `retries` times.
    """

    def __init__(
        self,
        open_environment: EnvironmentOpener,
        client: PolicyClient,
        *,
        sampling: SamplingArgs,
        run_seed: int,
        choices: Sequence[EnvironmentChoice] = (EnvironmentChoice(),),
        retries: int = 1,
        at_once: int | None = None,
        opponents: Opponents | None = None,
    ) -> None:
        """Open the environments.

        `at_once` limits the rollouts that play at the same time; None plays all requested rollouts.
        `opponents` play the other players; without them the policy plays all players.
        """
        self.opponents = opponents
        self.client = client
        self.sampling = sampling
        self.run_seed = run_seed
        self.choices = list(choices)
        self.retries = retries
        self.at_once = at_once
        self.environments: list[EnvironmentHandle] = []
        self.thread = LoopThread("wander-rollouts")
        """Loop on which the client and all environments of the run live, because connections belong to a
        single loop."""
        self.thread.open.push_async_callback(client.close)
        self._examples: dict[tuple[int, int], Example] = {}
        self._strata: dict[int, list[int | None]] = {}
        self._playing: dict[PolicyClient, float] = {}
        """Policies whose rollouts are being played, and the time when they started."""
        try:
            for choice in self.choices:
                self.environments.append(self.thread.enter(open_environment(choice)))
            require_distinct(self.labels)
            if opponents is not None:
                opponents.require(self.info)
            if any(opened.info.calls_tools for opened in self.environments):
                self.join(client).check_tools()
            self.join(client).check_sampling(sampling)
        except BaseException:
            self.thread.close()
            raise

    @property
    def info(self) -> EnvironmentInfo:
        """Information about the environment. A run with several environments returns that of the first."""
        return self.environments[0].info

    @property
    def labels(self) -> list[str]:
        """Names of the environments in the metrics."""
        return [
            choice.label or opened.info.name
            for choice, opened in zip(self.choices, self.environments, strict=True)
        ]

    def length(self, environment: int = 0) -> int | None:
        """Return the number of training rows, or None for an endless dataset."""
        return self.environments[environment].info.train_examples

    def strata(self, environment: int = 0) -> list[int | None]:
        """Return the stratum of every training row; empty if the environment does not declare strata."""
        length = self.length(environment)
        if not self.environments[environment].info.strata or length is None:
            return []
        strata = self._strata.setdefault(environment, [])
        for first in range(len(strata), length, PAGE):
            page = self.environments[environment].examples("train", first, min(PAGE, length - first))
            strata += [example.stratum for example in self.thread.run(page)]
        return strata

    def examples(self, positions: Sequence[int], environment: int = 0) -> list[Example]:
        """Return the examples at these positions in an environment's training order."""
        length = self.length(environment)
        rows = [position % length if length else position for position in positions]
        missing = sorted({row for row in rows if (environment, row) not in self._examples})
        # Each range of consecutive rows is requested at once, and no other rows.
        for _, run in groupby(enumerate(missing), key=lambda pair: pair[1] - pair[0]):
            asked = [row for _, row in run]
            fetched = self.thread.run(self.environments[environment].examples("train", asked[0], len(asked)))
            self._examples.update(
                ((environment, row), example) for row, example in zip(asked, fetched, strict=False)
            )
        return [self._examples[environment, row] for row in rows]

    def play(
        self,
        assignments: Sequence[Assignment],
        played: Played | None = None,
        client: PolicyClient | None = None,
    ) -> StepRollouts:
        """Play rollouts and return them in order, including rollouts that failed in every attempt.

        If `client` is None, the source's own client is used. Several threads may call this at the same time,
        each with its own client. `played` is called from another thread. Raises `RunError` if an environment
        lost a worker and no other worker can take over.
        """
        started, policy = perf_counter(), client or self.client
        everybody = self.join(policy)
        retried = 0
        with fewer_collections(len(assignments)), self._counted(policy):
            examples = self._examples_of(assignments)
            rollouts = self._play(everybody, assignments, examples, played=played)
            for attempt in range(1, self.retries + 1):
                failed = {number for number, rollout in enumerate(rollouts) if rollout.failure is not None}
                # If a reward function compares the rollouts of a group, the whole group is played again.
                together = {assignments[n].group for n in failed if self._scores_groups(assignments[n])}
                again = [n for n, asked in enumerate(assignments) if n in failed or asked.group in together]
                if not again:
                    break
                retried += len(again)
                replayed = self._play(
                    everybody, [assignments[n] for n in again], [examples[n] for n in again], attempt
                )
                for number, rollout in zip(again, replayed, strict=True):
                    rollouts[number] = rollout
            self._require_workers(assignments, rollouts)
            totals = policy.take_totals()
            others = [other.take_totals() for other in everybody.others.values()]  # type: ignore[attr-defined]
            return StepRollouts(
                rollouts=rollouts,
                seconds=perf_counter() - started,
                model_seconds=totals.seconds + sum(other.seconds for other in others),
                retried=retried,
                sampled_tokens=totals.tokens,
                entropy=totals.mean_entropy,
            )

    def join(self, client: PolicyClient) -> Client:
        """Return a client of the policy together with the clients of the other players."""
        return client if self.opponents is None else self.opponents.join(client)

    def _examples_of(self, assignments: Sequence[Assignment]) -> list[Example]:
        examples: dict[Assignment, Example] = {}
        for environment in range(len(self.environments)):
            part = [asked for asked in assignments if asked.environment == environment]
            examples |= zip(part, self.examples([asked.position for asked in part], environment), strict=True)
        return [examples[assignment] for assignment in assignments]

    def _require_workers(self, assignments: Sequence[Assignment], rollouts: Sequence[Rollout]) -> None:
        """Raise `RunError` if the last worker was lost, so that a step does not learn from a partial
        result."""
        for assignment, rollout in zip(assignments, rollouts, strict=True):
            if rollout.failure is not None and is_lost(rollout, for_good=True):
                reason = self.environments[assignment.environment].lost_reason or rollout.failure.message
                raise RunError(f"no worker is left to play the environment: {reason}", hint="check its log")

    def _scores_groups(self, assignment: Assignment) -> bool:
        return self.environments[assignment.environment].info.group_rewards

    def _play(
        self,
        client: Client,
        assignments: Sequence[Assignment],
        examples: Sequence[Example],
        attempt: int = 0,
        played: Played | None = None,
    ) -> list[Rollout]:
        # Rollouts that a reward function compares are played as a unit; all other rollouts are separate.
        pieces: dict[Any, list[int]] = {}
        for number, assignment in enumerate(assignments):
            key = assignment.group if self._scores_groups(assignment) else number
            pieces.setdefault(key, []).append(number)
        asked = []
        for numbers in pieces.values():
            first = assignments[numbers[0]]
            environment, length = self.environments[first.environment], self.length(first.environment)
            # Repeated rows get different random numbers; the rollouts of a group share them.
            epoch = first.position // length if length else 0
            request = RolloutRequest.of(
                client,
                examples[numbers[0]],
                [assignments[number].index for number in numbers],
                run_seed=derived_seed(self.run_seed, "epoch", epoch),
                sampling=self.sampling,
                rollout_ids=[assignments[n].name + (f"/{attempt}" if attempt else "") for n in numbers],
                together=environment.info.group_rewards,
            )
            asked.append((environment, request))
        over = 0

        def tell(ended: int) -> None:
            nonlocal over
            over += ended
            if played is not None:
                played(over, len(assignments))

        played_rollouts: dict[int, Rollout] = {}
        for numbers, rollouts in zip(
            pieces.values(),
            self.thread.run(play_concurrently(client, asked, tell, self.at_once)),
            strict=True,
        ):
            played_rollouts.update(zip(numbers, rollouts, strict=True))
        return [played_rollouts[number] for number in range(len(assignments))]

    @contextlib.contextmanager
    def _counted(self, policy: PolicyClient) -> Iterator[None]:
        self._playing[policy] = monotonic()
        try:
            yield
        finally:
            del self._playing[policy]

    def idle_seconds(self) -> float:
        """Return the seconds since the last turn of the current rollouts was sampled; 0 without rollouts."""
        playing = dict(self._playing)
        if not playing or any(policy.engine.is_sampling for policy in playing):
            return 0.0
        return monotonic() - max(max(began, policy.answered_at) for policy, began in playing.items())

    def interrupt(self) -> None:
        """Cancel the rollouts that other threads are playing."""
        self.thread.interrupt()

    def release(self, client: PolicyClient) -> None:
        """Close a client after its last use."""
        self.thread.run(client.close())

    def close(self) -> None:
        """Close the environments, the client's thread and the loop."""
        self.thread.close()
