"""The queue and the worker that a hub's settings choose."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Mapping

from wander_hub.database import Database
from wander_hub.jobs.table import TableQueue
from wander_hub.jobs.worker import Handler, JobWorker, Worker
from wander_hub.settings import Settings


def queue_of(settings: Settings, database: Database) -> TableQueue:
    """Return the queue of a hub."""
    if settings.jobs == "procrastinate":
        from wander_hub.jobs.procrastinate_jobs import ProcrastinateQueue

        return ProcrastinateQueue(database, lease_seconds=settings.job_lease_seconds)
    return TableQueue(database, lease_seconds=settings.job_lease_seconds)


def worker_name(what: str = "") -> str:
    """Return how a worker of this process is called, which names its machine and what it alone does."""
    return f"{socket.gethostname()} {os.getpid()} {what}".rstrip()


def worker_of(
    queue: TableQueue,
    handlers: Mapping[str, Handler],
    name: str,
    *,
    look: Callable[[], None] | None = None,
    concurrency: int = 1,
) -> Worker:
    """Return a worker on a queue, not yet started."""
    # Asked this way round, since procrastinate may be missing where the table is chosen.
    if type(queue) is TableQueue:
        return JobWorker(queue, handlers, name, look=look, concurrency=concurrency)
    from wander_hub.jobs.procrastinate_jobs import ProcrastinateWorker

    return ProcrastinateWorker(queue, handlers, name, look=look, concurrency=concurrency)


def migrate(settings: Settings, database: Database) -> None:
    """Bring the database to the newest schema, that of what hands out the jobs too."""
    database.migrate()
    if settings.jobs == "procrastinate":
        from wander_hub.jobs import procrastinate_schema

        procrastinate_schema.bring(database)


def is_migrated(settings: Settings, database: Database) -> bool:
    """Tell whether the database has that schema."""
    if not database.is_current():
        return False
    if settings.jobs != "procrastinate":
        return True
    from wander_hub.jobs import procrastinate_schema

    return procrastinate_schema.is_current(database)
