"""Batching of requests from concurrent rollouts for a model that runs in this process."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice
from typing import Generic, TypeVar

from wander.clients.sub_calls import main_rollout_id

Request = TypeVar("Request")
Answer = TypeVar("Answer")

Tell = Callable[[Sequence[tuple[int, Answer]]], None]
"""Function that receives early answers as (index in the batch, answer), in any thread."""

_PART = 32
"""Number of answers that are delivered together. Their rollouts continue, perhaps in another process, before
the next answers are delivered."""


@dataclass(frozen=True, slots=True, eq=False)
class _Entry(Generic[Request, Answer]):
    """A waiting request."""

    main_id: str
    """Rollout that waits for the answer, directly or through its code."""
    request: Request
    answer: asyncio.Future[Answer]


class Batcher(Generic[Request, Answer]):
    """Runs a batch when every rollout in flight waits for it, when it is full, or after a short quiet time.

    `run` is called in a separate thread, one batch at a time, so the event loop and the environments continue
    while a batch is computed. Early answers go to their rollouts immediately. With `quiet_seconds=None`, a
    batch waits for every rollout in flight, so its composition, and every bit of the result, is the same each
    time. A rollout whose code calls the model (`wander.clients.sub_calls`) counts as waiting, and its
    sub-calls are not counted separately.
    """

    def __init__(
        self,
        run: Callable[[Sequence[Request], Tell[Answer]], Sequence[Answer]],
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
        self._late = 0
        """Number of rollouts in flight that do not wait."""
        self._asked: Counter[str] = Counter()
        """Number of waiting requests of each rollout."""
        self._waiting: list[_Entry[Request, Answer]] = []
        self.is_computing = False
        """Whether a batch is being computed."""
        self._last_seconds = 0.0
        """Seconds that the last batch took."""
        self._timer: asyncio.TimerHandle | None = None
        self._executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix="wander-model")

    def begin(self, rollout_id: str) -> None:
        """Count a rollout as in flight."""
        if rollout_id in self._in_flight or main_rollout_id(rollout_id) != rollout_id:
            return
        self._in_flight.add(rollout_id)
        self._late += not self._asked[rollout_id]

    def end(self, rollout_id: str) -> None:
        """Stop waiting for a rollout."""
        if rollout_id in self._in_flight:
            self._in_flight.remove(rollout_id)
            self._late -= not self._asked[rollout_id]
        self._consider()

    async def submit(self, rollout_id: str, request: Request) -> Answer:
        """Return the answer to a request, computed in a batch with other requests."""
        main_id = main_rollout_id(rollout_id)
        answer: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._waiting.append(_Entry(main_id, request, answer))
        if not self._asked[main_id] and main_id in self._in_flight:
            self._late -= 1
        self._asked[main_id] += 1
        self._consider()
        return await answer

    def wait(self) -> None:
        """Wait for the current batch; must not be called on the event loop."""
        self._executor.submit(bool).result()

    def close(self) -> None:
        """Wait for the current batch and stop the thread."""
        self._executor.shutdown(wait=True)

    def _consider(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self.is_computing or not self._waiting:
            return
        # Most calls return soon, because every rollout calls this method at each of its turns.
        if self._is_complete() and (not self._drop_canceled() or self._is_complete()):
            self._flush()
        elif self._waiting and self._quiet_seconds is not None:
            # Waiting for a part of a batch's time is cheaper than computing another batch.
            quiet = max(self._quiet_seconds, self._last_seconds / 10)
            self._timer = asyncio.get_running_loop().call_later(quiet, self._flush)

    def _is_complete(self) -> bool:
        """Return whether every rollout in flight waits, or enough of them for a full batch."""
        full = self._quiet_seconds is not None and len(self._waiting) >= self._max_batch_size
        return bool(self._waiting) and (not self._late or full)

    def _drop_canceled(self) -> bool:
        """Remove the canceled requests; return whether there were any."""
        canceled = [entry for entry in self._waiting if entry.answer.done()]
        self._take(canceled)
        return bool(canceled)

    def _take(self, entries: Sequence[_Entry[Request, Answer]]) -> None:
        """Remove requests from the queue. Their rollouts are late until they submit the next request."""
        if not entries:
            return
        gone = {id(entry) for entry in entries}
        self._waiting = [entry for entry in self._waiting if id(entry) not in gone]
        for entry in entries:
            self._asked[entry.main_id] -= 1
            if not self._asked[entry.main_id]:
                del self._asked[entry.main_id]
                self._late += entry.main_id in self._in_flight

    def _flush(self) -> None:
        """Compute the waiting requests."""
        self._timer = None
        self._drop_canceled()
        self._waiting.sort(key=lambda entry: self._order(entry.request))  # type: ignore[arg-type, return-value]
        batch = self._waiting[: None if self._quiet_seconds is None else self._max_batch_size]
        if not batch:
            return
        self._take(batch)
        self.is_computing = True
        loop = asyncio.get_running_loop()
        started = loop.time()
        requests = Counter(entry.main_id for entry in batch)

        def tell(known: Sequence[tuple[int, Answer]]) -> None:
            # The next request of a rollout joins the next batch in any case. A rollout with several requests
            # in this batch would ask some of its next requests too late.
            answered = [(batch[place], answer) for place, answer in known]
            sole = [(entry, answer) for entry, answer in answered if requests[entry.main_id] == 1]
            loop.call_soon_threadsafe(_give, sole)

        computed = loop.run_in_executor(self._executor, self._run, [entry.request for entry in batch], tell)
        computed.add_done_callback(lambda done: self._deliver(batch, done, loop.time() - started))

    def _deliver(
        self, batch: list[_Entry[Request, Answer]], done: asyncio.Future[Sequence[Answer]], seconds: float
    ) -> None:
        self.is_computing, self._last_seconds = False, seconds
        error = asyncio.CancelledError() if done.cancelled() else done.exception()
        if error is None:
            self._hand_out(zip(batch, done.result(), strict=True))
            return
        for entry in batch:
            if not entry.answer.done():
                entry.answer.set_exception(error)
        asyncio.get_running_loop().call_soon(self._consider)

    def _hand_out(self, answered: Iterator[tuple[_Entry[Request, Answer], Answer]]) -> None:
        """Deliver the next answers, and continue after an iteration of the event loop."""
        given = _give(islice(answered, _PART))
        loop = asyncio.get_running_loop()
        loop.call_soon(*((self._hand_out, answered) if given == _PART else (self._consider,)))


def _give(answered: Iterable[tuple[_Entry[Request, Answer], Answer]]) -> int:
    """Set the answers of the requests that still wait; return the number of all answers."""
    given = 0
    for entry, answer in answered:
        given += 1
        if not entry.answer.done():
            entry.answer.set_result(answer)
    return given
