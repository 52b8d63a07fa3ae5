"""The workers of one environment, each in a slot. When a worker is lost, its slot starts another one."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from wander.errors import LoadError, SandboxError
from wander.worker.host.link import WorkerOptions
from wander.worker.host.session import WorkerLost, WorkerSession

_FAILED_STARTS = 5
"""Maximum number of failed starts in a row, 1, 2, 4 and 8 s apart. Another machine may be restarting."""


class WorkerPool:
    """Workers that share the rollouts of one environment. Created by `start`, ended by `close`."""

    def __init__(self, sessions: Sequence[WorkerSession], restarts: int) -> None:
        self.slots = [Slot(session.options, session, restarts) for session in sessions]
        self.info = sessions[0].info
        self._closed = False

    @classmethod
    async def start(cls, options: Sequence[WorkerOptions], restarts: int) -> WorkerPool:
        """Start a worker for each of the options. If one fails, all of them are ended and the error is
        raised.

        The first worker starts before the others, which can then use what it downloaded and prepared, and an
        error is reported only once. `restarts` is the maximum number of times in a row that a lost worker is
        replaced.
        """
        first = await WorkerSession.start(options[0])
        others = [asyncio.create_task(WorkerSession.start(option)) for option in options[1:]]
        try:
            sessions = [first, *await asyncio.gather(*others)]
            if any(session.info != first.info for session in sessions):
                raise LoadError(
                    "the workers loaded different environments",
                    hint="install the same version for each of them",
                )
        except BaseException:
            for task in others:
                task.cancel()
            started = await asyncio.gather(*others, return_exceptions=True)
            started_sessions = [session for session in started if isinstance(session, WorkerSession)]
            await asyncio.gather(*(session.close() for session in (first, *started_sessions)))
            raise
        return cls(sessions, restarts)

    @property
    def lost_reason(self) -> str | None:
        """Description of how a worker ended, with the path and the last lines of its log.

        None if all workers are alive or were restarted.
        """
        return next((slot.lost_reason for slot in self.slots if slot.lost_reason), None)

    @property
    def scoring_seconds(self) -> float:
        """Total seconds that synchronous reward functions blocked the current workers."""
        return sum(slot.session.scoring_seconds for slot in self.slots if slot.session is not None)

    async def least_loaded(self) -> tuple[Slot, WorkerSession]:
        """Return the live worker with the fewest rollouts in flight. Waits if a worker is being started.

        Raises `WorkerLost` if no worker is left, or `SandboxError` if the sandbox is the reason.
        """
        while not self._closed:
            best: tuple[Slot, WorkerSession] | None = None
            for slot in self.slots:
                session = slot.session
                if session is not None and (best is None or slot.under_way < best[0].under_way):
                    best = slot, session
            if best is not None:
                return best
            filling = [slot.filling for slot in self.slots if slot.filling is not None]
            if not filling:
                break
            await asyncio.wait(filling, return_when=asyncio.FIRST_COMPLETED)
        for slot in self.slots:
            if slot.unconfined is not None:
                raise SandboxError(str(slot.unconfined), hint=slot.unconfined.hint)
        raise WorkerLost(self.slots[0].lost)

    async def close(self) -> None:
        """Tear the environment down in every worker and end their processes."""
        self._closed = True
        await asyncio.gather(*(slot.close() for slot in self.slots))


class Slot:
    """Holds a live session, a task that starts the next one, or neither after too many failed starts."""

    def __init__(self, options: WorkerOptions, session: WorkerSession, restarts: int) -> None:
        self._options = options
        self._session = session
        self._restarts = restarts
        self._restarted = 0
        """Number of starts since the last rollout that finished here."""
        self._closed = False
        self.under_way = 0
        """Number of rollouts in flight."""
        self.unconfined: SandboxError | None = None
        """Reason why the next worker cannot be sandboxed, or None."""
        self.filling: asyncio.Task[None] | None = None
        """Task that starts a worker, or None."""
        self.lost_reason: str | None = None
        """Description of how the last worker ended, with the end of its log. None while a worker is alive."""
        self._hold(session)

    @property
    def session(self) -> WorkerSession | None:
        """The session while its worker is alive, or None."""
        return self._session if self._session.lost is None else None

    @property
    def lost(self) -> str:
        """Public description of how the last worker ended."""
        return self._session.lost or "the environment was closed"

    def count_finished(self) -> None:
        """Count a finished rollout, which makes the worker worth restarting."""
        self._restarted = 0

    async def close(self) -> None:
        """Tear the environment down and end its process, even if it is still starting."""
        self._closed = True
        if self.filling is not None:
            self.filling.cancel()
            await asyncio.gather(self.filling, return_exceptions=True)
        await self._session.close()

    def _hold(self, session: WorkerSession) -> None:
        self._session = session
        self.lost_reason = None
        session.on_lost = self._refill
        if session.lost is not None:
            self._refill()

    def _refill(self) -> None:
        """Start the next worker immediately, before a rollout needs it."""
        self.lost_reason = self._session.lost_reason
        if not self._closed and self._restarted < self._restarts:
            self.filling = asyncio.create_task(self._fill())

    async def _fill(self) -> None:
        previous, failed = self._session, 0
        try:
            await previous.close()
            while self._restarted < self._restarts:
                self._restarted += 1
                try:
                    session = await WorkerSession.start(self._options)
                except SandboxError as error:
                    self.unconfined, self.lost_reason = error, str(error)
                    return
                except LoadError as error:
                    self.lost_reason = str(error)
                    failed += 1
                    if failed >= _FAILED_STARTS:
                        self._restarted = self._restarts
                    else:
                        await asyncio.sleep(2.0 ** (failed - 1))
                    continue
                if session.info == previous.info:
                    self._hold(session)
                    return
                self.lost_reason = (
                    "the environment changed while it was in use: the restarted worker loaded a different one"
                )
                await session.close()
        finally:
            self.filling = None
