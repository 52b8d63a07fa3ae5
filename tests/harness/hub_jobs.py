"""A hub's jobs, completed in this process: runs are read, and every replay agrees."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sqlalchemy.orm import Session
from wander.wire.verification import ReplayReport
from wander_hub.jobs import Handler, JobContext, JobWorker, TableQueue
from wander_hub.verification import evidence, service
from wander_hub.verification.evidence import Examiner


def same_again(rollouts: int) -> Handler:
    """Return a job handler that reports every rollout of a replay as equal."""

    def handler(context: JobContext) -> Callable[[Session], None]:
        counts = dict.fromkeys(("expected", "recorded", "replayed", "same"), rollouts)
        run_id = str(context.lease.payload["run_id"])
        report = ReplayReport(run_id=run_id, **counts, differing=0, failed=0)
        return lambda session: service.store_report(session, context.lease.job_id, report, None)

    return handler


def work_off(hub: Any, queue: TableQueue, rollouts: int, **reader: Any) -> None:
    """Complete all waiting jobs; `reader` holds further arguments of the examiner."""
    examiner = Examiner(hub.database, hub.client._transport.app.state.storage, **reader)
    handlers: dict[str, Handler] = {evidence.KIND: examiner, service.KIND: same_again(rollouts)}
    worker = JobWorker(queue, handlers, "worker")
    while worker.run_one():
        pass
