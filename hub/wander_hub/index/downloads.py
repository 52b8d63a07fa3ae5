"""Counts files that were sent: in memory, then some seconds together in one statement.

Requests only add to a number here. What a process counted since it last wrote is lost when it is killed
(`kill -9`), and with nothing else: a hub that ends writes first. HEAD, parts of a file beyond its beginning,
answers that nothing changed and what the hub itself fetches to replay runs are no downloads.
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
"""How long a count may wait, so what a kill may lose."""
_AT_ONCE = 5000


class DownloadCounter:
    """What one process sent since it last wrote that down."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._lock, self._writing = threading.Lock(), threading.Lock()
        self._counts: Counter[tuple[int, date]] = Counter()

    def note(self, version_id: int) -> None:
        """Count a file of a version that was sent."""
        key = version_id, now().date()
        with self._lock:
            self._counts[key] += 1

    def flush(self) -> int:
        """Write down what was counted; return how many that were. What cannot be written is kept."""
        with self._writing:  # who asks last waits until all is written
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
    """Add counts by version and day to those of the database, and to the totals of environments."""
    dialect = postgresql if session.get_bind().dialect.name == "postgresql" else sqlite
    insert = dialect.insert(Downloads)
    insert = insert.on_conflict_do_update(
        index_elements=["version_id", "day"], set_={"count": Downloads.count + insert.excluded.count}
    )
    ordered = sorted(counts.items())
    for start in range(0, len(ordered), _AT_ONCE):
        some = ordered[start : start + _AT_ONCE]
        counted = insert.values([{"version_id": one, "day": day, "count": n} for (one, day), n in some])
        session.execute(counted, execution_options=QUIET)
        owned = select(Version.id, Version.environment_id).where(
            Version.id.in_({one for (one, _), _ in some})
        )
        environment_of = {version: environment for version, environment in session.execute(owned)}
        totals: Counter[int] = Counter()
        for (version, _), count in some:
            totals[environment_of[version]] += count
        # In one order, so that two processes cannot wait for each other.
        raised = update(Environment).where(Environment.id == bindparam("environment"))
        raised = raised.values(download_count=Environment.download_count + bindparam("more"))
        rows = [{"environment": one, "more": more} for one, more in sorted(totals.items())]
        session.connection().execute(raised, rows, execution_options=QUIET)
