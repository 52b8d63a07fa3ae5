"""The worker that plays runs again beside the hub, and whether it can confine what it plays."""

from __future__ import annotations

import importlib.util
import logging
import os
import socket

from wander_hub.database import Database
from wander_hub.jobs import Handler, TableQueue, Worker
from wander_hub.jobs.choice import worker_of
from wander_hub.settings import Settings
from wander_hub.storage import Storage
from wander_hub.verification import evidence, service, version_checks
from wander_hub.verification.examination import Examiner
from wander_hub.verification.program import ClientProgram
from wander_hub.verification.replay import Replayer
from wander_hub.verification.version_checks import Checker, VersionSweep

logger = logging.getLogger("wander_hub")


def confine(settings: Settings) -> Settings:
    """Return the settings with verification off where it cannot be had as they ask for it, and say why."""
    if settings.verification == "off":
        return settings
    why = None
    if importlib.util.find_spec("wander_client") is None:
        why = "wander-client is not installed beside the hub"
    elif settings.verification == "sandbox":
        why = _why_not_confined()
    if why is None:
        return settings
    logger.warning("posted runs are not played again: %s", why)
    return settings.model_copy(update={"verification": "off"})


def job_worker(
    settings: Settings, database: Database, storage: Storage, queue: TableQueue, hub_url: str
) -> Worker:
    """Return the worker of a hub that answers at `hub_url`, not yet started.

    Without verification it only reads runs; nothing of an environment runs then.
    """
    handlers: dict[str, Handler] = {evidence.KIND: Examiner(database, storage)}
    look = None
    if settings.verification != "off":
        program = ClientProgram(
            database,
            hub_url,
            (settings.verification_folder or settings.data / "verification").absolute(),
            sandbox=settings.verification == "sandbox",
            seconds=settings.verification_seconds,
        )
        handlers[service.KIND] = Replayer(program)
        if settings.check_versions:
            handlers[version_checks.KIND] = Checker(database, program)
            look = VersionSweep(database, queue)
    name = f"{socket.gethostname()} {os.getpid()}"
    return worker_of(queue, handlers, name, look=look, concurrency=settings.job_concurrency)


def _why_not_confined() -> str | None:
    from wander.errors import SandboxError
    from wander.sandbox.support import require_support

    try:
        require_support()
    except SandboxError as error:
        return f"{error}; {error.hint}" if error.hint else str(error)
    return None
