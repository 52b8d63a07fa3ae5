"""The port between a host (evaluator, trainer, hub) and an environment, wherever that environment runs.

`LocalEnvironment` (wander.environment) runs it in this process; `WorkerEnvironment`
(wander.worker.host.environment) in a virtual environment and process of its own. Hosts take either.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from wander.clients.base import Client
from wander.types import EnvironmentInfo, Example, Failure, Rollout, SamplingArgs

__all__ = ["EnvironmentHandle", "Player", "RolloutRequest", "Split"]

Split = Literal["train", "eval"]


@dataclass(frozen=True)
class RolloutRequest:
    """What to play: one rollout of an example, or a group that is scored together."""

    client: Client
    example: Example
    indices: tuple[int, ...]
    """Exactly one where `together` is false."""
    rollout_ids: tuple[str, ...]
    """One beside each index."""
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
        """Return a request; the ids are `example_id/index` unless given."""
        ids = rollout_ids or [f"{example.example_id}/{index}" for index in indices]
        given = sampling or SamplingArgs()
        return cls(client, example, tuple(indices), tuple(ids), run_seed, given, together)

    async def send(self, player: Player, example: Example | None = None) -> list[Rollout]:
        """Have a player play this, or the same of another example, by the methods that authors override.

        Rollouts of an example with a fault fail.
        """
        asked = self if example is None else replace(self, example=example)
        if (fault := asked.example.fault) is not None:
            failure = Failure(boundary="environment", type="DatasetError", message=fault)
            return make_failed_rollouts(asked.example, asked.indices, failure)
        name = "rollout_group" if self.together else "rollout"
        if getattr(getattr(player, name), "__func__", None) is getattr(Player, name):
            return await player.play_request(asked)  # as that one would ask for, again
        same: dict[str, Any] = {"run_seed": self.run_seed, "sampling": self.sampling}
        if self.together:
            same |= {"indices": self.indices, "rollout_ids": self.rollout_ids}
            return await player.rollout_group(self.client, asked.example, **same)
        same |= {"index": self.indices[0], "rollout_id": self.rollout_ids[0]}
        return [await player.rollout(self.client, asked.example, **same)]


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


class Player(ABC):
    """What plays rollouts: an environment, or a host's handle to one."""

    @abstractmethod
    async def play_request(self, request: RolloutRequest) -> list[Rollout]:
        """Play and score the request; return one rollout for each index, in order.

        Never raises for a failed rollout: the failure is in the record. Raises only `CancelledError`.
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
        """Play one episode to its end and score it.

        Never raises for a failed rollout: the failure is in the record, and such a rollout is not scored.
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
        """Play one episode for each index, all at once, and score them together; keep the indices' order.

        Hosts play the rollouts of one example this way when `info.group_rewards` is true; otherwise it is the
        same as playing them one by one. `rollout_ids` stand beside the indices. Never raises for a failed
        rollout: the failure is in its record, and it is left out of the group that is scored.
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


class EnvironmentHandle(Player):
    """A loaded environment."""

    @property
    @abstractmethod
    def info(self) -> EnvironmentInfo:
        """What the environment says about itself."""

    @property
    @abstractmethod
    def lost_reason(self) -> str | None:
        """Why its process ended and is not back, told more fully than a public record should; else None."""

    @property
    def processes(self) -> int:
        """The number of processes in which it plays."""
        return 1

    @property
    @abstractmethod
    def scoring_seconds(self) -> float:
        """Seconds for which synchronous reward functions let nothing else of their process go on."""

    @abstractmethod
    async def examples(self, split: Split, start: int = 0, count: int | None = None) -> list[Example]:
        """Return `count` examples from position `start` of the stored order; None means to the end.

        A row that cannot become an example is one with a `fault`, and its rollouts fail. An endless dataset
        with count None raises `DatasetError`. A split that the environment lacks falls back to the other one,
        as `Example.split` then says.
        """

    @abstractmethod
    async def openings(self) -> list[Example]:
        """Return an example for every position in which an episode may begin, in a fixed order.

        Empty where the environment does not declare that its choices can be walked exhaustively.
        """

    @abstractmethod
    async def close(self) -> None:
        """Run the environment's teardown and free its resources."""
