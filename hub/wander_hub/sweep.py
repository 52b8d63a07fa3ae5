"""Drops now and then, in the background, what was sent in part and never finished."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

from starlette.concurrency import run_in_threadpool

from wander_hub.database import Database
from wander_hub.posting import service as posting
from wander_hub.storage import Storage
from wander_hub.upload import sweep as uploads

logger = logging.getLogger("wander_hub")

_EVERY_SECONDS = 900.0


@asynccontextmanager
async def keep_sweeping(database: Database, storage: Storage) -> AsyncIterator[None]:
    """Sweep as long as the block lasts."""

    async def sweep_forever() -> None:
        while True:
            await asyncio.sleep(_EVERY_SECONDS)
            try:
                await run_in_threadpool(sweep, database, storage)
            except Exception:
                logger.exception("unfinished transfers could not be swept; the next try follows")

    task = asyncio.create_task(sweep_forever())
    try:
        yield
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


def sweep(database: Database, storage: Storage) -> None:
    """Drop the uploads and the postings whose time is over, with all that came of them."""
    ended, chunks = uploads.sweep(database, storage)
    if ended or chunks:
        logger.info("dropped %d unfinished uploads and %d chunks", ended, chunks)
    forgotten = 0
    while some := posting.forget_expired(database, storage):
        forgotten += some
    if forgotten:
        logger.info("dropped %d unfinished postings", forgotten)
