"""Brings what is new on another hub: one look goes over all that is followed there.

Nothing is believed but bytes that have their digests. A version goes through the gate as if it were published
here, a run is posted as any other and gets its level here. Each of them comes whole in a transaction of its
own, so the next look goes on where one ended, brings what is missing and nothing twice.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from typing import BinaryIO, cast
from urllib.parse import quote, urlsplit

from sqlalchemy import select
from sqlalchemy.orm import Session
from wander.wire.changes import NewStatus
from wander.wire.environments import Visibility, visibility_of

from wander_hub import audit, names
from wander_hub.accounts import repository as accounts
from wander_hub.accounts.models import Owner, User
from wander_hub.database import Result, now
from wander_hub.environments import repository as environments
from wander_hub.environments import service as environment_service
from wander_hub.environments.models import Environment, Version
from wander_hub.http.boundary import Context
from wander_hub.http.problems import HubProblem
from wander_hub.identity import HUB, Identity
from wander_hub.index import service as index
from wander_hub.jobs import TableQueue
from wander_hub.lifecycle import locks
from wander_hub.lifecycle import service as lifecycle
from wander_hub.mirrors.models import Mirror
from wander_hub.mirrors.upstream import (
    UpstreamEnvironment,
    UpstreamFile,
    UpstreamHub,
    UpstreamRun,
    UpstreamVersion,
)
from wander_hub.posting import service as posting
from wander_hub.posting.reading import Line, lines_that_count
from wander_hub.posting.whole import post_whole
from wander_hub.runs import manifest as manifests
from wander_hub.runs.artifacts import PostedFile, check_file
from wander_hub.runs.manifest import PinnedRun
from wander_hub.runs.models import Run
from wander_hub.storage import digest_of
from wander_hub.upload import checks, finalize, service
from wander_hub.upload.schemas import Package, Upload
from wander_hub.visibility import narrower

_IN_MEMORY = 4 * 1024 * 1024
_MOST_PROBLEMS = 100
_IMPOSED = "on the hub that this one mirrors: "
"""How the reason of a quarantine begins that came from there."""


def source_of(url: str, owner: str, name: str) -> str:
    """Return the address of an environment on another hub."""
    return f"{url}/{owner}/{name}"


@dataclass
class Look:
    """One look at what a mirror follows."""

    context: Context
    queue: TableQueue
    upstream: UpstreamHub
    mirror: Mirror
    check: Callable[[], None]
    """Raises when there is no use in going on."""
    thorough: bool = False
    """Compare everything, also where the other hub says that nothing changed."""
    versions: int = 0
    runs: int = 0
    problems: list[str] = field(default_factory=list)

    def go(self) -> None:
        """Bring what is new; what cannot be brought is among the problems."""
        owner, wanted = self.mirror.owner, self.mirror.name
        listed = list[UpstreamEnvironment]()
        if wanted:
            self._attempt(
                f"{owner}/{wanted}", lambda: listed.append(self.upstream.environment(owner, wanted))
            )
        else:
            self._attempt(owner, lambda: listed.extend(self.upstream.list_environments(owner)))
        for one in listed:
            self.check()
            before = len(self.problems)
            self._attempt(f"{owner}/{one.name}", partial(self._bring_if_changed, one))
            if len(self.problems) > before:
                self._note(one.name, None)
        self._tell_of_missing({one.name for one in listed})
        del self.problems[_MOST_PROBLEMS:]

    def _attempt(self, label: str, work: Callable[[], None]) -> None:
        try:
            work()
        except HubProblem as problem:
            self.problems.append(f"`{label}`: {problem.detail}")

    def _bring_if_changed(self, there: UpstreamEnvironment) -> None:
        owner, name = self.mirror.owner, there.name
        if there.owner != owner or not names.is_environment_name(name):
            raise HubProblem(502, "upstream_odd", "the other hub lists it under a name that it cannot have")
        newest = next(self.upstream.list_runs(owner, name, 1), None)
        mark = (
            f"{there.updated_at.isoformat()} {there.runs} {newest.run_id if newest else ''} {_shown(there)}"
        )
        if self.mirror.seen.get(name) == mark and not self.thorough:
            return
        here = self._held(name)
        if here is not None and here.deleted_at is not None:
            return  # whoever runs this hub wants it gone
        detail = self.upstream.environment(owner, name)
        if here is not None:
            self._narrow(here, detail)  # before anything comes that fewer may see there by now
            self._follow_status(here, detail)  # what is in quarantine takes no version
        for version in reversed(detail.all_versions):
            self.check()
            self._attempt(f"{owner}/{name}@{version}", partial(self._bring_version, detail, version))
        here = self._held(name)
        if here is not None:
            self._yank_deleted(name, detail.all_versions)
            self._follow_status(here, detail)
            self._bring_runs(here)
        self._note(name, mark)

    def _held(self, name: str) -> Environment | None:
        """Return the environment of a name here; refuse one that does not follow this hub."""
        with self.context.read() as session:
            owner = accounts.owner_named(session, self.mirror.owner)
            return self._held_in(session, owner, name)

    def _held_in(self, session: Session, owner: Owner | None, name: str) -> Environment | None:
        held = environments.find_taken(session, owner.id, name) if owner is not None else None
        source = source_of(self.mirror.url, self.mirror.owner, name)
        if held is not None and not (isinstance(held, Environment) and held.mirror_of == source):
            raise HubProblem(409, "name_taken", "the name is taken here by something that is no mirror of it")
        return held

    # Versions

    def _bring_version(self, there: UpstreamEnvironment, number: str) -> None:
        owner, name = self.mirror.owner, there.name
        found = self.upstream.version(owner, name, number)
        if not _is_version(number) or found.version != number:
            raise HubProblem(502, "upstream_odd", "the other hub has another version under this number")
        here = self._version(name, number)
        if here is not None and here.deleted_at is not None:
            return
        known = {one.filename: one.sha256 for one in here.files} if here is not None else {}
        for one in found.files:
            if known.get(one.filename, one.sha256) != one.sha256:
                detail = f"`{one.filename}` has other bytes there (`{one.sha256}`) than when it came"
                raise HubProblem(409, "digest_changed", f"{detail} (`{known[one.filename]}`), which stay")
        missing = [one for one in found.files if one.filename not in known]
        if missing:
            self._publish(there, found, missing)
            here = self._version(name, number)
        if here is None:
            return  # under quarantine there, before it ever came
        if found.lock is not None and not any(one.kind == "lock" for one in here.documents):
            self._attach_lock(name, found)
        reason = lifecycle.plain_reason(found.yanked_reason)
        if (found.yanked, reason if found.yanked else None) != (here.yanked, here.yanked_reason):
            self._yank(name, number, reason, undo=not found.yanked, again=here.yanked)

    def _version(self, name: str, number: str) -> Version | None:
        with self.context.read() as session:
            held = environments.environment_named(session, self.mirror.owner, name)
            return environments.version_of(session, held, number) if held is not None else None

    def _publish(
        self, there: UpstreamEnvironment, version: UpstreamVersion, missing: Sequence[UpstreamFile]
    ) -> None:
        owner_name, name, context = self.mirror.owner, there.name, self.context
        with ExitStack() as stack:
            packages, bodies = list[Package](), dict[str, BinaryIO]()
            for one in missing:
                body = cast(BinaryIO, stack.enter_context(tempfile.SpooledTemporaryFile(_IN_MEMORY)))
                path = f"/{owner_name}/files/{name}/{quote(one.filename, safe='')}"
                self.upstream.fetch_file(path, body, context.settings.max_upload_bytes, one.sha256)
                sha256, size = digest_of(body)
                package = checks.check(Upload(owner_name, one.filename, body, size, sha256), context.settings)
                if (package.name, package.version) != (name, version.version):
                    detail = f"`{one.filename}` is of `{package.name}` {package.version}"
                    raise HubProblem(
                        422, "name_mismatch", f"{detail}: what was renamed there is not followed"
                    )
                context.storage.keep(body, sha256, size)
                packages.append(package)
                bodies[sha256] = body
            whole = len(missing) == len(version.files)
            compared = (
                finalize.compare(packages) if whole and version.source and version.source.compared else {}
            )

            def record(session: Session) -> bool:
                owner = accounts.owner_named(session, owner_name)
                assert owner is not None
                accounts.lock_owner(session, owner)
                fresh = self._held_in(session, owner, name) is None
                context.database.lock_objects(session, exclusive=False)
                for sha256, body in bodies.items():
                    context.storage.ensure(sha256, body)
                published = service.publish(
                    *(session, owner, packages, HUB),
                    check=version.check,
                    visibility=narrower(_shown(there), owner.default_visibility) if fresh else None,
                    compared=compared,
                )
                published.environment.mirror_of = source_of(self.mirror.url, owner_name, name)
                _date(published.version, version)
                session.flush()
                index.write_pages(session, published.environment)
                return published.created

            self.versions += self._do("mirror.version", record, name, version.version)

    def _attach_lock(self, name: str, version: UpstreamVersion) -> None:
        assert version.lock is not None
        place = (self.mirror.owner, name, version.version)
        with tempfile.SpooledTemporaryFile(_IN_MEMORY) as body:
            path = "/".join(("/api/v1/environments", *place[:2], "versions", quote(place[2]), "pylock.toml"))
            most = self.context.settings.max_lock_bytes
            self.upstream.fetch_file(path, body, most, version.lock.sha256)
            locks.offer(self.context, *place, body.read())

    def _yank_deleted(self, name: str, offered: Sequence[str]) -> None:
        """Have installers pass over what was deleted there; it stays here for the runs that used it."""
        with self.context.read() as session:
            held = environments.environment_named(session, self.mirror.owner, name)
            rows = environments.numbers_of(session, held) if held is not None else []
        for gone in [one.version for one in rows if one.deleted_at is None and one.version not in offered]:
            found = self.upstream.version(self.mirror.owner, name, gone)
            here = self._version(name, gone)
            if found.deleted_at is None or here is None:
                continue
            reason = lifecycle.plain_reason(f"deleted there: {found.deleted_reason or 'no reason given'}")
            if here.yanked_reason != reason:
                self._yank(name, gone, reason, again=here.yanked)

    def _yank(
        self, name: str, version: str, reason: str | None, *, undo: bool = False, again: bool = False
    ) -> None:
        def change(session: Session) -> None:
            if again and not undo:  # another reason takes the place of the first
                lifecycle.yank(session, HUB, self.mirror.owner, name, version, undo=True)
            lifecycle.yank(session, HUB, self.mirror.owner, name, version, reason, undo=undo)

        self._do("mirror.unyank" if undo else "mirror.yank", change, name, version)

    def _narrow(self, here: Environment, there: UpstreamEnvironment) -> None:
        """Show an environment to no more than see it there."""
        shown = narrower(_shown(there), here.visibility)
        if shown != here.visibility:
            place = (HUB, self.mirror.owner, here.name, shown)
            self._do(
                "mirror.visibility", lambda session: lifecycle.set_visibility(session, *place), here.name
            )

    def _follow_status(self, here: Environment, there: UpstreamEnvironment) -> None:
        """Take on what the other hub says of an environment; a quarantine of this hub's own stays."""
        mine = here.quarantine_reason
        if mine is not None and not mine.startswith(_IMPOSED):
            return
        reason = lifecycle.plain_reason(there.status_reason)
        if there.status == "quarantined":
            reason = f"{_IMPOSED}{reason or 'quarantined'}"
        status = environment_service.status_of(here)
        successor = there.successor if there.status == "deprecated" else None
        with self.context.read() as session:
            try:
                environment_service.resolve(session, *(successor or "/").split("/", 1))
            except HubProblem:
                successor = None
        before = (status, environment_service.reason_of(here), environment_service.successor_of(here))
        if before == (there.status, reason if there.status != "active" else None, successor):
            return

        def change(session: Session) -> None:
            place = (session, HUB, self.mirror.owner, here.name)
            if status == "quarantined":
                lifecycle.set_status(*place, NewStatus(status="active"))
            lifecycle.set_status(*place, NewStatus(status=there.status, reason=reason, successor=successor))

        self._do("mirror.status", change, here.name)

    # Runs

    def _bring_runs(self, here: Environment) -> None:
        listed = [one for one in self.upstream.list_runs(self.mirror.owner, here.name) if not one.private]
        with self.context.read() as session:
            rows = session.execute(
                select(Run.run_id, Run.sha256, Run.withdrawn_at, Run.posted_by_id, User.name)
                .join(User, User.id == Run.posted_by_id)
                .where(Run.environment_id == here.id)
            ).all()
        known = {row.run_id: row for row in rows}
        for one in reversed(listed):  # those come first that others are copies or repetitions of
            self.check()
            row = known.get(one.run_id)
            if row is None:
                self._attempt(one.run_id, partial(self._bring_run, here, one))
            elif row.sha256 != one.sha256:
                self.problems.append(
                    f"`{one.run_id}`: it has other content there than when it came, which stays"
                )
        offered = {one.run_id for one in listed}
        for row in rows:
            if row.withdrawn_at is None and row.run_id not in offered and "@" in row.name:
                self._attempt(
                    row.run_id, partial(self._withdraw, row.run_id, _as(here, row.posted_by_id, row.name))
                )

    def _bring_run(self, here: Environment, there: UpstreamRun) -> None:
        settings, address = self.context.settings, f"/api/v1/runs/{quote(there.run_id, safe='')}"
        with ExitStack() as stack:

            def fetch(path: str, most: int, sha256: str | None = None) -> BinaryIO:
                body = cast(BinaryIO, stack.enter_context(tempfile.SpooledTemporaryFile(_IN_MEMORY)))
                self.upstream.fetch_file(f"{address}/{path}", body, most, sha256)
                return body

            text = fetch("run.json", settings.max_manifest_bytes).read()
            manifest = manifests.parse(text)
            pin = manifest.environment
            place = (pin.owner, names.normalise_environment(pin.name), manifest.run_id)
            if place != (self.mirror.owner, here.name, there.run_id):
                detail = f"its manifest is of `{pin.owner}/{pin.name}` and of the run `{manifest.run_id}`"
                raise HubProblem(502, "upstream_odd", detail)
            plain, lines = cast(BinaryIO, stack.enter_context(tempfile.SpooledTemporaryFile())), list[Line]()
            if len(there.artifacts) > (most := settings.max_artifacts):
                raise HubProblem(422, "too_many_artifacts", f"it has more than {most} files")
            if there.rollouts_sha256 is not None:
                plain = fetch("rollouts.jsonl", settings.max_run_bytes)
                lines = lines_that_count(plain, PinnedRun.of(manifest))
            most, artifacts = settings.max_artifact_bytes, list[PostedFile]()
            for one in there.artifacts:
                body = fetch(f"artifacts/{quote(one.name, safe='')}", most, one.sha256)
                artifacts.append(check_file(one.name, body, most))
            poster = self._poster(here, there.posted_by)
            origin = replace(self._origin("mirror.run", here.name), detail={"by": poster.user})
            context = replace(self.context, caller=poster, origin=origin)
            _, created = post_whole(
                *(context, self.queue, text, plain, lines, artifacts), private=False, expected=there.sha256
            )
            self.runs += created

    def _poster(self, here: Environment, name: str) -> Identity:
        """Return the user under which the runs of another hub's user stand, who cannot sign in here."""
        named = names.foreign_name(name, urlsplit(self.mirror.url).netloc)

        def ensure(session: Session) -> User:
            user = accounts.user_named(session, named)
            if user is None:
                user = User(name=named, admin=False, created_at=now())
                session.add(user)
                session.flush()
            return user

        user = self.context.database.commit(ensure)
        return _as(here, user.id, named)

    def _withdraw(self, run_id: str, poster: Identity) -> None:
        found = self.upstream.run(run_id)
        if found.withdrawn is None:
            return
        reason = lifecycle.plain_reason(found.withdrawn.reason) or "withdrawn there"
        origin = replace(self._origin("mirror.withdrawal", ""), params={"run": run_id})
        posting.withdraw_run(replace(self.context, caller=poster, origin=origin), run_id, reason)

    # What all of it does

    def _tell_of_missing(self, listed: set[str]) -> None:
        prefix = source_of(self.mirror.url, self.mirror.owner, self.mirror.name)
        query = select(Environment.name).where(
            Environment.mirror_of == prefix
            if self.mirror.name
            else Environment.mirror_of.startswith(prefix, autoescape=True),
            Environment.deleted_at.is_(None),
        )
        with self.context.read() as session:
            gone = sorted(set(session.scalars(query)) - listed)
        label = self.mirror.owner
        self.problems += [
            f"`{label}/{one}`: the other hub offers it no more; what came stays" for one in gone
        ]

    def _note(self, name: str, mark: str | None) -> None:
        """Keep the state up to which an environment was followed; without one, all is compared again."""
        if self.mirror.seen.get(name) == mark:
            return
        seen = {key: value for key, value in self.mirror.seen.items() if key != name}
        self.mirror.seen = seen | ({name: mark} if mark is not None else {})

        def write(session: Session) -> None:
            row = session.get(Mirror, self.mirror.id)
            if row is not None:
                row.seen = self.mirror.seen

        self.context.database.commit(write, HUB)

    def _do(
        self, action: str, work: Callable[[Session], Result], name: str, version: str | None = None
    ) -> Result:
        return self.context.database.commit(audit.recorded(work, self._origin(action, name, version)), HUB)

    def _origin(self, action: str, name: str, version: str | None = None) -> audit.Origin:
        params = {"owner": self.mirror.owner, "name": name} | ({"version": version} if version else {})
        return audit.Origin(action, HUB.user, params=params, detail={"from": self.mirror.url})


def _as(here: Environment, user_id: int, name: str) -> Identity:
    """Return who posts here for another hub's user."""
    return replace(HUB, user_id=user_id, user=name, admin=False, roles={here.owner_id: "reader"})


def _shown(there: UpstreamEnvironment) -> Visibility:
    return visibility_of(there.private, internal=there.internal)


def _is_version(number: str) -> bool:
    try:
        return names.normalise_version(number) == number
    except ValueError:
        return False


def _date(here: Version, there: UpstreamVersion) -> None:
    """Give a version and its files the times of the other hub, by which installers choose."""
    times = {one.filename: one.uploaded_at for one in there.files}
    here.uploaded_at = there.uploaded_at
    for file in here.files:
        file.uploaded_at = times.get(file.filename) or file.uploaded_at
