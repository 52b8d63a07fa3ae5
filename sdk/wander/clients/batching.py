"""Collects the requests of concurrent rollouts into batches for a model that runs in this process."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Generic, TypeVar

from wander.envs.sub_calls import main_rollout_id

Request = TypeVar("Request")
Answer = TypeVar("Answer")


class Batcher(Generic[Request, Answer]):
    """Runs a batch when every rollout in flight waits for it, when it is full, or after a short quiet time.

    `run` is called in a thread of its own, one batch at a time, so the event loop and the environments go on
    while a batch is computed. With `quiet_seconds=None` a batch waits for every rollout in flight, so its
    composition, and with it every bit of the result, is the same each time. A rollout whose code asks the
    model (`wander.envs.sub_calls`) counts as waiting, and its sub-calls are not counted beside it.
    """

    def __init__(
        self,
        run: Callable[[Sequence[Request]], Sequence[Answer]],
        *,
        order: Callable[[Request], object],
        max_batch_size: int,
        quiet_seconds: float | None,
    ) -> None:
        self._run = run
        self._order = order
        self._max_batch_size = max_batch_size
        self._quiet_seconds = quiet_seconds
        self._in_flight: set[str] = set()
        self._waiting: list[tuple[str, Request, asyncio.Future[Answer]]] = []
        self._computing = False
        self._timer: asyncio.TimerHandle | None = None
        self._executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix="wander-model")

    def begin(self, rollout_id: str) -> None:
        """Count a rollout as in flight."""
        if main_rollout_id(rollout_id) == rollout_id:
            self._in_flight.add(rollout_id)

    def end(self, rollout_id: str) -> None:
        """Stop waiting for a rollout."""
        self._in_flight.discard(rollout_id)
        self._consider()

    async def submit(self, rollout_id: str, request: Request) -> Answer:
        """Return the answer to one request, computed with others."""
        future: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._waiting.append((rollout_id, request, future))
        self._consider()
        return await future

    def close(self) -> None:
        """Wait for the batch that is being computed and stop the thread."""
        self._executor.shutdown(wait=True)

    def _consider(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._waiting = [entry for entry in self._waiting if not entry[2].done()]
        if self._computing or not self._waiting:
            return
        asked = {main_rollout_id(rollout_id) for rollout_id, _, _ in self._waiting}
        full = self._quiet_seconds is not None and len(self._waiting) >= self._max_batch_size
        if full or self._in_flight <= asked:
            self._flush()
        elif self._quiet_seconds is not None:
            self._timer = asyncio.get_running_loop().call_later(self._quiet_seconds, self._flush)

    def _flush(self) -> None:
        self._timer = None
        self._waiting.sort(key=lambda entry: self._order(entry[1]))  # type: ignore[arg-type, return-value]
        size = self._max_batch_size if self._quiet_seconds is not None else len(self._waiting)
        batch, self._waiting = self._waiting[:size], self._waiting[size:]
        self._computing = True
        loop = asyncio.get_running_loop()
        computed = loop.run_in_executor(self._executor, self._run, [request for _, request, _ in batch])
        computed.add_done_callback(lambda done: self._deliver(batch, done))

    def _deliver(
        self,
        batch: list[tuple[str, Request, asyncio.Future[Answer]]],
        done: asyncio.Future[Sequence[Answer]],
    ) -> None:
        self._computing = False
        waiting = [future for _, _, future in batch]
        error = asyncio.CancelledError() if done.cancelled() else done.exception()
        if error is not None:
            for future in waiting:
                if not future.done():
                    future.set_exception(error)
        else:
            for future, answer in zip(waiting, done.result(), strict=True):
                if not future.done():
                    future.set_result(answer)
        asyncio.get_running_loop().call_soon(self._consider)
