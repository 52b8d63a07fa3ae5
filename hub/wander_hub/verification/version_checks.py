"""Checks of published versions by the hub itself, with `wander check` as any user would run it.

Every version is checked after its publication. The result is shown next to the publisher's statement and has
no other effect. A check finds faults, but it proves nothing against an environment that is built to deceive
it. If the operator wants it, a proof of learning follows. The files of a version never change, so each is
done once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress

from pydantic import FiniteFloat, TypeAdapter, ValidationError
from sqlalchemy import select
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session, joinedload
from wander.wire import CheckSummary
from wander.wire.verification import CheckedWith, HubCheck, HubLearning, LearningReport

from wander_hub import __version__
from wander_hub.database import Database, fill, now
from wander_hub.environments import service as environments
from wander_hub.environments.models import Environment, File, Version
from wander_hub.environments.repository import lock_environment
from wander_hub.http.problems import HubProblem
from wander_hub.identity import HUB
from wander_hub.jobs import JobContext, JobRefused, TableQueue, hide_paths, storable
from wander_hub.leaderboards import environment_listing
from wander_hub.verification.models import VersionCheck
from wander_hub.verification.program import ClientProgram

KIND = "check"
"""Kind of the jobs that check a version."""
LEARN = "learn"
"""Kind of the jobs that train a tiny policy on a version."""
_PRIORITIES = {KIND: -1, LEARN: -2}
_AT_ONCE = 100
_EARNED = TypeAdapter(dict[str, FiniteFloat])


class VersionSweep:
    """Finds new wheels of environments and submits jobs of these kinds for their versions.

    After a start of the hub, it looks at all wheels, so versions that were published while checks were
    disabled are checked as well.
    """

    def __init__(self, database: Database, queue: TableQueue, kinds: Sequence[str] = (KIND,)) -> None:
        self._database = database
        self._queue = queue
        self._kinds = kinds
        self._seen = 0

    def __call__(self) -> None:
        """Search for new wheels once."""
        with self._database.read(HUB) as session:
            fresh = session.execute(
                select(File.id, File.version_id).where(File.id > self._seen).order_by(File.id).limit(_AT_ONCE)
            ).all()
            if not fresh:
                return
            ids = {version_id for _, version_id in fresh}
            query = (
                select(Version.id)
                .join(Environment, Environment.id == Version.environment_id)
                .join(File, File.version_id == Version.id)
                .where(
                    Version.id.in_(ids),
                    File.kind == "wheel",
                    Version.deleted_at.is_(None),
                    Environment.deleted_at.is_(None),
                    Environment.listed,  # excludes the hub's own packages, which are not environments
                )
            )
            versions = sorted(set(session.scalars(query)))
            done = select(VersionCheck.version_id, VersionCheck.kind).where(VersionCheck.version_id.in_(ids))
            submitted = {(version_id, kind) for version_id, kind in session.execute(done)}
        for kind in self._kinds:
            for version_id in versions:
                if (version_id, kind) not in submitted:
                    self._submit(version_id, kind)
        self._seen = fresh[-1][0]

    def _submit(self, version_id: int, kind: str) -> None:
        """Submit a job, unless another process of this hub has submitted it already."""
        with suppress(IntegrityError), self._database.write() as session:
            job_id = self._queue.submit(
                session,
                kind,
                f"{kind} {version_id}",
                {"version_id": version_id},
                priority=_PRIORITIES[kind],
                created_by=session.get_one(Version, version_id).uploaded_by_id,
            )
            session.add(VersionCheck(version_id=version_id, kind=kind, job_id=job_id, created_at=now()))


class Checker:
    """Job handler that checks a version."""

    def __init__(self, database: Database, program: ClientProgram) -> None:
        self._database = database
        self._program = program

    def __call__(self, context: JobContext) -> Callable[[Session], None]:
        """Check a version; return a function that stores the report."""
        version_id, label = _version_of(context, self._database)
        data = self._program.run(context, ["check", label], version_id)
        try:
            made_with = CheckedWith.model_validate({**data["made_with"], "hub": __version__})
            checks = [(check["id"], check["status"], str(check["message"])) for check in data["checks"]]
            summary = CheckSummary.of(made_with.wander, checks)
            seconds, earned = float(data["seconds"]), _EARNED.validate_python(data.get("earned", {}))
        except (ValidationError, KeyError) as error:
            raise JobRefused(f"`wander check` did not return a report: {error}") from error

        def keep(session: Session) -> None:
            row = session.get_one(VersionCheck, (version_id, KIND))
            row.report = {"summary": summary.model_dump(mode="json"), "seconds": seconds, "earned": earned}
            row.made_with = made_with.model_dump(mode="json")
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
            environment_listing.refresh(session, version.environment)

        return keep


class Learner:
    """Job handler that trains a tiny policy on a version."""

    def __init__(self, database: Database, program: ClientProgram) -> None:
        self._database = database
        self._program = program

    def __call__(self, context: JobContext) -> Callable[[Session], None]:
        """Run the recipe on a version; return a function that stores the report."""
        version_id, label = _version_of(context, self._database)
        data = self._program.run(context, ["check", label, "--learn"], version_id)
        try:
            made_with = CheckedWith.model_validate({**data["made_with"], "hub": __version__})
            stated = dict(data["learning"])
            digest = stated.pop("digest")
            report = LearningReport.model_validate(stated)
        except (ValidationError, KeyError) as error:
            raise JobRefused(f"`wander check --learn` did not return a report: {error}") from error
        report.reason = storable(hide_paths(report.reason))
        if digest != report.digest:
            raise JobRefused("`wander check --learn` returned a report of another release of the SDK")

        def keep(session: Session) -> None:
            row = session.get_one(VersionCheck, (version_id, LEARN))
            row.report = report.model_dump(mode="json", by_alias=True)
            row.made_with = made_with.model_dump(mode="json")

        return keep


def _version_of(context: JobContext, database: Database) -> tuple[int, str]:
    """Return the id and the full name of the version that a job is about."""
    version_id = int(context.lease.payload["version_id"])
    with database.read(HUB) as session:
        version = session.get_one(
            Version, version_id, options=[joinedload(Version.environment).joinedload(Environment.owner)]
        )
        if version.deleted_at is not None:
            raise JobRefused("the version was deleted")
        return version_id, f"{version.environment.label}@{version.version}"


def check_of(session: Session, owner: str, name: str, version: str) -> HubCheck:
    """Return the result or progress of the hub's own checks of a version; raise a 404 problem without any."""
    version_id, label = _find_version(session, owner, name, version)
    info = info_of(session, version_id)
    if info is None:
        hint = f"check it yourself: `wander check {label}`"
        raise HubProblem(404, "not_checked", f"this hub has not checked `{label}`", hint=hint)
    return info


def _find_version(session: Session, owner: str, name: str, version: str) -> tuple[int, str]:
    """Return the id and the full name of a version; raise a 404 problem if it does not exist."""
    environment = environments.find(session, owner, name)
    found = environments.find_version(session, environment, version)
    return found.id, f"{environment.label}@{found.version}"


def info_of(session: Session, version_id: int) -> HubCheck | None:
    """Return the hub's checks of a version, or None."""
    row = session.get(VersionCheck, (version_id, KIND), options=[joinedload(VersionCheck.job)])
    if row is None:
        return None
    report = row.report or {}
    earned = report.get("earned", {})
    others = [reward for player, reward in earned.items() if player != "gold"]
    return fill(
        HubCheck,
        row.job,
        created_at=row.created_at,
        summary=CheckSummary.model_validate(report["summary"]) if report else None,
        earned=earned,
        gap=earned["gold"] - max(others) if "gold" in earned and others else None,
        seconds=report.get("seconds"),
        made_with=CheckedWith.model_validate(row.made_with) if row.made_with else None,
    )


def learning_of(session: Session, owner: str, name: str, version: str) -> HubLearning:
    """Return the result or progress of the proof of learning of a version; raise a 404 problem without
    any."""
    version_id, label = _find_version(session, owner, name, version)
    learning = learning_info(session, version_id)
    if learning is None:
        hint = f"run it yourself: `wander check {label} --learn`"
        raise HubProblem(404, "no_learning", f"this hub has no proof of learning for `{label}`", hint=hint)
    return learning


def learning_info(session: Session, version_id: int) -> HubLearning | None:
    """Return the proof of learning of a version, or None."""
    row = session.get(VersionCheck, (version_id, LEARN), options=[joinedload(VersionCheck.job)])
    if row is None:
        return None
    report = LearningReport.model_validate(row.report) if row.report else None
    return fill(
        HubLearning,
        row.job,
        created_at=row.created_at,
        report=report,
        digest=report.digest if report else None,
    )
