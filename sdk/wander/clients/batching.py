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

    With several `waves` the groups in flight are dealt out among them, and a batch waits for every rollout of
    its wave: while one wave is computed, the environments of the others work. What a wave holds depends on
    the order in which rollouts begin alone, so the result is as repeatable as with one.
    """

    def __init__(
        self,
        run: Callable[[Sequence[Request]], Sequence[Answer]],
        *,
        order: Callable[[Request], object],
        max_batch_size: int,
        quiet_seconds: float | None,
        waves: int = 1,
    ) -> None:
        self._run = run
        self._order = order
        self._max_batch_size = max_batch_size
        self._quiet_seconds = quiet_seconds
        self._waves = waves
        self._groups: dict[str, int] = {}
        """Number of each group, in the order in which they began."""
        self._in_flight: dict[str, int] = {}
        """Wave of every rollout in flight."""
        self._last_wave = 0
        self._waiting: list[tuple[str, Request, asyncio.Future[Answer]]] = []
        self._computing = False
        self._timer: asyncio.TimerHandle | None = None
        self._executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix="wander-model")

    def begin(self, rollout_id: str) -> None:
        """Count a rollout as in flight; those whose ids differ after the last slash only are one group."""
        if main_rollout_id(rollout_id) != rollout_id:
            return
        if not self._in_flight:
            self._groups.clear()  # a step begins as it would in a resumed run
        number = self._groups.setdefault(rollout_id.rpartition("/")[0], len(self._groups))
        self._in_flight[rollout_id] = number % self._waves

    def end(self, rollout_id: str) -> None:
        """Stop waiting for a rollout."""
        self._in_flight.pop(rollout_id, None)
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
        wave = self._complete_wave()
        full = self._quiet_seconds is not None and len(self._waiting) >= self._max_batch_size
        if wave is not None or full:
            self._flush(wave)
        elif self._quiet_seconds is not None:
            self._timer = asyncio.get_running_loop().call_later(self._quiet_seconds, self._flush)

    def _complete_wave(self) -> int | None:
        """Return a wave of which every rollout in flight waits, and not the last one where another does."""
        asked = {main_rollout_id(rollout_id) for rollout_id, _, _ in self._waiting}
        waiting = {self._in_flight.get(rollout_id, 0) for rollout_id in asked}
        late = {wave for rollout_id, wave in self._in_flight.items() if rollout_id not in asked}
        ready = sorted(waiting - late, key=lambda wave: (wave - self._last_wave - 1) % self._waves)
        return ready[0] if ready else None

    def _flush(self, wave: int | None = None) -> None:
        """Compute what waits, of one wave where that is said."""
        self._timer = None
        self._waiting.sort(key=lambda entry: self._order(entry[1]))  # type: ignore[arg-type, return-value]
        chosen = [entry for entry in self._waiting if wave is None or self._wave_of(entry[0]) == wave]
        batch = chosen[: self._max_batch_size] if self._quiet_seconds is not None else chosen
        taken = {id(future) for _, _, future in batch}
        self._waiting = [entry for entry in self._waiting if id(entry[2]) not in taken]
        self._last_wave = wave or 0
        self._computing = True
        loop = asyncio.get_running_loop()
        computed = loop.run_in_executor(self._executor, self._run, [request for _, request, _ in batch])
        computed.add_done_callback(lambda done: self._deliver(batch, done))

    def _wave_of(self, rollout_id: str) -> int:
        return self._in_flight.get(main_rollout_id(rollout_id), 0)

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
