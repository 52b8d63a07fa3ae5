"""One limiter for several evaluations, each of which counts its own calls."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from wander.clients.pace import Pace
from wander.clients.rate_limit import CallLimiter, LimiterStatus
from wander.wire import EndpointUse


class SharedLimiter(CallLimiter):
    """One evaluation's share of a limiter: bounds, paces and order are everybody's, the counts its own.

    `name` keeps the rollouts of evaluations apart that have the same ids. The bound that an evaluation itself
    asks for (`at_most`) does not count: the whole has one.
    """

    def __init__(self, whole: CallLimiter, name: str) -> None:
        super().__init__()
        self._whole = whole
        self._name = name

    @contextmanager
    def at_most(self, calls: int) -> Iterator[None]:
        """Change nothing."""
        yield

    def pace(self, endpoint: str) -> Pace:
        """Return the pace that all have at the endpoint of an address."""
        return self._whole.pace(endpoint)

    def begin(self, rollout_id: str) -> None:
        """Learn that a rollout begins: its calls leave before those of all that begin later."""
        self._whole.begin(self._own(rollout_id))

    def end(self, rollout_id: str) -> None:
        """Learn that a rollout ended."""
        self._whole.end(self._own(rollout_id))

    async def acquire(self, pace: Pace, rollout_id: str = "") -> float:
        """Wait until a call may leave; return when it did."""
        return await self._whole.acquire(pace, self._own(rollout_id))

    def release(self, pace: Pace) -> None:
        """Count a call as ended and let the next ones leave."""
        self._whole.release(pace)

    def give_up(self, pace: Pace, error: Exception) -> None:
        """Raise an error in every call that waits for an endpoint."""
        self._whole.give_up(pace, error)

    def use(self) -> EndpointUse:
        """Return what this evaluation asked; pauses hold up all."""
        own = EndpointUse(calls=self.calls, retries=self.retries, refusals=self.refusals)
        return own.model_copy(update={"paused_seconds": self._whole.use().paused_seconds})

    def status(self) -> LimiterStatus:
        """Return what is in flight, of all, and what keeps calls back."""
        return self._whole.status()

    def _own(self, rollout_id: str) -> str:
        return f"{self._name}/{rollout_id}"
