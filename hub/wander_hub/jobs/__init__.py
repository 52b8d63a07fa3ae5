"""Background jobs that survive crashes, with leases and fencing.

A worker takes a job for `LEASE_SECONDS` and renews this lease while it works. If the worker dies, the lease
expires and another worker takes the job with the next attempt number. Every write of a worker carries its
name and the attempt number, so a slow worker that lost its lease cannot change anything (`LeaseLost`). A job
that repeatedly kills its worker fails after `max_attempts`.

Jobs are rows of the hub's own database, SQLite or PostgreSQL, which the workers poll. Leases and pauses use
the database's clock, which all workers share.
"""

from wander_hub.jobs.models import OPEN, Job
from wander_hub.jobs.table import (
    LEASE_SECONDS,
    MAX_ATTEMPTS,
    Lease,
    LeaseLost,
    TableQueue,
    hide_paths,
    storable,
)
from wander_hub.jobs.worker import (
    Handler,
    JobCanceled,
    JobContext,
    JobPostponed,
    JobRefused,
    JobUnfinished,
    JobWorker,
    worker_name,
)

__all__ = [
    "LEASE_SECONDS",
    "MAX_ATTEMPTS",
    "OPEN",
    "Handler",
    "Job",
    "JobCanceled",
    "JobContext",
    "JobPostponed",
    "JobRefused",
    "JobUnfinished",
    "JobWorker",
    "Lease",
    "LeaseLost",
    "TableQueue",
    "hide_paths",
    "storable",
    "worker_name",
]
