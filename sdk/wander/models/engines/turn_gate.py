"""Holds turns back while the weights change that they are sampled from.

Turns pass on an event loop, weights change in another thread. So a turn is sampled by one version of the
weights, from its first token to its last, and no key or value of older ones is in use when a cache is reset.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator
from concurrent.futures import Future


class TurnGate:
    """Lets turns pass, or holds them back."""

    def __init__(self) -> None:
        self._step: int | None = None
        self._turns = 0
        self._changed = threading.Condition()
        self._opens: Future[None] | None = None

    @contextlib.asynccontextmanager
    async def turn(self) -> AsyncIterator[int | None]:
        """Keep the weights from changing inside the block; yield how many steps they have learnt."""
        while (opens := self._enter()) is not None:
            # Who gives up waiting takes nothing from the others.
            await asyncio.shield(asyncio.wrap_future(opens))
        try:
            yield self._step
        finally:
            with self._changed:
                self._turns -= 1
                self._changed.notify_all()

    def close(self) -> None:
        """Hold new turns back, and wait for those under way."""
        with self._changed:
            self._opens = self._opens or Future()
            self._changed.wait_for(lambda: self._turns == 0)

    def open(self, step: int | None) -> None:
        """Let turns pass again, those that were held back too; the weights have learnt so many steps."""
        with self._changed:
            self._step = step
            opens, self._opens = self._opens, None
        if opens is not None:
            opens.set_result(None)

    def _enter(self) -> Future[None] | None:
        """Count a turn, or return what ends when it may try again."""
        with self._changed:
            self._turns += self._opens is None
            return self._opens
