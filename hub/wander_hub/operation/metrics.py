"""Prometheus metrics of the hub."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

from sqlalchemy import func, select
from starlette.types import Message, Scope, Send

from wander_hub.database import Database, now
from wander_hub.http.health import free_bytes
from wander_hub.jobs import OPEN, Job
from wander_hub.settings import Settings

if TYPE_CHECKING:
    from prometheus_client.core import Metric

FOLDER_VARIABLE = "PROMETHEUS_MULTIPROC_DIR"
"""Folder where the processes of a hub combine their metrics; prometheus-client reads it when
imported."""
_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})


class HubMetrics:
    """Metrics of one application. Label values never come from callers."""

    def __init__(self, database: Database, settings: Settings) -> None:
        from prometheus_client import CollectorRegistry, Counter, Histogram

        self._database, self._settings = database, settings
        self._registry = CollectorRegistry()
        self._requests = Histogram(
            "wander_hub_request_seconds",
            "Time until the complete response was sent, by route template",
            ("method", "route", "status"),
            buckets=_SECONDS,
            registry=self._registry,
        )
        self._problems = Counter(
            "wander_hub_problems", "Error responses, by code", ("code",), registry=self._registry
        )

    def count_problem(self, code: str) -> None:
        """Count an error response; `storage_unavailable` and `storage_full` are faults of the storage."""
        self._problems.labels(code).inc()

    def watch(self, scope: Scope, send: Send, *, draining: bool) -> Watched:
        """Return an object that measures a request and its response."""
        return Watched(self, scope, send, draining)

    def ended(self, watched: Watched, route: str, status: int) -> None:
        """Count a request whose response was sent."""
        method = watched.method if watched.method in _METHODS else "OTHER"
        self._requests.labels(method, route, str(status)).observe(time.perf_counter() - watched.begun)

    def render(self) -> tuple[bytes, str]:
        """Return all metrics in Prometheus text format, and its media type."""
        from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
        from prometheus_client.multiprocess import MultiProcessCollector

        counted = self._registry
        if os.environ.get(FOLDER_VARIABLE):
            counted = CollectorRegistry()
            MultiProcessCollector(counted)  # type: ignore[no-untyped-call]
        state = CollectorRegistry()
        state.register(self)  # computed once per scrape instead of in each process
        return generate_latest(counted) + generate_latest(state), CONTENT_TYPE_LATEST

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics that are read from the database and the machine."""
        from prometheus_client.core import GaugeMetricFamily

        jobs = GaugeMetricFamily("wander_hub_jobs", "Unfinished jobs", labels=("kind", "state"))
        age = GaugeMetricFamily(
            "wander_hub_job_age_seconds", "Age of the oldest unfinished job", labels=("kind", "state")
        )
        # The index covers this query without reading rows; the job with the lowest id is the oldest.
        query = select(Job.kind, Job.state, func.count(), func.min(Job.id))
        with self._database.read() as session:
            for kind, state, count, first in session.execute(
                query.where(Job.state.in_(OPEN)).group_by(Job.kind, Job.state)
            ).all():
                oldest = session.scalar(select(Job.created_at).where(Job.id == first))
                jobs.add_metric((kind, state), count)
                age.add_metric((kind, state), (now() - oldest).total_seconds() if oldest else 0)
        yield jobs
        yield age
        pool = self._database.engine.pool
        used = pool.checkedout() if hasattr(pool, "checkedout") else 0
        free = free_bytes(self._settings)
        yield GaugeMetricFamily("wander_hub_database_connections", "Connections in use", value=used)
        yield GaugeMetricFamily("wander_hub_free_bytes", "Free space of the data folder", value=free)


class Watched:
    """A request in progress."""

    def __init__(self, metrics: HubMetrics, scope: Scope, send: Send, draining: bool) -> None:
        self._metrics, self._scope, self._send, self._draining = metrics, scope, send, draining
        self.method, self.begun, self.status = scope["method"], time.perf_counter(), 0

    async def send(self, message: Message) -> None:
        """Forward a message; while the hub shuts down, ask clients to reconnect."""
        if message["type"] == "http.response.start":
            self.status = message["status"]
            if self._draining:
                message = {**message, "headers": [*message["headers"], (b"connection", b"close")]}
        await self._send(message)

    def end(self, *, direct: bool) -> None:
        """Count the request under its route template, which stands for all of its addresses."""
        template = getattr(self._scope.get("route"), "path", "none")
        route = "index" if direct else template
        status = self.status or 499  # the client disconnected before the response
        self._metrics.ended(self, route, status)
