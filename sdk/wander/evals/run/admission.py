"""Decides when another rollout starts: as soon as a model call could be made for it."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Iterator


class Admission:
    """Limits the number of rollouts that need the model, and the number of all rollouts in flight.

    A rollout needs the model during a call, while its call waits for a slot, and until its first call.
    Another rollout may start while the environment or the tools of this one are at work. A call that waits
    because the endpoint refused it counts towards neither limit, so random refusals leave no slot empty.
    """

    def __init__(self, calls: int, rollouts: int) -> None:
        self._calls = calls
        self._rollouts = rollouts
        self._asking = 0
        self._playing = 0
        self._unasked: set[str] = set()
        self._waiting: deque[asyncio.Future[None]] = deque()

    async def enter(self, rollout_ids: list[str]) -> None:
        """Wait until these rollouts, which are played as one group, may start, and count them."""
        count = len(rollout_ids)
        # A group that is larger than a limit starts when nothing else is in flight.
        while (self._asking and self._asking + count > self._calls) or (
            self._playing and self._playing + count > self._rollouts
        ):
            turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append(turn)
            await turn
        self._asking += count
        self._playing += count
        self._unasked.update(rollout_ids)

    def leave(self, rollout_ids: list[str]) -> None:
        """Count rollouts as finished."""
        self._playing -= len(rollout_ids)
        for rollout_id in rollout_ids:
            self._ask(rollout_id)
        self._next()

    def begin_call(self, rollout_id: str) -> None:
        """Count a rollout that starts a call."""
        self._asking += 1
        self._ask(rollout_id)

    def end_call(self) -> None:
        """Count a finished call."""
        self._asking -= 1
        self._next()

    @contextlib.contextmanager
    def waiting_out(self) -> Iterator[None]:
        """Leave a call and its rollout out of the counts while it waits after a refusal."""
        self._asking -= 1
        self._playing -= 1
        self._next()
        try:
            yield
        finally:
            self._asking += 1
            self._playing += 1

    def _ask(self, rollout_id: str) -> None:
        if rollout_id in self._unasked:
            self._unasked.discard(rollout_id)
            self._asking -= 1
            self._next()

    def _next(self) -> None:
        """Wake the rollout that has waited longest. It checks the limits itself when it runs."""
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(None)
                return
