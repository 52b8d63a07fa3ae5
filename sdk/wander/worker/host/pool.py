"""The workers of one environment, each in a slot that is filled again when its worker is lost."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from wander.errors import LoadError, SandboxError
from wander.worker.host.link import WorkerOptions
from wander.worker.host.session import WorkerLost, WorkerSession

_FAILED_STARTS = 5
"""Starts in a row that may fail, 1, 2, 4 and 8 s apart: another machine may be starting up again."""


class WorkerPool:
    """Workers that share the rollouts of one environment. Made by `start`, ended by `close`."""

    def __init__(self, sessions: Sequence[WorkerSession], restarts: int) -> None:
        self.slots = [Slot(session.options, session, restarts) for session in sessions]
        self.info = sessions[0].info
        self._closed = False

    @classmethod
    async def start(cls, options: Sequence[WorkerOptions], restarts: int) -> WorkerPool:
        """Start a worker for each of the options; all of them live, or none does and the error is raised.

        The first one is alone: what it downloads and prepares, the others find, and what is wrong is said
        once. `restarts` is how often in a row a lost worker is replaced.
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
            ended = await asyncio.gather(*others, return_exceptions=True)
            live = [session for session in ended if isinstance(session, WorkerSession)]
            await asyncio.gather(*(session.close() for session in (first, *live)))
            raise
        return cls(sessions, restarts)

    @property
    def lost_reason(self) -> str | None:
        """How a worker ended that is not back, with the end of its log and the log's path; else None."""
        return next((slot.lost_reason for slot in self.slots if slot.lost_reason), None)

    @property
    def scoring_seconds(self) -> float:
        """Seconds for which synchronous reward functions held up the workers that live, in total."""
        return sum(slot.session.scoring_seconds for slot in self.slots if slot.session is not None)

    async def least_loaded(self) -> tuple[Slot, WorkerSession]:
        """Return the live worker that plays the fewest rollouts, waiting for one that is being started.

        Raises `WorkerLost` when there is none and will be none; `SandboxError` where that is the sandbox's.
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
    """Holds a live session, or a task that starts the next one, or neither once that was tried too often."""

    def __init__(self, options: WorkerOptions, session: WorkerSession, restarts: int) -> None:
        self._options = options
        self._session = session
        self._restarts = restarts
        self._restarted = 0
        """Starts since the last rollout that was finished here."""
        self._closed = False
        self.under_way = 0
        """Rollouts that are played here."""
        self.unconfined: SandboxError | None = None
        """Why there is no sandbox any more for the next worker."""
        self.filling: asyncio.Task[None] | None = None
        """Set while a worker is started."""
        self.lost_reason: str | None = None
        """How the last worker ended, with the end of its log; None while one lives."""
        self._hold(session)

    @property
    def session(self) -> WorkerSession | None:
        """The session, while its worker lives."""
        return self._session if self._session.lost is None else None

    @property
    def lost(self) -> str:
        """How the last worker ended, in words fit for a public record."""
        return self._session.lost or "the environment was closed"

    def count_finished(self) -> None:
        """Learn that a rollout was played to its end: the worker is worth another start."""
        self._restarted = 0

    async def close(self) -> None:
        """Tear the environment down and end its process, also one that is only being started."""
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
        """Start the next worker at once: rollouts need not be there to ask for it."""
        self.lost_reason = self._session.lost_reason
        if not self._closed and self._restarted < self._restarts:
            self.filling = asyncio.create_task(self._fill())

    async def _fill(self) -> None:
        gone, failed = self._session, 0
        try:
            await gone.close()
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
                if session.info == gone.info:
                    self._hold(session)
                    return
                self.lost_reason = (
                    "the environment changed while it was in use: its next worker loaded another one"
                )
                await session.close()
        finally:
            self.filling = None
