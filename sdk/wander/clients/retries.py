"""Retries of requests: a few times after faults, and after refusals as long as other calls are accepted."""

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
"""Context to enter while a refused call waits. An evaluation uses it to start another rollout meanwhile."""

_RETRIED = frozenset({408, 409, 425})
_FIRST_PAUSE = 0.1
"""First pause after a refusal without `Retry-After`, in seconds. It is short, because the endpoint may still
accept other calls."""
_GIVE_UP_AFTER = 8
"""Number of consecutive refusals after which a requested pause longer than our patience is final."""
_WAIT = "wait until the endpoint accepts calls again, then resume"


@dataclass
class Attempts:
    """Sends requests to one endpoint through a limiter.

    - After a lost connection, a timeout or one of the statuses 408, 409, 425 and 5xx, a call is retried up to
      `max_retries` times, with pauses that double.
    - With the statuses 429, 503 and 529, the endpoint refuses a call because it receives too many. The call
      waits for `Retry-After` seconds, or for a pause that doubles. It is retried as long as the endpoint
      accepts other calls. `wander.clients.rate_limit` decides whether other calls must also wait. If the
      endpoint accepts no call for `patience` seconds, the refusal is final.
    """

    transport: Transport
    max_retries: int = 5
    retry_seconds: float = 0.5
    """Seconds before the first retry; the pause doubles with each retry."""
    longest_pause: float = 60.0
    patience: float = 300.0
    """Seconds without an accepted call before a refusal is final."""
    _jitter: random.Random = field(default_factory=random.Random)

    async def answer(
        self, limiter: CallLimiter, path: str, payload: dict[str, Any], rollout_id: str = ""
    ) -> Answer:
        """Return the response to a POST request, with the seconds that the endpoint took.

        Raises `TransportError` if no response arrives, and `RateLimited` if the endpoint refuses calls.
        """
        pace = limiter.pace(self.transport.base_url)
        attempt = refusals = 0
        sent = False
        while True:
            began = await limiter.acquire(pace, rollout_id)
            # Counted after the wait, because a call that is canceled while waiting is never sent.
            limiter.calls += not sent
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
            requested = None if answer is None else retry_after(answer.headers)
            await asyncio.sleep(
                self.pause(attempt) if requested is None else min(requested, self.longest_pause)
            )
            attempt += 1

    def pause(self, attempt: int) -> float:
        """Return the seconds to wait after an attempt; attempts count from 0."""
        pause = min(self.retry_seconds * 2.0**attempt, self.longest_pause)
        return pause * self._jitter.uniform(0.5, 1.5)

    def _pause_after_refusal(
        self, answer: Answer, limiter: CallLimiter, pace: Pace, began: float, earlier: int
    ) -> float:
        """Return the seconds that a call waits after it was refused `earlier` times before.

        Raises `RateLimited` if waiting is pointless.
        """
        now = monotonic()
        requested = retry_after(answer.headers) or None
        url, reason = self.transport.base_url, complaint(answer)
        if "insufficient_quota" in reason:
            raise RateLimited(f"the quota at `{url}` is used up: {reason}", hint=_WAIT)
        limiter.refusals += 1
        is_too_long = requested is not None and requested > self.patience
        pace.note_refused(now, began, None if is_too_long else requested)
        assert pace.accepted_at is not None
        failure = None
        if is_too_long and pace.refused_in_a_row >= _GIVE_UP_AFTER:
            failure = f"`{url}` asked to wait {requested:.0f} s before the next call: {reason}"
        elif pace.in_flight == 0 and now - pace.accepted_at >= self.patience:
            failure = f"`{url}` has rejected every call for {self.patience:.0f} s ({answer.status}: {reason})"
        if failure is not None:
            limiter.give_up(pace, RateLimited(failure, hint=_WAIT))
            raise RateLimited(failure, hint=_WAIT)
        if requested is not None and not is_too_long:
            return requested
        pause = min(_FIRST_PAUSE * 2.0 ** min(earlier, 32), self.longest_pause)
        return pause * self._jitter.uniform(0.75, 1.25)
