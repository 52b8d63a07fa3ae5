"""Background work that survives a crash: jobs, taken under a lease and finished under a fence.

A worker takes a job for `LEASE_SECONDS` and renews that while it works. When it dies, the lease runs out and
another worker takes the job with the next attempt number. Everything a worker writes carries owner and
attempt, so one that was only slow, and lost its lease, can change nothing any more: `LeaseLost`. A job that
kills its worker again and again is failed after `max_attempts`.

The jobs are rows of the hub's own database, SQLite or PostgreSQL, and workers look there for the next one.
Leases and pauses go by the database's clock, which all workers share.
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
    JobCancelled,
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
    "JobCancelled",
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
