"""A place for one worker, which is filled again when the worker is lost."""

from __future__ import annotations

import asyncio

from wander.errors import LoadError, SandboxError
from wander.types import EnvironmentInfo
from wander.worker.host.link import WorkerOptions
from wander.worker.host.session import WorkerSession

_FAILED_STARTS = 5
"""Starts in a row that may fail, 1, 2, 4 and 8 s apart: another machine may be starting up again."""


class Seat:
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
        self._sit(session)

    @property
    def session(self) -> WorkerSession | None:
        """The session, while its worker lives."""
        return self._session if self._session.lost is None else None

    @property
    def lost(self) -> str:
        """How the last worker ended, in words fit for a public record."""
        return self._session.lost or "the environment was closed"

    def finished(self) -> None:
        """Learn that a rollout was played to its end: the worker is worth another start."""
        self._restarted = 0

    async def close(self) -> None:
        """Tear the environment down and end its process, also one that is only being started."""
        self._closed = True
        if self.filling is not None:
            self.filling.cancel()
            await asyncio.gather(self.filling, return_exceptions=True)
        await self._session.close()

    def _sit(self, session: WorkerSession) -> None:
        self._session = session
        self.lost_reason = None
        session.on_lost = self._left
        if session.lost is not None:
            self._left()

    def _left(self) -> None:
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
                if self._same(session.info, gone.info):
                    self._sit(session)
                    return
                await session.close()
        finally:
            self.filling = None

    def _same(self, info: EnvironmentInfo, before: EnvironmentInfo) -> bool:
        if info != before:
            self.lost_reason = (
                "the environment changed while it was in use: its next worker loaded another one"
            )
        return info == before
