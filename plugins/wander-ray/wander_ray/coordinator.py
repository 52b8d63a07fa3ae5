"""The actor that all shards of a run share while they play. There is one for each run.

Shards and the driver call its methods. A restarted shard has a new `attempt`, and the permits of the earlier
attempt become free.
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
"""Seconds of silence after which a shard counts as dead, and its permits become free."""


@dataclass(frozen=True)
class Refusal:
    """A call that an endpoint refused, as `Pace.note_refused` takes it."""

    began_ago: float
    told: float | None


@dataclass(frozen=True)
class Trade:
    """The calls of one shard at one endpoint since its last report, and its requests."""

    endpoint: str
    released: int = 0
    """Calls that ended."""
    replaced: int = 0
    """Calls that ended, and that the shard replaced by other calls."""
    accepted: int = 0
    """Calls that the endpoint accepted."""
    refusals: tuple[Refusal, ...] = ()
    wanted: int = 0
    """Calls that wait."""
    spent: tuple[int, float] = (0, 0.0)
    """Tokens and USD of the shard so far."""


@dataclass(frozen=True)
class Terms:
    """Permits of a shard at an endpoint, until its next report."""

    granted: int
    """Number of waiting calls that may leave: at least one if any is wanted."""
    keep: int
    """Number of calls in flight that the shard may replace by others without asking."""
    spent: str | None
    """The budget that is spent, in words."""


@dataclass(frozen=True)
class Overview:
    """The progress of all shards."""

    progress: dict[str, list[Progress]]
    """Progress of each run's shards, by the run's folder."""
    tokens: int
    usd: float
    spent: str | None


class Coordinator:
    """Keeps the limits of all shards. `concurrency` applies to each endpoint."""

    def __init__(self, concurrency: int, budget_tokens: int | None, budget_usd: float | None) -> None:
        self._concurrency = concurrency
        self._limiters: dict[str, CallLimiter] = {}
        self._budget = SharedBudget(budget_tokens, budget_usd)
        self._attempts: dict[int, str] = {}
        self._held: Counter[tuple[int, str]] = Counter()
        """Calls in flight of each shard at each endpoint."""
        self._waiting: Counter[tuple[int, str]] = Counter()
        """Trades of each shard that wait for room at each endpoint."""
        self._heard: dict[int, float] = {}
        """When each shard last reported."""
        self._progress: dict[tuple[int, str], Progress] = {}
        self._stop = 0

    async def begin(self, shard: int, attempt: str) -> None:
        """Learn that a shard plays, and that its earlier attempts do not any more."""
        self._attempts[shard] = attempt
        self._free(shard)
        self._heard[shard] = monotonic()

    async def end(self, shard: int, attempt: str) -> None:
        """Learn that a shard does not play any more."""
        if self._attempts.get(shard) == attempt:
            del self._attempts[shard]
            self._free(shard)

    async def trade(self, shard: int, attempt: str, trade: Trade) -> Terms:
        """Take what a shard's calls came to, and return how many may leave."""
        self._require_current(shard, attempt)
        limiter = self._limiter(trade.endpoint)
        pace, now = limiter.pace(trade.endpoint), monotonic()
        self._budget.earlier[str(shard)] = trade.spent
        refused = min(trade.released, len(trade.refusals))
        self._release(shard, trade.endpoint, trade.released - refused)
        for _ in range(trade.replaced):
            pace.note_ended()
            pace.note_began(now)
        for _ in range(trade.accepted):
            pace.note_accepted(now)
        for number, one in enumerate(trade.refusals):  # each right after its call ended, as the pace counts
            self._release(shard, trade.endpoint, int(number < refused))
            pace.note_refused(now, now - one.began_ago, one.told)
        granted = await self._grant(shard, attempt, trade) if trade.wanted else 0
        kept = 0
        if pace.is_free(monotonic()) and not self._budget.is_bound:  # nothing but the bound on calls counts
            there = {shard for shard, at in (self._held + self._waiting) if at == trade.endpoint}
            kept = self._concurrency // max(1, len(there))
        return Terms(granted, kept, self._budget.spent)

    async def _grant(self, shard: int, attempt: str, trade: Trade) -> int:
        """Wait for room for the calls of a shard, and return for how many there is."""
        limiter, place = self._limiter(trade.endpoint), (shard, trade.endpoint)
        pace = limiter.pace(trade.endpoint)
        self._waiting[place] += 1
        try:
            await limiter.acquire(pace)
        finally:
            self._waiting[place] -= 1
        granted = 1
        while granted < trade.wanted and limiter.acquire_now(pace):
            granted += 1
        self._held[place] += granted
        if self._attempts.get(shard) != attempt:  # it died while it waited
            self._release(shard, trade.endpoint, granted)
        self._require_current(shard, attempt)
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
        """Stop all shards: the first call in an orderly way, the second one immediately."""
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

    def _require_current(self, shard: int, attempt: str) -> None:
        if self._attempts.get(shard) != attempt:
            raise RuntimeError(f"shard {shard} was started again elsewhere")

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
