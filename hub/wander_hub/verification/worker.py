"""The worker that verifies runs, and whether this machine has what it needs."""

from __future__ import annotations

import importlib.util
import logging
import math
import secrets
from collections.abc import Callable
from typing import Any

from pydantic import ValidationError
from sqlalchemy.orm import Session
from wander.boxes.policy import BACKEND, HOSTS, IMAGES, LIMITS, NONE
from wander.wire import RunSummary
from wander.wire.verification import ReplayReport, VerifiedWith

from wander_hub.database import Database
from wander_hub.identity import HUB
from wander_hub.jobs import (
    Handler,
    JobContext,
    JobRefused,
    JobUnfinished,
    JobWorker,
    TableQueue,
    hide_paths,
    storable,
    worker_name,
)
from wander_hub.runs import service as runs
from wander_hub.settings import Settings
from wander_hub.storage import Storage
from wander_hub.verification import evidence, service, version_checks
from wander_hub.verification.aggregates import add_bounds, summarize
from wander_hub.verification.evidence import Examiner
from wander_hub.verification.program import ClientProgram
from wander_hub.verification.version_checks import Checker, Learner, VersionSweep

logger = logging.getLogger("wander_hub")

_LONGEST_REASON = 2000
_TRIES = 2
"""Number of replays before a failure counts as the run's own fault."""


class Replayer:
    """Job handler that replays a run with `wander runs replay`, as any user would."""

    def __init__(
        self, program: ClientProgram, database: Database, storage: Storage, seconds: float = math.inf
    ) -> None:
        """`seconds` is the maximum time for a run."""
        self._seconds = seconds
        self._program = program
        self._database = database
        self._storage = storage

    def __call__(self, context: JobContext) -> Callable[[Session], None]:
        """Replay a run; return a function that stores the report.

        A replay that did not finish is tried again. If it fails twice, the failure counts as the run's own
        fault.
        """
        payload = context.lease.payload
        run_id = str(payload["run_id"])
        with self._database.read(HUB) as session:
            run = runs.find(session, run_id)
            version_id, limit = run.version_id, service.time_limit_of(run, self._seconds)
        words = ["runs", "replay", run_id, "--stream", "--time-limit", f"{limit:.0f}"]
        words += ["--level", str(payload.get("level", "highest"))]
        if payload.get("sample") is not None:
            # The seed is drawn now and first stored with the report, so nobody can predict the sampled
            # rollouts.
            words += ["--sample", str(payload["sample"]), "--seed", str(secrets.randbits(62))]
        try:
            report, made_with = _read_answer(self._program.run(context, words, version_id, limit))
        except JobRefused as refusal:
            report, made_with = self._refused(run_id, str(refusal)), None
        if report.unfinished and context.lease.tries < _TRIES:
            raise JobUnfinished(report.refused or report.undecided_reason or "it did not finish")
        summary = self._within_bounds(run_id, made_with)
        return lambda session: service.store_report(session, context.lease.job_id, report, made_with, summary)

    def _refused(self, run_id: str, reason: str) -> ReplayReport:
        """Return the report of a replay that could not compare anything."""
        with self._database.read(HUB) as session:
            run = runs.find(session, run_id)
            return ReplayReport(
                run_id=run_id,
                expected=run.parsed_manifest.expected_rollouts,
                recorded=int(run.summary["rollouts"]),
                replayed=0,
                same=0,
                differing=0,
                failed=0,
                refused=storable(hide_paths(reason))[:_LONGEST_REASON],
                unfinished=run.parsed_manifest.expected_rollouts,
            )

    def _within_bounds(self, run_id: str, made_with: VerifiedWith | None) -> RunSummary | None:
        """Return new aggregates if the environment declares bounds that the run does not state, otherwise
        None."""
        if made_with is None:
            return None
        with self._database.read(HUB) as session:
            run = runs.find(session, run_id)
            manifest = run.parsed_manifest
            stated = manifest.environment.info
            info = add_bounds(stated, made_with.environment.info)
            if info == stated:
                return None
            return summarize(session, self._storage, run, info, manifest.expected_rollouts)


def _read_answer(data: dict[str, Any]) -> tuple[ReplayReport, VerifiedWith | None]:
    """Return the report of `wander runs replay`. Raises `RuntimeError` if the answer is not a report."""
    try:
        stated = data.pop("made_with")
        made_with = VerifiedWith.model_validate(stated) if stated is not None else None
        data.pop("level")
        for name in ("refused", "undecided_reason"):
            data[name] = hide_paths(data[name]) if data.get(name) else None
        return ReplayReport.model_validate(data), made_with
    except (ValidationError, KeyError) as error:
        raise RuntimeError(f"`wander runs replay` did not return a report: {error}") from error


def confine(settings: Settings) -> Settings:
    """Return the settings, with verification disabled and a warning logged if something it requires is
    missing."""
    why = missing_for_verification(settings)
    if why is None:
        return settings
    logger.warning("the hub cannot replay posted runs: %s", why)
    return settings.model_copy(update={"verification": "off"})


def missing_for_verification(settings: Settings) -> str | None:
    """Return what this machine lacks for the configured verification, or None."""
    if settings.verification == "off":
        return None
    if importlib.util.find_spec("wander_client") is None:
        return "wander-client is not installed in the hub's environment"
    if settings.verification == "sandbox":
        from wander.errors import SandboxError
        from wander.sandbox.support import require_support

        try:
            require_support()
        except SandboxError as error:
            return f"{error}; {error.hint}" if error.hint else str(error)
    return None


def _box_variables(settings: Settings) -> dict[str, str]:
    """Return the variables that tell the `wander` command which boxes it may start."""
    return {
        BACKEND: NONE if settings.boxes == "off" else settings.boxes,
        LIMITS: settings.box_limits,
        IMAGES: ",".join(settings.box_images),
        HOSTS: "",  # what a box reads from the network cannot be repeated
    }


def client_program(settings: Settings, database: Database, hub_url: str) -> ClientProgram:
    """Return the program that runs `wander` for the jobs of a hub that is reachable at `hub_url`."""
    return ClientProgram(
        database,
        hub_url,
        (settings.verification_folder or settings.data / "home").absolute(),
        sandbox=settings.verification == "sandbox",
        seconds=settings.verification_seconds,
        min_free_bytes=settings.min_free_bytes,
        boxes=_box_variables(settings),
    )


def job_worker(
    settings: Settings, database: Database, storage: Storage, queue: TableQueue, hub_url: str
) -> JobWorker:
    """Return the worker of a hub that is reachable at `hub_url`, not started.

    Without verification, it only examines runs, which does not run environment code.
    """
    examiner = Examiner(database, storage, settings.tokenizers)
    handlers: dict[str, Handler] = {evidence.KIND: examiner}
    look: VersionSweep | None = None
    if settings.verification != "off":
        program = client_program(settings, database, hub_url)
        handlers[service.KIND] = Replayer(program, database, storage, settings.verification_seconds)
        if settings.check_versions:
            handlers[version_checks.KIND] = Checker(database, program)
        if settings.learning:
            handlers[version_checks.LEARN] = Learner(database, program)
        kinds = [kind for kind in (version_checks.KIND, version_checks.LEARN) if kind in handlers]
        look = VersionSweep(database, queue, kinds)

    return JobWorker(queue, handlers, worker_name(), look=look, concurrency=settings.job_concurrency)
