"""The port between a host (evaluator, trainer, hub) and an environment, wherever that environment runs.

`LocalEnvironment` (wander.environment) runs it in this process; `WorkerEnvironment`
(wander.worker.host.environment) in a virtual environment and process of its own. Hosts take either.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, Protocol

from wander.clients.base import Client
from wander.types import EnvironmentInfo, Example, Rollout, SamplingArgs

Split = Literal["train", "eval"]


class EnvironmentHandle(Protocol):
    """A loaded environment."""

    @property
    def info(self) -> EnvironmentInfo:
        """What the environment says about itself."""
        ...

    @property
    def lost_reason(self) -> str | None:
        """Why its process ended and is not back, told more fully than a public record should; else None."""
        ...

    async def examples(self, split: Split, start: int = 0, count: int | None = None) -> list[Example]:
        """Return `count` examples from position `start` of the stored order; None means to the end.

        An endless dataset with count None raises `DatasetError`. A split that the environment lacks falls
        back to the other one, as `Example.split` then says.
        """
        ...

    async def openings(self) -> list[Example]:
        """Return an example for every position in which an episode may begin, in a fixed order.

        Empty where the environment does not declare that its choices can be walked exhaustively.
        """
        ...

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

        Never raises for a failed rollout: the failure is in the record. Raises only `CancelledError`.
        """
        ...

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
        """Play one episode an index, at the same time, and score them together; in the indices' order.

        Hosts play the rollouts of one example this way when `info.group_rewards` is true. `rollout_ids`
        stand beside the indices. Never raises for a failed rollout: the failure is in its record, and it
        is left out of the group that is scored.
        """
        ...

    async def close(self) -> None:
        """Run the environment's teardown and free its resources."""
        ...
