"""Backups that administrators request through the API: jobs that update the backup in the configured
folder."""

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
"""Kind of the jobs that update the backup."""
_KEPT = timedelta(days=365)


def ask(session: Session, queue: TableQueue, settings: Settings, caller: Identity) -> BackupInfo:
    """Queue a backup, or return the backup that is already queued or running."""
    if settings.backup_folder is None:
        hint = "the hub's operator can set `WANDER_HUB_BACKUP_FOLDER` or run `wander-hub backup FOLDER`"
        raise HubProblem(409, "no_backup_folder", "this hub has no folder for backups", hint=hint)
    newest = session.scalar(select(Job).where(Job.kind == KIND).order_by(Job.id.desc()).limit(1))
    if newest is None or newest.finished_at is not None:
        # Two simultaneous requests compute the same key, so only one job is added.
        key = f"{KIND} after {newest.id if newest is not None else 0}"
        newest = session.get_one(Job, queue.submit(session, KIND, key, {}, created_by=caller.user_id))
    audit.about(session, target=f"{KIND} {newest.id}")
    return _info_of(newest)


def list_newest(session: Session, limit: int) -> list[BackupInfo]:
    """Return the newest backups, newest first."""
    jobs = select(Job).where(Job.kind == KIND).order_by(Job.id.desc()).limit(limit)
    return [_info_of(job) for job in session.scalars(jobs)]


def workers(settings: Settings, database: Database, storage: Storage, queue: TableQueue) -> list[JobWorker]:
    """Return the worker that writes backups, not started; none if there is no backup folder."""
    folder = settings.backup_folder
    if folder is None:
        return []

    def copy(context: JobContext) -> Callable[[Session], None]:
        from wander_hub.operation.backup import back_up  # imported here, so that the hub starts faster

        counts = back_up(database, storage, folder, context.check)
        return lambda session: _keep(session, context.lease.job_id, counts)

    return [JobWorker(queue, {KIND: copy}, worker_name("backups"))]


def _keep(session: Session, job_id: int, counts: dict[str, Any]) -> None:
    ended = Job.finished_at < now() - _KEPT
    session.execute(delete(Job).where(Job.kind == KIND, ended))
    session.get_one(Job, job_id, populate_existing=True).progress = counts


def _info_of(job: Job) -> BackupInfo:
    counts = {name: job.progress.get(name) for name in ("rows", "objects")} if job.state == "done" else {}
    return fill(BackupInfo, job, asked_at=job.created_at, **counts)
