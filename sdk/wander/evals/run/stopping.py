"""When an evaluation ends before its last rollout: on request, or because going on is pointless."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from typing import Any

from wander.errors import EnvironmentFault, WanderError, model_error_type
from wander.types import Rollout

STOP_GRACE_SECONDS = 10.0
"""How long cancelled rollouts may take to clean up after the first request to stop."""


class StopRequest:
    """How a person ends an evaluation: once to stop in order, twice to stop at once.

    A command line calls `request` from its signal handler (`loop.add_signal_handler(SIGINT, stop.request)`).
    After the first call no rollout starts and those in flight are cancelled, which gives environments a
    bounded time to clean up; after the second the evaluation waits for nothing. What has finished is on disk
    either way.
    """

    def __init__(self) -> None:
        self.requested = asyncio.Event()
        self.urgent = asyncio.Event()

    def request(self) -> None:
        """Ask for the end; a second call asks for it at once."""
        if self.requested.is_set():
            self.urgent.set()
        self.requested.set()


async def run_until_stopped(tasks: Collection[asyncio.Task[Any]], stop: StopRequest) -> None:
    """Wait until all tasks have ended, one has broken or a stop is requested, and cancel what is in flight.

    Cancelled tasks get a bounded time to clean up, and none once the stop is urgent. Raises what a task
    raised.
    """
    work = asyncio.gather(*tasks)
    # Seen here, so that asyncio does not log it: it is raised below, once everything has ended.
    work.add_done_callback(lambda ended: ended.cancelled() or ended.exception())
    try:
        await _wait_for_first(work, stop.requested)
    finally:
        pending = [task for task in tasks if not task.done()]
        for task in pending:
            task.cancel()
        if pending and not stop.urgent.is_set():
            rest = asyncio.gather(*pending, return_exceptions=True)
            await _wait_for_first(rest, stop.urgent, STOP_GRACE_SECONDS)
    for task in tasks:
        if task.done() and not task.cancelled() and (error := task.exception()) is not None:
            raise error


async def _wait_for_first(
    work: asyncio.Future[Any], event: asyncio.Event, seconds: float | None = None
) -> None:
    """Wait until the work has ended, the event is set, or the time is over."""
    waiting = asyncio.create_task(event.wait())
    try:
        await asyncio.wait([work, waiting], timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
    finally:
        waiting.cancel()


class FailureWatch:
    """Notices that an endpoint or an environment's process is gone, before a thousand failures are played.

    - An endpoint that takes no calls any more, however long one waits, or is gone for good, ends it at once.
    - With nothing scored yet: 8 failed model calls in a row, or one refused key, end the run.
    - Later: twice as many failed model calls in a row as are in flight, and at least 50, end it.
    - An environment whose process cannot be brought back ends it at once.

    The exception to raise is in `verdict`.
    """

    def __init__(self, concurrency: int, *, why_lost: Callable[[], str | None] = lambda: None) -> None:
        self.why_lost = why_lost
        """Tells more about an environment's process that ended than a public record should hold."""
        self.later = max(50, 2 * concurrency)
        self.verdict: WanderError | None = None
        self._in_a_row = 0
        self._any_good = False

    def add(self, rollout: Rollout) -> bool:
        """Look at a finished rollout; True when the run should end."""
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
                # The exception that it was, so that exit statuses stay the same.
                self.verdict = model_error_type(failure.type)(
                    f"{count} {rollouts} failed at the model: {failure.message}",
                    hint="check the endpoint and the model's name, then resume; finished rollouts are kept",
                )
        else:
            self._in_a_row = 0
            if failure.type == "WorkerLost" and not failure.retryable:
                hint = "see its log, then resume; finished rollouts are kept"
                self.verdict = EnvironmentFault(self.why_lost() or failure.message, hint=hint)
        return self.verdict is not None
