"""What the shards of a run share while they play: an actor, of which there is one.

Its methods are called by shards and the driver. A shard that is started again, elsewhere or here, comes with
another `attempt`, and what the earlier one held is free again.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from time import monotonic
from typing import TYPE_CHECKING

from wander.clients.rate_limit import CallLimiter
from wander.evals.run.budget import SharedBudget

if TYPE_CHECKING:
    from wander.evals.run.runner import Progress


_SILENT_SECONDS = 15.0
"""A shard that has not reported for so long is taken for dead: it may wait for room that its calls hold."""


@dataclass(frozen=True)
class Refusal:
    """A call that an endpoint refused, as `Pace.note_refused` takes it; times are ages."""

    began_ago: float
    retry_after: float | None
    status: int
    earlier: int


@dataclass(frozen=True)
class Trade:
    """What one shard did at one endpoint since it last said so, and wants now."""

    endpoint: str
    released: int = 0
    """Calls that ended."""
    accepted: int = 0
    """Calls that the endpoint took."""
    refusals: tuple[Refusal, ...] = ()
    wanted: int = 0
    """Calls that wait to leave."""


@dataclass(frozen=True)
class Overview:
    """How everything goes."""

    progress: dict[str, list[Progress]]
    """Of each run's shards, by the run's folder."""
    tokens: int
    usd: float
    spent: str | None


class Coordinator:
    """Holds the bounds of all shards; `concurrency` is that of each endpoint."""

    def __init__(self, concurrency: int, budget_tokens: int | None, budget_usd: float | None) -> None:
        self._concurrency = concurrency
        self._limiters: dict[str, CallLimiter] = {}
        self._budget = SharedBudget(budget_tokens, budget_usd)
        self._attempts: dict[int, str] = {}
        self._held: Counter[tuple[int, str]] = Counter()
        """Calls in flight of each shard at each endpoint."""
        self._heard: dict[int, float] = {}
        """When each shard last reported."""
        self._progress: dict[tuple[int, str], Progress] = {}
        self._stop = 0

    async def begin(self, shard: int, attempt: str) -> None:
        """Learn that a shard plays, and that its earlier attempts do not any more."""
        self._attempts[shard] = attempt
        self._free(shard)
        self._heard[shard] = monotonic()

    async def trade(self, shard: int, attempt: str, trade: Trade) -> int:
        """Take what a shard's calls came to, and return how many may leave: at least one if any is wanted."""
        if self._attempts.get(shard) != attempt:
            raise RuntimeError(f"shard {shard} was started again elsewhere")
        limiter = self._limiter(trade.endpoint)
        pace, now = limiter.pace(trade.endpoint), monotonic()
        self._release(shard, trade.endpoint, trade.released)
        for _ in range(trade.accepted):
            pace.note_accepted(now)
        for one in trade.refusals:
            began = now - one.began_ago
            pace.note_refused(now, began, one.retry_after, status=one.status, earlier=one.earlier)
        if not trade.wanted:
            return 0
        await limiter.acquire(pace)
        granted = 1
        while granted < trade.wanted and limiter.acquire_now(pace):
            granted += 1
        if self._attempts.get(shard) != attempt:  # it died while it waited
            for _ in range(granted):
                limiter.release(pace)
            raise RuntimeError(f"shard {shard} was started again elsewhere")
        self._held[shard, trade.endpoint] += granted
        return granted

    async def report(
        self, shard: int, attempt: str, progress: dict[str, Progress], tokens: int, usd: float
    ) -> tuple[int, str | None]:
        """Take how far a shard is and what it has spent; return whether to stop, and the budget if spent."""
        if self._attempts.get(shard) != attempt:  # what it plays now is for nobody
            return 2, None
        self._heard[shard] = monotonic()
        self._progress.update({(shard, run): each for run, each in progress.items()})
        self._budget.earlier[str(shard)] = (tokens, usd)
        return self._stop, self._budget.spent

    async def stop(self) -> None:
        """Have all shards end: the first time in order, the second at once."""
        self._stop += 1

    async def look(self) -> Overview:
        """Return how everything goes."""
        now = monotonic()
        for shard, heard in self._heard.items():
            if now - heard > _SILENT_SECONDS:
                self._free(shard)
        found: dict[str, list[Progress]] = {}
        for (_, run), each in self._progress.items():
            found.setdefault(run, []).append(each)
        budget = self._budget
        return Overview(found, budget.spent_tokens, budget.spent_usd, budget.spent)

    def _free(self, shard: int) -> None:
        """Count the calls of a shard as ended."""
        for (holder, endpoint), calls in list(self._held.items()):
            if holder == shard:
                self._release(shard, endpoint, calls)

    def _limiter(self, endpoint: str) -> CallLimiter:
        return self._limiters.setdefault(endpoint, CallLimiter(self._concurrency))

    def _release(self, shard: int, endpoint: str, calls: int) -> None:
        limiter = self._limiter(endpoint)
        calls = min(calls, self._held[shard, endpoint])
        for _ in range(calls):
            limiter.release(limiter.pace(endpoint))
        self._held[shard, endpoint] -= calls
