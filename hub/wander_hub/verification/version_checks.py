"""Checks of published versions, run by the hub itself: `wander check`, as any stranger would run it.

A version is checked after it was published, whoever published it. What comes out stands beside what the
publisher stated, and changes nothing else: a check finds faults, it is no proof against an environment that
sets out to deceive it.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

from pydantic import FiniteFloat, TypeAdapter, ValidationError
from sqlalchemy import select
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session, joinedload
from wander.wire import CheckSummary
from wander.wire.verification import CheckedWith, HubCheck

from wander_hub import __version__
from wander_hub.database import Database, fill, now
from wander_hub.environments import service as environments
from wander_hub.environments.models import Environment, File, Version
from wander_hub.environments.repository import lock_environment
from wander_hub.http.problems import HubProblem
from wander_hub.identity import HUB
from wander_hub.jobs import JobContext, JobRefused, TableQueue
from wander_hub.leaderboards import listing
from wander_hub.verification.models import VersionCheck
from wander_hub.verification.program import ClientProgram

KIND = "check"
"""Of the jobs that check a version."""
_AT_ONCE = 100
_EARNED = TypeAdapter(dict[str, FiniteFloat])


class VersionSweep:
    """Finds wheels of environments that came since it looked last, and has their versions checked.

    At the start of a hub these are all: versions that came while it checked none get theirs too.
    """

    def __init__(self, database: Database, queue: TableQueue) -> None:
        self._database = database
        self._queue = queue
        self._seen = 0

    def __call__(self) -> None:
        """Look once."""
        with self._database.read(HUB) as session:
            fresh = session.execute(
                select(File.id, File.version_id).where(File.id > self._seen).order_by(File.id).limit(_AT_ONCE)
            ).all()
            if not fresh:
                return
            query = (
                select(Version.id)
                .join(Environment, Environment.id == Version.environment_id)
                .join(File, File.version_id == Version.id)
                .outerjoin(VersionCheck, VersionCheck.version_id == Version.id)
                .where(
                    Version.id.in_({version_id for _, version_id in fresh}),
                    File.kind == "wheel",
                    VersionCheck.version_id.is_(None),
                    Version.deleted_at.is_(None),
                    Environment.deleted_at.is_(None),
                    Environment.listed,  # the hub's own packages are no environments
                )
            )
            unchecked = sorted(set(session.scalars(query)))
        for version_id in unchecked:
            payload = {"version_id": version_id}
            # Another process of this hub may have seen it first.
            with suppress(IntegrityError), self._database.write() as session:
                publisher = session.get_one(Version, version_id).uploaded_by_id
                job_id = self._queue.submit(
                    session, KIND, f"{KIND} {version_id}", payload, priority=-1, created_by=publisher
                )
                session.add(VersionCheck(version_id=version_id, job_id=job_id, created_at=now()))
        self._seen = fresh[-1][0]


class Checker:
    """The handler of check jobs."""

    def __init__(self, database: Database, program: ClientProgram) -> None:
        self._database = database
        self._program = program

    def __call__(self, context: JobContext) -> Callable[[Session], None]:
        """Check a version; return what keeps the report."""
        version_id = int(context.lease.payload["version_id"])
        with self._database.read(HUB) as session:
            version = session.get_one(
                Version, version_id, options=[joinedload(Version.environment).joinedload(Environment.owner)]
            )
            if version.deleted_at is not None:
                raise JobRefused("the version was deleted")
            label = f"{version.environment.label}@{version.version}"
        data = self._program.run(context, ["check", label], version_id)
        try:
            made_with = CheckedWith.model_validate({**data["made_with"], "hub": __version__})
            checks = [(each["id"], each["status"], str(each["message"])) for each in data["checks"]]
            summary = CheckSummary.of(made_with.wander, checks)
            seconds, earned = float(data["seconds"]), _EARNED.validate_python(data.get("earned", {}))
        except (ValidationError, KeyError) as error:
            raise JobRefused(f"`wander check` answered with no report: {error}") from error

        def keep(session: Session) -> None:
            one = session.get_one(VersionCheck, version_id)
            one.report = {"summary": summary.model_dump(mode="json"), "seconds": seconds, "earned": earned}
            one.made_with = made_with.model_dump(mode="json")
            version = session.get_one(
                Version, version_id, options=[joinedload(Version.environment).joinedload(Environment.owner)]
            )
            lock_environment(session, version.environment)
            version.checked = not summary.failed
            version.environment_kind = (
                "-".join(str(data["kind"]).split())[:40] or None if data.get("kind") else None
            )
            version.deterministic = (
                data.get("deterministic") if type(data.get("deterministic")) is bool else None
            )
            listing.refresh(session, version.environment)

        return keep


def check_of(session: Session, owner: str, name: str, version: str) -> HubCheck:
    """Return what the hub's own checks of a version came to, or how far they are; a 404 without any."""
    environment = environments.find(session, owner, name)
    found = environments.find_version(session, environment, version)
    info = info_of(session, found.id)
    if info is None:
        label = f"{environment.label}@{found.version}"
        hint = f"check it yourself: `wander check {label}`"
        raise HubProblem(404, "not_checked", f"this hub did not check `{label}`", hint=hint)
    return info


def info_of(session: Session, version_id: int) -> HubCheck | None:
    """Return the hub's checks of a version, None where there are none."""
    one = session.get(VersionCheck, version_id, options=[joinedload(VersionCheck.job)])
    if one is None:
        return None
    report = one.report or {}
    return fill(
        HubCheck,
        one.job,
        created_at=one.created_at,
        summary=CheckSummary.model_validate(report["summary"]) if report else None,
        earned=report.get("earned", {}),
        seconds=report.get("seconds"),
        made_with=CheckedWith.model_validate(one.made_with) if one.made_with else None,
    )
