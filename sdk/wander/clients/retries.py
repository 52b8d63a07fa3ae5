"""Sends a request again while that may help: after faults a few times, after refusals while others pass."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Callable
from contextlib import AbstractContextManager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from time import monotonic
from typing import Any

from wander.clients.http_errors import complaint
from wander.clients.rate_limit import REFUSALS, CallLimiter, Pace
from wander.clients.transport import Answer, Transport, TransportError, retry_after
from wander.errors import RateLimited

WAITING_OUT: ContextVar[Callable[[], AbstractContextManager[None]]] = ContextVar(
    "wander_waiting_out", default=contextlib.nullcontext
)
"""What to enter while a call waits out its own refusal: an evaluation lets another rollout start."""

_RETRIED = frozenset({408, 409, 425})
_FIRST_PAUSE = 0.1
"""First pause of a call after a refusal without `Retry-After`; short, since the endpoint takes others."""
_GIVE_UP_AFTER = 8
"""Refusals in a row that ask for a pause longer than our patience, after which the endpoint is believed."""
_WAIT = "wait until the endpoint takes calls again, then resume"


@dataclass
class Attempts:
    """Sends requests to one endpoint through a limiter.

    - Lost connections, time-outs and the statuses 408, 409, 425 and 5xx are tried `max_retries` times again,
      after pauses that double.
    - 429, 503 and 529 refuse a call because the endpoint is asked too much. The call waits as long as
      `Retry-After` says, or for a pause that doubles, and is sent again for as long as the endpoint takes
      other calls. `wander.clients.rate_limit` decides whether other calls have to wait too. If the endpoint
      takes no call for `patience` seconds, the refusal is final.
    """

    transport: Transport
    max_retries: int = 5
    retry_seconds: float = 0.5
    """Pause before the first retry; doubles with each."""
    longest_pause: float = 60.0
    patience: float = 300.0
    """Seconds without any call taken after which a refusal is final."""
    _jitter: random.Random = field(default_factory=random.Random)

    async def answer(
        self, limiter: CallLimiter, path: str, payload: dict[str, Any], rollout_id: str = ""
    ) -> Answer:
        """Return the answer to a POST, with the seconds that the endpoint took for it.

        Raises `TransportError` if there is no answer, and `RateLimited` if the endpoint takes no more calls.
        """
        pace = limiter.pace(self.transport.base_url)
        attempt = refusals = 0
        sent = False
        while True:
            began = await limiter.acquire(pace, rollout_id)
            limiter.calls += not sent  # what is cancelled while it waits was no call
            sent = True
            try:
                answer = await self.transport.post(path, payload)
            except TransportError as error:
                if attempt == self.max_retries or error.is_final:
                    raise
                answer = None
            finally:
                limiter.release(pace)
            if answer is not None and answer.status in REFUSALS:
                pause = self._pause_after_refusal(answer, limiter, pace, began, refusals)
                refusals += 1
                with WAITING_OUT.get()():
                    await asyncio.sleep(pause)
                continue
            if answer is not None:
                now = monotonic()
                pace.note_accepted(now)
                if attempt == self.max_retries or not (answer.status in _RETRIED or answer.status >= 500):
                    return replace(answer, seconds=now - began)
            limiter.retries += 1
            told = None if answer is None else retry_after(answer.headers)
            await asyncio.sleep(self.pause(attempt) if told is None else min(told, self.longest_pause))
            attempt += 1

    def pause(self, attempt: int) -> float:
        """Return how long to wait before the next attempt, the first being number 0."""
        pause = min(self.retry_seconds * 2.0**attempt, self.longest_pause)
        return pause * self._jitter.uniform(0.5, 1.5)

    def _pause_after_refusal(
        self, answer: Answer, limiter: CallLimiter, pace: Pace, began: float, earlier: int
    ) -> float:
        """Return how long a call waits that was refused `earlier` times before; raise if that is hopeless."""
        now = monotonic()
        told = retry_after(answer.headers) or None
        url, said = self.transport.base_url, complaint(answer)
        if "insufficient_quota" in said:
            raise RateLimited(f"the quota at `{url}` is used up: {said}", hint=_WAIT)
        limiter.refusals += 1
        is_too_long = told is not None and told > self.patience
        pace.note_refused(now, began, None if is_too_long else told)
        assert pace.accepted_at is not None
        hopeless = None
        if is_too_long and pace.refused_in_a_row >= _GIVE_UP_AFTER:
            hopeless = f"`{url}` wants no call for {told:.0f} s: {said}"
        elif pace.in_flight == 0 and now - pace.accepted_at >= self.patience:
            hopeless = f"`{url}` has refused every call for {self.patience:.0f} s ({answer.status}: {said})"
        if hopeless is not None:
            limiter.give_up(pace, RateLimited(hopeless, hint=_WAIT))
            raise RateLimited(hopeless, hint=_WAIT)
        if told is not None and not is_too_long:
            return told
        pause = min(_FIRST_PAUSE * 2.0 ** min(earlier, 32), self.longest_pause)
        return pause * self._jitter.uniform(0.75, 1.25)
