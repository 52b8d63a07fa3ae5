"""Collects the requests of concurrent rollouts into batches for a model that runs in this process."""

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
"""Takes answers of a batch that are known before the others, by their places in it, in any thread."""

_PART = 32
"""Answers that are handed out together. Their rollouts continue, perhaps in another process, before the next
answers are handed out."""


@dataclass(frozen=True, slots=True, eq=False)
class _Entry(Generic[Request, Answer]):
    """A request that waits."""

    main_id: str
    """The rollout that waits for the answer, directly or through its code."""
    request: Request
    answer: asyncio.Future[Answer]


class Batcher(Generic[Request, Answer]):
    """Runs a batch when every rollout in flight waits for it, when it is full, or after a short quiet time.

    `run` is called in a thread of its own, one batch at a time, so the event loop and the environments
    continue while a batch is computed. Early answers go to their rollouts immediately. With
    `quiet_seconds=None` a batch waits for every rollout in flight, so its composition, and every bit of the
    result, is the same each time. A rollout whose code asks the model (`wander.clients.sub_calls`) counts as
    waiting, and its sub-calls are not counted separately.

    With several `waves` the groups in flight are divided among them, and a batch waits for every rollout of
    its wave. While one wave is computed, the environments of the others work. The order in which rollouts
    begin decides the waves, so the result is as repeatable as with one wave.
    """

    def __init__(
        self,
        run: Callable[[Sequence[Request], Tell[Answer]], Sequence[Answer]],
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
        """Number of each group, in the order of their beginnings."""
        self._in_flight: dict[str, int] = {}
        """Wave of every rollout in flight."""
        self._late = [0] * waves
        """Number of rollouts of each wave that are in flight and do not wait."""
        self._asked: Counter[str] = Counter()
        """Number of waiting requests of each rollout."""
        self._last_wave = 0
        self._waiting: list[_Entry[Request, Answer]] = []
        self.is_computing = False
        """Whether a batch is being computed."""
        self._last_seconds = 0.0
        """How long the last batch was computed."""
        self._timer: asyncio.TimerHandle | None = None
        self._executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix="wander-model")

    def begin(self, rollout_id: str) -> None:
        """Count a rollout as in flight; ids that differ only after the last slash are one group."""
        if rollout_id in self._in_flight or main_rollout_id(rollout_id) != rollout_id:
            return
        if not self._in_flight:
            self._groups.clear()  # a step begins as it would in a resumed run
        number = self._groups.setdefault(rollout_id.rpartition("/")[0], len(self._groups))
        self._in_flight[rollout_id] = wave = number % self._waves
        self._late[wave] += not self._asked[rollout_id]

    def end(self, rollout_id: str) -> None:
        """Stop waiting for a rollout."""
        wave = self._in_flight.pop(rollout_id, None)
        if wave is not None:
            self._late[wave] -= not self._asked[rollout_id]
        self._consider()

    async def submit(self, rollout_id: str, request: Request) -> Answer:
        """Return the answer to one request, computed with others."""
        main_id = main_rollout_id(rollout_id)
        answer: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._waiting.append(_Entry(main_id, request, answer))
        if not self._asked[main_id] and (wave := self._in_flight.get(main_id)) is not None:
            self._late[wave] -= 1
        self._asked[main_id] += 1
        self._consider()
        return await answer

    def wait(self) -> None:
        """Wait for the batch that is being computed; not on the event loop."""
        self._executor.submit(bool).result()

    def close(self) -> None:
        """Wait for the batch that is being computed and stop the thread."""
        self._executor.shutdown(wait=True)

    def _consider(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self.is_computing or not self._waiting:
            return
        # Most calls end here or soon: every rollout of a step comes by at each of its turns.
        wave, full = self._complete_wave(), self._is_full()
        if (wave is not None or full) and self._drop_cancelled():
            wave, full = self._complete_wave(), self._is_full()
        if wave is not None or full:
            self._flush(wave)
        elif self._waiting and self._quiet_seconds is not None:
            # Waiting for a part of a batch's time is cheaper than computing another batch.
            quiet = max(self._quiet_seconds, self._last_seconds / 10)
            self._timer = asyncio.get_running_loop().call_later(quiet, self._flush)

    def _complete_wave(self) -> int | None:
        """Return a wave whose rollouts in flight all wait, preferably not the last one."""
        for step in range(1, self._waves + 1):
            wave = (self._last_wave + step) % self._waves
            if not self._late[wave] and any(self._wave_of(entry) == wave for entry in self._waiting):
                return wave
        return None

    def _is_full(self) -> bool:
        return self._quiet_seconds is not None and len(self._waiting) >= self._max_batch_size

    def _drop_cancelled(self) -> bool:
        """Forget the cancelled requests; return whether there were any."""
        cancelled = [entry for entry in self._waiting if entry.answer.done()]
        self._take(cancelled)
        return bool(cancelled)

    def _take(self, entries: Sequence[_Entry[Request, Answer]]) -> None:
        """Take requests out of the waiting ones: their rollouts are late until they ask again."""
        if not entries:
            return
        gone = {id(entry) for entry in entries}
        self._waiting = [entry for entry in self._waiting if id(entry) not in gone]
        for entry in entries:
            self._asked[entry.main_id] -= 1
            if not self._asked[entry.main_id]:
                del self._asked[entry.main_id]
                if (wave := self._in_flight.get(entry.main_id)) is not None:
                    self._late[wave] += 1

    def _flush(self, wave: int | None = None) -> None:
        """Compute the waiting requests, or those of one wave."""
        self._timer = None
        self._drop_cancelled()
        self._waiting.sort(key=lambda entry: self._order(entry.request))  # type: ignore[arg-type, return-value]
        chosen = [entry for entry in self._waiting if wave is None or self._wave_of(entry) == wave]
        batch = chosen[: self._max_batch_size] if self._quiet_seconds is not None else chosen
        if not batch:
            return
        self._take(batch)
        self._last_wave = wave or 0
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

    def _wave_of(self, entry: _Entry[Request, Answer]) -> int:
        return self._in_flight.get(entry.main_id, 0)

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
        """Give the next answers, and continue after a turn of the event loop."""
        given = _give(islice(answered, _PART))
        loop = asyncio.get_running_loop()
        loop.call_soon(*((self._hand_out, answered) if given == _PART else (self._consider,)))


def _give(answered: Iterable[tuple[_Entry[Request, Answer], Answer]]) -> int:
    """Answer the requests that still wait; return the number of all answers."""
    given = 0
    for entry, answer in answered:
        given += 1
        if not entry.answer.done():
            entry.answer.set_result(answer)
    return given
