"""The actor that all shards of a run share while they play. There is one for each run.

Shards and the driver call its methods. A restarted shard has a new `attempt`, and the earlier attempt stops.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from wander.evals.run.budget import SharedBudget

if TYPE_CHECKING:
    from wander.evals.run.runner import Progress


@dataclass(frozen=True)
class Overview:
    """The progress of all shards."""

    progress: dict[str, list[Progress]]
    """Progress of each run's shards, by the run's folder."""
    tokens: int
    usd: float
    spent: str | None


class Coordinator:
    """Collects the progress of all shards, and tells them when to stop."""

    def __init__(self, budget_tokens: int | None, budget_usd: float | None) -> None:
        self._budget = SharedBudget(budget_tokens, budget_usd)
        self._attempts: dict[int, str] = {}
        self._progress: dict[tuple[int, str], Progress] = {}
        self._stop = 0

    async def begin(self, shard: int, attempt: str) -> None:
        """Learn that a shard plays, and that its earlier attempts do not any more."""
        self._attempts[shard] = attempt

    async def report(
        self, shard: int, attempt: str, progress: dict[str, Progress], tokens: int, usd: float
    ) -> tuple[int, str | None]:
        """Take a shard's progress and what it spent; return whether to stop, and the budget if it is spent.

        An attempt that another one replaced must stop immediately.
        """
        if self._attempts.get(shard) != attempt:
            return 2, None
        self._progress.update({(shard, run): each for run, each in progress.items()})
        self._budget.earlier[str(shard)] = (tokens, usd)
        return self._stop, self._budget.spent

    async def stop(self) -> None:
        """Stop all shards: the first call in an orderly way, the second one immediately."""
        self._stop += 1

    async def look(self) -> Overview:
        """Return the progress of all shards."""
        progress: dict[str, list[Progress]] = {}
        for (_, run), each in self._progress.items():
            progress.setdefault(run, []).append(each)
        budget = self._budget
        return Overview(progress, budget.spent_tokens, budget.spent_usd, budget.spent)
