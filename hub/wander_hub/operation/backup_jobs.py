"""Backups that administrators ask for over the API: jobs that bring the folder of the settings up to date."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

from sqlalchemy import delete, select
from sqlalchemy.orm import Session
from wander.wire.events import BackupInfo

from wander_hub import audit
from wander_hub.database import Database, fill, now
from wander_hub.http.problems import HubProblem
from wander_hub.identity import Identity
from wander_hub.jobs import Job, JobContext, JobWorker, TableQueue, worker_name
from wander_hub.settings import Settings
from wander_hub.storage import Storage

KIND = "backup"
"""Of the jobs that copy the hub once."""
_KEPT = timedelta(days=365)


def ask(session: Session, queue: TableQueue, settings: Settings, caller: Identity) -> BackupInfo:
    """Make a job of a backup; one that waits or runs already is the one."""
    if settings.backup_folder is None:
        hint = "whoever runs the hub sets `WANDER_HUB_BACKUP_FOLDER`, or runs `wander-hub backup FOLDER`"
        raise HubProblem(409, "no_backup_folder", "this hub has no folder for backups", hint=hint)
    newest = session.scalar(select(Job).where(Job.kind == KIND).order_by(Job.id.desc()).limit(1))
    if newest is None or newest.finished_at is not None:
        # Of two that ask at once, both find this key.
        key = f"{KIND} after {newest.id if newest is not None else 0}"
        newest = session.get_one(Job, queue.submit(session, KIND, key, {}, created_by=caller.user_id))
    audit.about(session, target=f"{KIND} {newest.id}")
    return _info_of(newest)


def list_newest(session: Session, limit: int) -> list[BackupInfo]:
    """Return the newest backups first."""
    found = select(Job).where(Job.kind == KIND).order_by(Job.id.desc()).limit(limit)
    return [_info_of(one) for one in session.scalars(found)]


def workers(settings: Settings, database: Database, storage: Storage, queue: TableQueue) -> list[JobWorker]:
    """Return the worker that copies into the folder of the settings, not yet started, where there is one."""
    folder = settings.backup_folder
    if folder is None:
        return []

    def copy(context: JobContext) -> Callable[[Session], None]:
        from wander_hub.operation.backup import back_up  # a hub starts without it

        found = back_up(database, storage, folder, context.check)
        return lambda session: _keep(session, context.lease.job_id, found)

    return [JobWorker(queue, {KIND: copy}, worker_name("backups"))]


def _keep(session: Session, job_id: int, found: dict[str, Any]) -> None:
    ended = Job.finished_at < now() - _KEPT
    session.execute(delete(Job).where(Job.kind == KIND, ended))
    session.get_one(Job, job_id, populate_existing=True).progress = found


def _info_of(job: Job) -> BackupInfo:
    counts = {name: job.progress.get(name) for name in ("rows", "objects")} if job.state == "done" else {}
    return fill(BackupInfo, job, asked_at=job.created_at, **counts)
