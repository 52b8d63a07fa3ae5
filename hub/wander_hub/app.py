"""Build the ASGI application from its settings, without global state."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from functools import cache, partial
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI
from starlette.concurrency import run_in_threadpool
from starlette.routing import BaseRoute
from starlette.types import Receive, Scope, Send
from wander.wire.environments import Problem

from wander_hub import __version__
from wander_hub.attestations import routes as attestations
from wander_hub.database import Database
from wander_hub.environments import routes as environments
from wander_hub.http import health
from wander_hub.http.bodies import arriving
from wander_hub.http.boundary import find_undeclared_routes
from wander_hub.http.compression import Compression
from wander_hub.http.hosts import Hosts, misdirected
from wander_hub.http.limits import AGREE_SECONDS, RequestLimits, share_spending
from wander_hub.http.middleware import ResponseHeaders
from wander_hub.http.problems import install_handlers, log_failure, refusals
from wander_hub.http.routing import find_foreign_routes
from wander_hub.index import routes as index
from wander_hub.index.anonymous import AnonymousReader
from wander_hub.index.direct import DirectIndex
from wander_hub.index.downloads import FLUSH_SECONDS, DownloadCounter
from wander_hub.index.upstream import Upstream
from wander_hub.jobs import TableQueue
from wander_hub.leaderboards import environment_listing
from wander_hub.leaderboards import routes as leaderboards
from wander_hub.lifecycle import model_routes as model_life
from wander_hub.lifecycle import routes as environment_life
from wander_hub.models import routes as models
from wander_hub.names import BUNDLED_OWNER
from wander_hub.operation import administration, audit_routes
from wander_hub.operation import routes as operation
from wander_hub.operation.job_queue import settle_failures
from wander_hub.operation.metrics import HubMetrics
from wander_hub.people import routes as people
from wander_hub.people import sessions
from wander_hub.posting import key_routes
from wander_hub.posting import run_routes as run_changes
from wander_hub.publishers import routes as publishers
from wander_hub.quotas import routes as quotas
from wander_hub.rights import routes as accounts
from wander_hub.rights.tokens import authenticate
from wander_hub.runs import routes as runs
from wander_hub.sealed import routes as sealed
from wander_hub.settings import Settings
from wander_hub.storage import Storage
from wander_hub.transfers import service as transfers
from wander_hub.upload import bundled
from wander_hub.upload import routes as upload
from wander_hub.verification import routes as verification
from wander_hub.web import provider as sign_in_provider
from wander_hub.web import routes as web
from wander_hub.web import sign_in
from wander_hub.web.anonymous import AnonymousPages
from wander_hub.web.docs.library import Library
from wander_hub.webhooks import delivery as webhook_delivery
from wander_hub.webhooks import outbox
from wander_hub.webhooks import routes as webhooks

logger = logging.getLogger("wander_hub")

_SWEEP_SECONDS = 900.0
_SEARCH_SECONDS = 20.0
"""Delay after the start before the search index of the documentation is built, which takes about one second
of CPU time."""

_DESCRIPTION = """ Registry of reinforcement-learning environments for language models. It has a standard
Python package index for each owner, run records whose aggregates the hub recomputes itself, and leaderboards
of comparable runs.

Errors are RFC 9457 problem details with a stable `code` and a `hint` that suggests what to do next.
"""


class Hub(FastAPI):
    """The FastAPI application. Requests for index pages and files take a shorter path that skips FastAPI."""

    def __init__(self, direct: DirectIndex, hosts: Hosts, **options: Any) -> None:
        super().__init__(**options)
        self._direct, self._hosts = direct, hosts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle a request, by the direct index path if possible; reject requests for unknown host names."""
        if scope["type"] != "http":
            await super().__call__(scope, receive, send)
            return
        watched, direct = self.state.metrics.watch(scope, send, draining=self.state.draining), False
        try:
            if not self._hosts.accepts(scope):
                await misdirected()(scope, receive, watched.send)
            elif (refusal := self.state.limits.refuse(scope)) is not None:
                await refusal(scope, receive, watched.send)
            elif not (direct := await self._direct.answer(scope, watched.send)):
                await super().__call__(scope, arriving(scope, receive), watched.send)
        finally:
            watched.end(direct=direct)
            self.state.limits.note(scope, watched.status)

    def openapi(self) -> dict[str, Any]:
        """Return the OpenAPI document, with the `Problem` schema that error responses use."""
        document = super().openapi()
        schemas = document["components"]["schemas"]
        if "Problem" not in schemas:  # FastAPI builds the document once and caches it
            problem = Problem.model_json_schema(ref_template="#/components/schemas/{model}")
            schemas |= {**problem.pop("$defs", {}), "Problem": problem}
            _document_body_limits(document)
        return document


def _document_body_limits(document: dict[str, Any]) -> None:
    """Add the "too large" response to every route that reads a request body."""
    status = HTTPStatus.REQUEST_ENTITY_TOO_LARGE
    too_large = {str(status.value): refusals(status)[status]}
    for methods in document["paths"].values():
        for described in methods.values():
            if "requestBody" in described:
                described["responses"] = too_large | described["responses"]


@asynccontextmanager
async def keep_sweeping(database: Database, storage: Storage) -> AsyncIterator[None]:
    """Run the periodic sweep while the block is active."""

    ending = threading.Event()

    def fill() -> None:
        if filled := environment_listing.fill_search(database, ending.is_set):
            logger.info("added %d restored environments to the search index", filled)

    async def sweep_forever() -> None:
        filled = False
        while True:
            filled = filled or await _try(fill, "cannot fill the search index; will try again")
            await _try(
                partial(sweep, database, storage),
                "cannot remove expired transfers and deliveries; will try again",
            )
            await asyncio.sleep(_SWEEP_SECONDS)

    async with _in_background(sweep_forever()):
        try:
            yield
        finally:
            ending.set()


@asynccontextmanager
async def _in_background(work: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    """Run a coroutine while the block is active, and cancel it afterwards."""
    task = asyncio.create_task(work)
    try:
        yield
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


async def _try(work: Callable[[], object], failure: str) -> bool:
    """Run `work` in a thread and return whether it succeeded; log `failure` if it did not.

    Cancellation waits until the thread ends, because the database is closed afterwards.
    """
    thread = asyncio.ensure_future(run_in_threadpool(work))
    try:
        await asyncio.shield(thread)
    except asyncio.CancelledError:
        await asyncio.wait([thread])
        raise
    except Exception as error:  # noqa: BLE001 - the error is logged, and the caller tries again later
        log_failure(failure, error)
        return False
    return True


@asynccontextmanager
async def keep_counting(downloads: DownloadCounter) -> AsyncIterator[None]:
    """Save download counts at regular intervals while the block is active, and once more at its end."""

    async def flush_forever() -> None:
        while True:
            await asyncio.sleep(FLUSH_SECONDS)
            await _try(downloads.flush, "cannot save the download counts; will try again")

    try:
        async with _in_background(flush_forever()):
            yield
    finally:
        await run_in_threadpool(downloads.flush)


async def share_counts_forever(limits: RequestLimits, database: Database) -> None:
    """Share the request counts of this process with the other processes of the hub at regular intervals."""
    while True:
        await asyncio.sleep(AGREE_SECONDS)
        if unshared := limits.unshared():
            await _try(
                partial(share_spending, database, unshared), "cannot share request limits; will try again"
            )


def sweep(database: Database, storage: Storage) -> None:
    """Remove expired transfers and expired webhook deliveries."""
    database.commit(webhook_delivery.sweep)
    if ended := transfers.sweep(database, storage):
        logger.info("removed %d expired transfers", ended)


def create_app(
    settings: Settings,
    *,
    database: Database | None = None,
    storage: Storage | None = None,
    address: str | None = None,
) -> FastAPI:
    """Return the hub's application for a migrated database.

    With `address`, the address that the server listens on, the application only handles requests whose host
    name belongs to the hub.
    """
    database = database or Database(settings.resolved_database_url)
    storage = storage or Storage.of(settings)
    outbox.begin_links(database, settings)
    downloads = DownloadCounter(database)
    reader, upstream = AnonymousReader(database), Upstream(settings.upstream_index)

    @asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
        await run_in_threadpool(_start, settings, database, storage)
        async with (
            keep_sweeping(database, storage),
            keep_counting(downloads),
            _in_background(share_counts_forever(app.state.limits, database)),
            _in_background(_prepare_search(app.state.library)),
        ):
            yield
        await upstream.close()
        reader.close()
        database.close()

    app = Hub(
        DirectIndex(reader, storage, settings, downloads),
        Hosts(settings, address),
        title="Wander hub",
        version=__version__,
        description=_DESCRIPTION,
        docs_url=None,  # the usual documentation pages load their scripts from a third party
        redoc_url=None,
        redirect_slashes=False,
        lifespan=lifespan,
    )
    app.state.settings, app.state.database, app.state.storage = settings, database, storage
    app.state.metrics, app.state.draining = HubMetrics(database, settings), False
    app.state.limits = RequestLimits(settings)
    app.state.authenticate, app.state.upstream = authenticate, upstream
    app.state.authenticate_browser = sessions.authenticate
    app.state.downloads, app.state.library = downloads, Library(app.openapi)
    app.state.jobs, app.state.job_worker = settle_failures(TableQueue.of(settings, database)), None
    app.router.routes.extend(_routes())
    app.add_middleware(Compression)
    app.add_middleware(ResponseHeaders)
    app.add_middleware(AnonymousPages, reader=reader, settings=repr(settings))
    install_handlers(app, web.problem_page)
    return app


async def _prepare_search(library: Library) -> None:
    await asyncio.sleep(_SEARCH_SECONDS)
    library.prepare_search()


@cache
def _routes() -> tuple[BaseRoute, ...]:
    """Return the routes, cached because building them takes longer than the rest of `create_app`."""
    # Fixed paths come before paths that start with an owner's name. Pages come last.
    routers = (
        health.router,
        operation.router,
        accounts.router,
        people.router,
        quotas.router,
        publishers.router,
        audit_routes.router,
        webhooks.router,
        administration.router,
        leaderboards.router,
        environments.router,
        environment_life.router,
        runs.router,
        run_changes.router,
        run_changes.transfer_router,
        key_routes.router,
        verification.router,
        sealed.router,
        upload.version_router,
        upload.model_router,
        model_life.router,
        models.router,
        upload.router,
        attestations.router,
        index.router,
        sign_in.router,
        sign_in_provider.router,
        web.router,
    )
    # `include_router` would build each route a second time and add nothing, so the routes are used directly.
    routes = tuple(route for router in routers for route in router.routes)
    if undeclared := find_undeclared_routes(routes):
        raise RuntimeError(
            "these routes do not declare who may use them (`Needs`) or what they do (`audited`): "
            + ", ".join(undeclared)
        )
    if foreign := find_foreign_routes(routes):
        raise RuntimeError("these routes do not come from a `HubRouter`: " + ", ".join(foreign))
    return routes


def _start(settings: Settings, database: Database, storage: Storage) -> None:
    database.commit(bundled.ensure_owner)
    if settings.bundled_packages:
        for filename in bundled.publish_bundled(database, storage, settings):
            logger.info("published `%s` under the owner `%s`", filename, BUNDLED_OWNER)
