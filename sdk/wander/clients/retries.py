"""Sends a request again while that may help: after faults a few times, after refusals while others pass."""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass, field
from time import monotonic
from typing import Any

from wander.clients.http_errors import complaint
from wander.clients.rate_limit import REFUSALS, CallLimiter, Pace
from wander.clients.transport import Answer, Transport, TransportError, retry_after
from wander.errors import RateLimited

_RETRIED = frozenset({408, 409, 425})
_WAIT = "wait until the endpoint takes calls again, then resume"


@dataclass
class Attempts:
    """Sends requests to one endpoint through a limiter.

    - Lost connections, time-outs and the statuses 408, 409, 425 and 5xx are tried `max_retries` times again,
      after pauses that double.
    - 429, 503 and 529 say that the endpoint is asked too much, unless they come now and then, without
      `Retry-After`, from one that takes nearly all calls. They hold back everybody who asks it (see
      `wander.clients.rate_limit`) and are tried again as long as the endpoint takes other calls, and then for
      `patience` seconds more. `Retry-After` is honoured.
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
        """Return the answer to a POST.

        Raises `TransportError` when none comes, and `RateLimited` when the endpoint takes no calls any more.
        """
        pace = limiter.pace(self.transport.base_url)
        attempt = hiccups = 0
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
                pause = self._wait_after_refusal(answer, limiter, pace, began, hiccups)
                hiccups += pause > 0
                await asyncio.sleep(pause)
                continue
            if answer is not None:
                pace.note_accepted(monotonic())
                if attempt == self.max_retries or not (answer.status in _RETRIED or answer.status >= 500):
                    return answer
            limiter.retries += 1
            asked = None if answer is None else retry_after(answer.headers)
            await asyncio.sleep(self.pause(attempt) if asked is None else min(asked, self.longest_pause))
            attempt += 1

    def pause(self, attempt: int) -> float:
        """Return how long to wait before the next attempt, the first being number 0."""
        pause = min(self.retry_seconds * 2.0**attempt, self.longest_pause)
        return pause * self._jitter.uniform(0.5, 1.5)

    def _wait_after_refusal(
        self, answer: Answer, limiter: CallLimiter, pace: Pace, began: float, earlier: int
    ) -> float:
        """Return how long this call has to wait beside what holds everybody; raises when that is hopeless."""
        now = monotonic()
        asked = retry_after(answer.headers)
        url, said = self.transport.base_url, complaint(answer)
        if "insufficient_quota" in said:
            raise RateLimited(f"the quota at `{url}` is used up: {said}", hint=_WAIT)
        if asked is not None and asked > self.patience:
            raise RateLimited(f"`{url}` wants no call for {asked:.0f} s: {said}", hint=_WAIT)
        limiter.refusals += 1
        pause = pace.note_refused(now, began, asked, status=answer.status, earlier=earlier)
        if pace.accepted_at is None or now - pace.accepted_at < self.patience:
            return pause
        refused = f"`{url}` has refused every call for {self.patience:.0f} s ({answer.status}: {said})"
        limiter.give_up(pace, RateLimited(refused, hint=_WAIT))
        raise RateLimited(refused, hint=_WAIT)
