"""The interface between a host (evaluator, trainer, hub) and an environment in any process.

`LocalEnvironment` (wander.environment) runs the environment in this process. `WorkerEnvironment`
(wander.worker.host.environment) runs it in a separate virtual environment and process. Hosts accept both.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from wander.clients.base import Client
from wander.types import EnvironmentInfo, Example, Failure, Rollout, SamplingArgs

__all__ = ["EnvironmentHandle", "RolloutPlayer", "RolloutRequest", "Split"]

Split = Literal["train", "eval"]


@dataclass(frozen=True)
class RolloutRequest:
    """A request to play a rollout of an example, or a group of rollouts that is scored together."""

    client: Client
    example: Example
    indices: tuple[int, ...]
    """Indexes of the rollouts; exactly one if `together` is false."""
    rollout_ids: tuple[str, ...]
    """Id of the rollout with each index."""
    run_seed: int
    sampling: SamplingArgs
    together: bool

    @classmethod
    def of(
        cls,
        client: Client,
        example: Example,
        indices: Sequence[int],
        *,
        run_seed: int = 0,
        sampling: SamplingArgs | None = None,
        rollout_ids: Sequence[str] | None = None,
        together: bool,
    ) -> RolloutRequest:
        """Return a request with the ids `example_id/index` unless other ids are given."""
        ids = rollout_ids or [f"{example.example_id}/{index}" for index in indices]
        given = sampling or SamplingArgs()
        return cls(client, example, tuple(indices), tuple(ids), run_seed, given, together)

    async def send(self, player: RolloutPlayer, example: Example | None = None) -> list[Rollout]:
        """Let a player play this request, or the same request for another example, by the methods that
        authors override.

        Rollouts of an example with a fault fail without being played.
        """
        request = self if example is None else replace(self, example=example)
        if (fault := request.example.fault) is not None:
            failure = Failure(boundary="environment", type="DatasetError", message=fault)
            return make_failed_rollouts(request.example, request.indices, failure)
        name = "rollout_group" if self.together else "rollout"
        if getattr(getattr(player, name), "__func__", None) is getattr(RolloutPlayer, name):
            # the default method would only send the same request again
            return await player.play_request(request)
        same: dict[str, Any] = {"run_seed": self.run_seed, "sampling": self.sampling}
        if self.together:
            same |= {"indices": self.indices, "rollout_ids": self.rollout_ids}
            return await player.rollout_group(self.client, request.example, **same)
        same |= {"index": self.indices[0], "rollout_id": self.rollout_ids[0]}
        return [await player.rollout(self.client, request.example, **same)]


def make_failed_rollouts(example: Example, indices: Iterable[int], failure: Failure) -> list[Rollout]:
    """Return the records of rollouts that were not played to their end."""
    return [
        Rollout(
            example_id=example.example_id,
            index=index,
            seed=example.seed,
            prompt=example.prompt,
            completion=[],
            failure=failure,
        )
        for index in indices
    ]


class RolloutPlayer(ABC):
    """Base of objects that play rollouts: environments, and hosts' handles to them."""

    @abstractmethod
    async def play_request(self, request: RolloutRequest) -> list[Rollout]:
        """Play and score the request; return a rollout for each index, in order.

        A failed rollout does not raise an error, because its record contains the failure. Raises only
        `CancelledError`.
        """

    async def rollout(
        self,
        client: Client,
        example: Example,
        *,
        index: int = 0,
        run_seed: int = 0,
        sampling: SamplingArgs | None = None,
        rollout_id: str | None = None,
    ) -> Rollout:
        """Play an episode to its end and score it.

        A failed rollout does not raise an error: its record contains the failure, and it is not scored.
        Raises only `CancelledError`, after the cleanup hooks have run.
        """
        request = RolloutRequest.of(
            client,
            example,
            [index],
            run_seed=run_seed,
            sampling=sampling,
            rollout_ids=None if rollout_id is None else [rollout_id],
            together=False,
        )
        (rollout,) = await self.play_request(request)
        return rollout

    async def rollout_group(
        self,
        client: Client,
        example: Example,
        *,
        indices: Sequence[int],
        run_seed: int = 0,
        sampling: SamplingArgs | None = None,
        rollout_ids: Sequence[str] | None = None,
    ) -> list[Rollout]:
        """Play an episode for each index concurrently, and score them together; the result has the indexes'
        order.

        Hosts use this method for the rollouts of an example if `info.group_rewards` is true. Otherwise the
        result is the same as that of playing them one by one. `rollout_ids` has an id for each index. A
        failed rollout does not raise an error: its record contains the failure, and it is left out of the
        group that is scored.
        """
        request = RolloutRequest.of(
            client,
            example,
            indices,
            run_seed=run_seed,
            sampling=sampling,
            rollout_ids=rollout_ids,
            together=True,
        )
        return await self.play_request(request)


class EnvironmentHandle(RolloutPlayer):
    """A loaded environment."""

    @property
    @abstractmethod
    def info(self) -> EnvironmentInfo:
        """Facts about the environment."""

    @property
    @abstractmethod
    def lost_reason(self) -> str | None:
        """Reason why its process ended and was not restarted, in more detail than a public record should
        have; else None."""

    @property
    def processes(self) -> int:
        """Number of processes that it plays in."""
        return 1

    @property
    @abstractmethod
    def scoring_seconds(self) -> float:
        """Total seconds that synchronous reward functions blocked their process."""

    @abstractmethod
    async def examples(self, split: Split, start: int = 0, count: int | None = None) -> list[Example]:
        """Return `count` examples from index `start` in the stored order; None means all remaining examples.

        A row that cannot become an example has a `fault`, and its rollouts fail. An endless dataset with
        `count=None` raises `DatasetError`. If the environment lacks a split, the other split is used, as
        shown by `Example.split`.
        """

    @abstractmethod
    async def openings(self) -> list[Example]:
        """Return an example for every possible initial position of an episode, in a fixed order.

        Empty unless the environment declares that its choices can be enumerated.
        """

    @abstractmethod
    async def close(self) -> None:
        """Run the environment's teardown and free its resources."""
