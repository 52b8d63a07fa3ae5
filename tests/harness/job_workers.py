"""Job workers in separate processes, for tests that stop and kill them."""

from __future__ import annotations

import multiprocessing
import os
import time
from collections.abc import Callable
from multiprocessing.process import BaseProcess
from pathlib import Path

from sqlalchemy import text
from sqlalchemy.orm import Session
from wander_hub.database import Database
from wander_hub.jobs import Handler, JobContext, JobWorker, TableQueue

KIND = "play"
_PROCESSES = multiprocessing.get_context("forkserver")
_PROCESSES.set_forkserver_preload(["wander_hub.jobs"])


def start_worker(url: str, lease_seconds: float, folder: Path) -> BaseProcess:
    """Start a process that works on jobs of `KIND` until it is killed.

    A job touches `begun-JOB-PID` in the folder, waits for `gate` there, and adds a row to `results`.
    """
    process = _PROCESSES.Process(target=_work, args=(url, lease_seconds, folder), daemon=True)
    process.start()
    return process


def _work(url: str, lease_seconds: float, folder: Path) -> None:
    queue = TableQueue(Database(url), lease_seconds=lease_seconds, retry_seconds=0)
    worker = JobWorker(queue, {KIND: _gated(folder)}, f"process {os.getpid()}")
    worker.start()
    while True:
        time.sleep(600)


def _gated(folder: Path) -> Handler:
    def handler(context: JobContext) -> Callable[[Session], None]:
        number, process = context.lease.job_id, os.getpid()
        (folder / f"begun-{number}-{process}").touch()
        time.sleep(context.lease.payload.get("seconds", 0))
        while not (folder / "gate").exists():
            context.check()
            time.sleep(0.02)

        def keep(session: Session) -> None:
            row = {"job": number, "process": process}
            session.execute(text("INSERT INTO results VALUES (:job, :process)"), row)

        return keep

    return handler
