"""When another rollout begins: whenever a model call could be made for it."""

from __future__ import annotations

import asyncio
from collections import deque


class Admission:
    """Counts the rollouts that need the model: those that ask it, wait for that, or have not asked yet.

    A rollout whose environment or tools are at work is not counted, so another may begin in the meantime.
    """

    def __init__(self, calls: int) -> None:
        self._calls = calls
        self._asking = 0
        self._unasked: set[str] = set()
        self._waiting: deque[asyncio.Future[None]] = deque()

    async def enter(self, rollout_ids: list[str]) -> None:
        """Wait until these rollouts, played together, may begin; they count from then on."""
        while self._asking and self._asking + len(rollout_ids) > self._calls:
            turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append(turn)
            await turn
        self._asking += len(rollout_ids)
        self._unasked.update(rollout_ids)

    def leave(self, rollout_ids: list[str]) -> None:
        """Count rollouts as ended."""
        for rollout_id in rollout_ids:
            self._ask(rollout_id)

    def begin_call(self, rollout_id: str) -> None:
        """Count a rollout that begins a call."""
        self._asking += 1
        self._ask(rollout_id)

    def end_call(self) -> None:
        """Count a call that ended."""
        self._asking -= 1
        self._next()

    def _ask(self, rollout_id: str) -> None:
        if rollout_id in self._unasked:
            self._unasked.discard(rollout_id)
            self._asking -= 1
            self._next()

    def _next(self) -> None:
        """Let whoever waits longest look again; whether there is room is seen when it runs."""
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(None)
                return
