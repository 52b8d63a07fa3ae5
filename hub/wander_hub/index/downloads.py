"""Counts downloads in memory and writes them to the database every few seconds.

A request only increments a number here. If a process is killed (`kill -9`), the downloads it counted since
its last write are lost; a hub that shuts down normally writes them first. HEAD requests, ranges that do not
start at the beginning, 304 responses and files that the hub itself fetches to replay runs do not count as
downloads.
"""

from __future__ import annotations

import threading
from collections import Counter
from datetime import date

from sqlalchemy import bindparam, select, update
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.orm import Session

from wander_hub.database import QUIET, Database, now
from wander_hub.environments.models import Downloads, Environment, Version

FLUSH_SECONDS = 10.0
"""Maximum age of a count before it is written. If the hub is killed, the counts of this time are lost."""
_AT_ONCE = 5000


class DownloadCounter:
    """Downloads that one process has counted and not yet written."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._lock, self._writing = threading.Lock(), threading.Lock()
        self._counts: Counter[tuple[int, date]] = Counter()

    def note(self, version_id: int) -> None:
        """Count one download of a version."""
        key = version_id, now().date()
        with self._lock:
            self._counts[key] += 1

    def flush(self) -> int:
        """Write the counts and return how many downloads they held; counts that cannot be written are
        kept."""
        with self._writing:  # a second caller waits until everything is written
            with self._lock:
                counts, self._counts = self._counts, Counter()
            try:
                if counts:
                    self._database.commit(lambda session: add_downloads(session, counts))
            except BaseException:
                with self._lock:
                    self._counts += counts
                raise
            return counts.total()


def add_downloads(session: Session, counts: Counter[tuple[int, date]]) -> None:
    """Add counts by version and day to the database, and to the totals of the environments."""
    dialect = postgresql if session.get_bind().dialect.name == "postgresql" else sqlite
    insert = dialect.insert(Downloads)
    insert = insert.on_conflict_do_update(
        index_elements=["version_id", "day"], set_={"count": Downloads.count + insert.excluded.count}
    )
    ordered = sorted(counts.items())
    for start in range(0, len(ordered), _AT_ONCE):
        batch = ordered[start : start + _AT_ONCE]
        counted = insert.values(
            [{"version_id": version, "day": day, "count": count} for (version, day), count in batch]
        )
        session.execute(counted, execution_options=QUIET)
        owned = select(Version.id, Version.environment_id).where(
            Version.id.in_({version for (version, _), _ in batch})
        )
        environment_of = {version: environment for version, environment in session.execute(owned)}
        totals: Counter[int] = Counter()
        for (version, _), count in batch:
            totals[environment_of[version]] += count
        # Always in the same order, so that two processes cannot deadlock.
        raised = update(Environment).where(Environment.id == bindparam("environment"))
        raised = raised.values(download_count=Environment.download_count + bindparam("more"))
        rows = [{"environment": environment, "more": more} for environment, more in sorted(totals.items())]
        session.connection().execute(raised, rows, execution_options=QUIET)
