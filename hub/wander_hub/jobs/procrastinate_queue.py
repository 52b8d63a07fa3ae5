"""Jobs that procrastinate hands out: PostgreSQL tells workers, wherever they are, the moment one waits.

The row of a job stays what it is in `TableQueue`: state, lease, progress and result, under the same fence. In
the transaction that makes a job wait, a message with its number is deferred; procrastinate gives it to one
worker, by priority and not before its time, and that worker claims the row. A message may come twice or too
late: then the row is not to be had, and nothing happens. One that was lost is sent again by `recover`.
"""

from __future__ import annotations

from typing import Any

from procrastinate import App, PsycopgConnector, SyncPsycopgConnector
from sqlalchemy import make_url, text
from sqlalchemy.orm import Session

from wander_hub.database import now
from wander_hub.jobs.models import Job
from wander_hub.jobs.table import TableQueue

TASK = "wander_hub.job"
"""The name of every message; its one argument is `job`, the number."""
_UNTOLD = text(
    "SELECT id FROM jobs WHERE state = 'queued' AND NOT EXISTS (SELECT 1 FROM procrastinate_jobs AS message"
    " WHERE message.task_name = :task AND message.status IN ('todo', 'doing')"
    " AND message.args ->> 'job' = jobs.id::text)"
)


class ProcrastinateQueue(TableQueue):
    """Jobs in the hub's PostgreSQL, handed out by procrastinate, whose tables must be there already."""

    def __init__(self, *positional: Any, **options: Any) -> None:
        super().__init__(*positional, **options)
        # Never opened: messages go through the connection of the transaction that they belong to.
        self._sender = App(connector=SyncPsycopgConnector())

    def connector(self, connections: int) -> PsycopgConnector:
        """Return a pool of connections to the same database, not yet open."""
        url = make_url(self.database.url).set(drivername="postgresql")
        conninfo = url.render_as_string(hide_password=False)
        return PsycopgConnector(conninfo=conninfo, min_size=1, max_size=connections)

    def recover(self) -> None:
        """Requeue the jobs of workers that died, and send a message for each that waits without one.

        Those are jobs of before procrastinate was chosen, and of messages that were lost.
        """
        with self.database.write() as session:
            self._requeue_dead(session)
            for job_id in session.scalars(_UNTOLD, {"task": TASK}).all():
                self._announce(session, job_id)

    def _announce(self, session: Session, job_id: int) -> None:
        job = session.get_one(Job, job_id, populate_existing=True)
        later = job.run_after if job.run_after > now() else None
        message = self._sender.configure_task(
            TASK,
            queue=job.kind,
            priority=job.priority,
            schedule_at=later,
            connection=session.connection().connection.driver_connection,
        )
        message.defer(job=job_id)
