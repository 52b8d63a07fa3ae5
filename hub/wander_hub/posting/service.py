"""Takes runs in, part by part: opened under their digest, filled in any order, forgotten when left alone.

Every part is validated when it arrives and stored as it will stay; `finish` makes a run of them. A part
that is sent again changes nothing, so whoever was cut off sends what is missing and goes on. Objects are
stored before the rows that point to them, and removed after these are gone. Who posted a run may publish it
later, where it was private, and withdraw it.
"""

from __future__ import annotations

import hashlib
import tempfile
from collections import OrderedDict
from collections.abc import Callable
from datetime import timedelta
from threading import Lock
from typing import IO

from sqlalchemy.orm import Session
from wander.wire import RunManifest
from wander.wire.postings import MAX_CHUNK_BYTES, PostedArtifact, PostedChunk, Posting

from wander_hub import audit
from wander_hub.database import Database, fill, now
from wander_hub.environments.models import Environment, Version
from wander_hub.http.boundary import Context
from wander_hub.http.problems import HubProblem
from wander_hub.identity import Identity
from wander_hub.leaderboards.listing import refresh_results
from wander_hub.posting import repository
from wander_hub.posting.reading import rollouts_in_order, unpack
from wander_hub.quotas import service as quotas
from wander_hub.rights import rights
from wander_hub.runs import manifest as manifests
from wander_hub.runs import objects
from wander_hub.runs import repository as run_repository
from wander_hub.runs import service as runs
from wander_hub.runs.artifacts import PostedFile, require_apart
from wander_hub.runs.chunks import write_chunk
from wander_hub.runs.events import tell_of_run
from wander_hub.runs.manifest import PinnedRun
from wander_hub.runs.models import PostingArtifact, PostingChunk, PostingRow, Run
from wander_hub.storage import Storage

_SPOOLED = 4 * 1024 * 1024
"""Up to so many bytes of a chunk stay in memory."""


class PinnedRuns:
    """The manifests that were last used: every chunk of a run is checked against the same one."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._kept: OrderedDict[str, PinnedRun] = OrderedDict()
        self._lock = Lock()

    def of(self, posting: PostingRow) -> PinnedRun:
        """Return the manifest of a posting with the places of its examples."""
        with self._lock:
            found = self._kept.get(posting.manifest_sha256)
        if found is None:
            found = PinnedRun.of(manifests.parse(posting.manifest.encode()))
        with self._lock:
            self._kept[posting.manifest_sha256] = found
            self._kept.move_to_end(posting.manifest_sha256)
            while len(self._kept) > self._most:
                self._kept.popitem(last=False)
        return found


_pinned = PinnedRuns(2)


def open_posting(context: Context, text: bytes, sha256: str, *, private: bool) -> tuple[Posting, bool]:
    """Begin to post a run, or go on; return what is here of it, and whether it is a new posting."""
    user_id, settings = context.caller.user_id, context.settings
    manifest, manifest_sha256 = manifests.parse(text), hashlib.sha256(text).hexdigest()
    with context.read() as session:
        environment, _ = require_permission(session, manifest, context.caller)
        hidden = private or environment.visibility == "private"
        run_id, other = manifest.run_id, run_repository.hidden_id(manifest.run_id, user_id)
        run_id, other = (other, run_id) if hidden else (run_id, other)
        for one in (run_id, *([other] if is_poster(session, other, user_id) else [])):
            if is_known(session, one, sha256):
                return Posting(sha256=sha256, run_id=one, posted=True), False
        own = quotas.poster(session, context.caller.user)
        quotas.foresee(session, settings, own, stored_bytes=len(text), runs=1)
    forget_expired(context.database, context.storage)

    def record(session: Session) -> tuple[Posting, bool]:
        posting = repository.find_posting(session, user_id, sha256)
        created = posting is None
        if posting is None:
            if repository.count_of(session, user_id) >= settings.max_open_postings:
                detail = f"{settings.max_open_postings} postings of yours are unfinished"
                hint = "finish them with `wander post`; a hub drops those that are left alone"
                raise HubProblem(429, "too_many_postings", detail, hint=hint)
            posting = PostingRow(
                user_id=user_id,
                sha256=sha256,
                manifest=text.decode(),
                manifest_sha256=manifest_sha256,
            )
            session.add(posting)
        elif posting.manifest_sha256 != manifest_sha256:
            raise HubProblem(409, "posting_differs", "this digest was opened with another run.json")
        posting.run_id, posting.private = run_id, private
        posting.expires_at = now() + timedelta(hours=settings.posting_hours)
        session.flush()
        return describe_posting(session, posting), created

    return context.commit(record)


def find(
    session: Session, sha256: str, caller: Identity, *, lock: bool = False
) -> tuple[PostingRow, PinnedRun]:
    """Return a posting of the caller, who may still post there; raise a 404 otherwise."""
    posting = repository.find_posting(session, caller.user_id, sha256, lock=lock)
    if posting is None:
        raise HubProblem(
            404,
            "posting_not_found",
            f"nothing is being posted under `{sha256[:12]}`",
            hint="begin again: `wander post RUN`; a hub drops postings that stay unfinished for days",
        )
    pinned = _pinned.of(posting)
    require_permission(session, pinned.manifest, caller)
    return posting, pinned


def describe_posting(session: Session, posting: PostingRow) -> Posting:
    """Return a posting as the API shows it."""
    return fill(
        Posting,
        posting,
        chunks=[fill(PostedChunk, one) for one in repository.chunks_of(session, posting.id)],
        artifacts=[fill(PostedArtifact, one) for one in repository.artifacts_of(session, posting.id)],
    )


def add_chunk(context: Context, sha256: str, number: int, body: IO[bytes], claimed: str) -> PostedChunk:
    """Validate and keep one chunk of a posting; the same again changes nothing, another takes its place."""
    with context.read() as session:
        posting, pinned = find(session, sha256, context.caller)
        known = repository.chunk_numbered(session, posting.id, number)
        if known is not None and known.sha256 == claimed:
            return PostedChunk(number=number, sha256=claimed, rollouts=known.rollouts)
        others = repository.bytes_of(session, posting.id, but=number)
    with tempfile.SpooledTemporaryFile(_SPOOLED) as plain:
        found, size = unpack(body, plain, MAX_CHUNK_BYTES, f"chunk {number} is")
        if found != claimed:
            hint = "it was changed on its way; send it again"
            raise HubProblem(
                422, "digest_mismatch", f"chunk {number} has another digest than stated", hint=hint
            )
        if others + size > (most := context.settings.max_run_bytes):
            raise HubProblem(413, "too_large", f"the rollouts are over this hub's {most:,} bytes")
        with tempfile.SpooledTemporaryFile(_SPOOLED) as packed:
            frames, count = write_chunk(rollouts_in_order(plain, pinned, number), packed)
            object_sha256 = context.storage.put(packed)

            def row(session: Session, posting: PostingRow) -> tuple[PostingChunk, str | None]:
                known = repository.chunk_numbered(session, posting.id, number)
                replaced = known.object_sha256 if known is not None else None
                chunk = PostingChunk(
                    posting_id=posting.id,
                    number=number,
                    sha256=found,
                    size=size,
                    rollouts=count,
                    object_sha256=object_sha256,
                    row_frames=frames,
                )
                return chunk, replaced

            _keep(context, sha256, (object_sha256, packed), row)
    return PostedChunk(number=number, sha256=found, rollouts=count)


def add_artifact(context: Context, sha256: str, file: PostedFile) -> PostedArtifact:
    """Keep a file of a posting; another of its name takes its place."""
    with context.read() as session:
        find(session, sha256, context.caller)
    context.storage.put(file.body)

    def row(session: Session, posting: PostingRow) -> tuple[PostingArtifact, str | None]:
        present = {one.name: one.sha256 for one in repository.artifacts_of(session, posting.id)}
        if file.name not in present and len(present) >= (most := context.settings.max_artifacts):
            raise HubProblem(422, "too_many_artifacts", f"a run has at most {most} files")
        require_apart(file.name, present)
        artifact = PostingArtifact(
            posting_id=posting.id,
            name=file.name,
            media_type=file.media_type,
            size=file.size,
            sha256=file.sha256,
        )
        return artifact, present.get(file.name)

    _keep(context, sha256, (file.sha256, file.body), row)
    return PostedArtifact(name=file.name, sha256=file.sha256)


def _keep(
    context: Context,
    sha256: str,
    stored: tuple[str, IO[bytes]],
    row: Callable[[Session, PostingRow], tuple[PostingChunk | PostingArtifact, str | None]],
) -> None:
    """Write the row of a part whose object is stored, then drop the object of the part that it replaces."""

    def record(session: Session) -> list[str]:
        posting, _ = find(session, sha256, context.caller, lock=True)
        part, replaced = row(session, posting)
        context.database.lock_objects(session, exclusive=False)
        context.storage.ensure(*stored)
        session.merge(part)
        posting.expires_at = now() + timedelta(hours=context.settings.posting_hours)
        return [replaced] if replaced not in (None, stored[0]) else []

    objects.discard(context.database, context.storage, context.commit(record))


def drop(context: Context, sha256: str) -> None:
    """Forget a posting and all that came for it."""

    def record(session: Session) -> list[str]:
        posting, _ = find(session, sha256, context.caller, lock=True)
        return repository.remove(session, posting)

    objects.discard(context.database, context.storage, context.commit(record))


def forget_expired(database: Database, storage: Storage) -> int:
    """Forget some of the postings that were left alone for too long; return how many."""
    with database.read() as session:  # a writing session would make every other one wait
        if not repository.any_expired(session):
            return 0

    def record(session: Session) -> tuple[int, list[str]]:
        expired = repository.list_expired(session)
        return len(expired), [one for posting in expired for one in repository.remove(session, posting)]

    count, loose = database.commit(record)
    objects.discard(database, storage, loose)
    return count


def require_permission(
    session: Session, manifest: RunManifest, caller: Identity
) -> tuple[Environment, Version]:
    """Return what a run is recorded under; refuse a caller who may not post results there."""
    environment, version = manifests.find_pinned_version(session, manifest)
    if not rights.may(caller, "results", environment):
        raise rights.refusal(caller, "results", environment)
    return environment, version


def is_poster(session: Session, run_id: str, user_id: int) -> bool:
    """Tell whether a user posted the run of an id."""
    known = session.get(Run, run_id)
    return known is not None and known.posted_by_id == user_id


def is_known(session: Session, run_id: str, sha256: str) -> bool:
    """Tell whether this very run was posted; refuse one whose id another run has, or that was withdrawn."""
    known = session.get(Run, run_id)  # whoever may read it: ids are given once
    if known is None:
        return False
    if known.withdrawn_at is not None:
        hint = "evaluate again for a new run"
        raise HubProblem(409, "run_withdrawn", f"the run `{run_id}` was withdrawn for good", hint=hint)
    if known.sha256 != sha256:
        hint = "a posted run never changes; evaluate again for a new run"
        raise HubProblem(409, "run_exists", f"the run `{run_id}` was posted with other content", hint=hint)
    return True


def publish_run(session: Session, run_id: str, caller: Identity) -> Run:
    """Show a private run to everybody, for good; only its submitter may."""
    run = _find_own_run(session, run_id, caller, "publish")
    run_repository.lock_run(session, run)
    if runs.with_rollouts(run).private:
        run.private, run.public_at = False, now()
        tell_of_run(session, run.environment, run, "run.posted")
    session.flush()
    refresh_results(session, run.environment)
    return run


def rename_run(session: Session, run_id: str, name: str, caller: Identity) -> Run:
    """Give a run a name for lists and boards, or none for an empty one; only its submitter may."""
    run = _find_own_run(session, run_id, caller, "rename")
    run_repository.lock_run(session, run)
    before, run.name = run.name, name.strip() or None
    if run.name == before:
        audit.nothing_done(session)
    audit.about(session, before=before, name=run.name)
    session.flush()
    return run


def withdraw_run(context: Context, run_id: str, reason: str) -> None:
    """Remove the rollouts and files of a run, leave a tombstone with the reason; who posted it may."""

    def record(session: Session) -> list[str]:
        run = _find_own_run(session, run_id, context.caller, "withdraw")
        run_repository.lock_run(session, run)
        if run.withdrawn_at is not None:
            audit.nothing_done(session)
            return []  # the first reason stands
        audit.about(session, reason=reason)
        run.withdrawn_at, run.withdrawn_reason, run.withdrawn_by_id = now(), reason, context.caller.user_id
        loose = run_repository.remove_contents(session, run)
        refresh_results(session, run.environment)
        return loose

    objects.discard(context.database, context.storage, context.commit(record))


def is_own(run: Run, caller: Identity) -> bool:
    """Tell whether a run is the caller's, who may publish and withdraw it."""
    covered = caller.covers("results", run.environment.owner_id, run.environment_id)
    return covered and (run.posted_by_id == caller.user_id or caller.administers)


def _find_own_run(session: Session, run_id: str, caller: Identity, verb: str) -> Run:
    run = runs.find(session, run_id)
    if not is_own(run, caller):
        hint = f"ask `{run.posted_by.name}`"
        raise HubProblem(403, "not_permitted", f"only who posted a run may {verb} it", hint=hint)
    return run
