"""Decides when an evaluation ends early: on request, or because it cannot succeed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from typing import Any

from wander.errors import EnvironmentFault, WanderError, model_error_type
from wander.types import Rollout

STOP_GRACE_SECONDS = 10.0
"""Seconds that canceled rollouts get to clean up after the first request to stop."""


class StopRequest:
    """Lets a person end an evaluation. The first request stops it cleanly, and the second stops it
    immediately.

    A command line calls `request` from its signal handler (`loop.add_signal_handler(SIGINT, stop.request)`).
    After the first call, no rollout starts, and those in flight are canceled. Environments get a limited
    time to clean up. After the second call, the evaluation waits for nothing. Finished rollouts are on disk
    in both cases.
    """

    def __init__(self) -> None:
        self.requested = asyncio.Event()
        self.urgent = asyncio.Event()

    def request(self) -> None:
        """Request a clean stop, or an immediate stop if one was already requested."""
        if self.requested.is_set():
            self.urgent.set()
        self.requested.set()


async def run_until_stopped(tasks: Collection[asyncio.Task[Any]], stop: StopRequest) -> None:
    """Wait until all tasks end, one task fails, or a stop is requested. Then cancel the tasks still running.

    Canceled tasks get a limited time to clean up, or no time if the stop is urgent. Raises the exception of
    a failed task.
    """
    work = asyncio.gather(*tasks)
    # Retrieve the exception here so that asyncio does not log it. It is raised below, after all tasks have
    # ended.
    work.add_done_callback(lambda ended: ended.cancelled() or ended.exception())
    try:
        await _wait_for_first(work, stop.requested)
    finally:
        pending = [task for task in tasks if not task.done()]
        for task in pending:
            task.cancel()
        if pending and not stop.urgent.is_set():
            cleanup = asyncio.gather(*pending, return_exceptions=True)
            await _wait_for_first(cleanup, stop.urgent, STOP_GRACE_SECONDS)
    for task in tasks:
        if task.done() and not task.cancelled() and (error := task.exception()) is not None:
            raise error


async def _wait_for_first(
    work: asyncio.Future[Any], event: asyncio.Event, seconds: float | None = None
) -> None:
    """Wait until the work ends, the event is set, or the time is up."""
    waiting = asyncio.create_task(event.wait())
    try:
        await asyncio.wait([work, waiting], timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
    finally:
        waiting.cancel()


class FailureWatch:
    """Detects that an endpoint or an environment's process is gone, before a thousand rollouts fail because
    of it.

    - An endpoint that accepts no more calls regardless of waiting, or that is permanently gone, ends the run
      immediately.
    - If no rollout has been scored yet, 8 consecutive failed model calls or one rejected key end the run.
    - Later, twice as many consecutive failed model calls as are in flight (at least 50) end the run.
    - An environment whose process cannot be restarted ends the run immediately.

    `verdict` holds the exception to raise.
    """

    def __init__(self, concurrency: int, *, why_lost: Callable[[], str | None] = lambda: None) -> None:
        self.why_lost = why_lost
        """Returns details about an environment's lost process that a public record should not contain."""
        self.later = max(50, 2 * concurrency)
        self.verdict: WanderError | None = None
        self._in_a_row = 0
        self._any_good = False

    def add(self, rollout: Rollout) -> bool:
        """Add a finished rollout. Returns True if the run should end."""
        failure = rollout.failure
        if self.verdict is not None:
            return True
        if failure is None:
            self._any_good, self._in_a_row = True, 0
        elif failure.boundary == "model":
            self._in_a_row += 1
            refused = failure.type == "AuthenticationFailed" and not self._any_good
            gone = failure.type == "EndpointUnreachable" and not failure.retryable
            if (
                refused
                or gone
                or failure.type == "RateLimited"
                or self._in_a_row >= (self.later if self._any_good else 8)
            ):
                count = "the last" if self._any_good else "the first"
                rollouts = "rollout" if self._in_a_row == 1 else f"{self._in_a_row} rollouts"
                # Keep the type of the exception, because the exit status depends on it.
                self.verdict = model_error_type(failure.type)(
                    f"{count} {rollouts} failed at the model: {failure.message}",
                    hint="check the endpoint and the model's name, then resume; finished rollouts are saved",
                )
        else:
            self._in_a_row = 0
            if failure.type == "WorkerLost" and not failure.retryable:
                hint = "read its log, then resume; finished rollouts are saved"
                self.verdict = EnvironmentFault(self.why_lost() or failure.message, hint=hint)
        return self.verdict is not None
