"""Makes a version of a staged upload: all of its files pass the gate, then one transaction shows them.

Each file is put together from its chunks and hashed as that happens, which is the only time. Whatever fails
leaves the session as it was: nobody sees a part, and the same request may be sent again.
"""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from typing import BinaryIO, cast

from obstore.exceptions import BaseError
from packaging.utils import canonicalize_name
from sqlalchemy.orm import Session
from wander.wire import CheckSummary, VersionDetail

from wander_hub.attestations.verification import Outcome
from wander_hub.database import Database
from wander_hub.environments import service as environment_service
from wander_hub.http.problems import HubProblem
from wander_hub.identity import Identity
from wander_hub.lifecycle import locks
from wander_hub.settings import Settings
from wander_hub.storage import CHUNK, Storage
from wander_hub.upload import checks, comparison, service, sessions, sweep
from wander_hub.upload import session_repository as repository
from wander_hub.upload.models import StagedFile, UploadSession
from wander_hub.upload.schemas import Limits, Package, Upload, refusal

_IN_MEMORY = 4 * 1024 * 1024
"""Bytes of a file above which it is put together on disk."""


@dataclass(frozen=True)
class _Checked:
    """The files of an upload that passed every check."""

    packages: list[Package]
    uploads: list[Upload]
    """Their bytes."""
    lock: Upload | None
    compared: dict[str, list[str]]
    attested: dict[str, Outcome]
    """By the names of the files that came with attestations."""


def finalize(
    database: Database, storage: Storage, caller: Identity, session_id: str, settings: Settings, base_url: str
) -> tuple[VersionDetail, bool]:
    """Publish all files of a session; return the version, and whether the hub had not all of it before."""
    with database.read(caller) as session:
        found = sessions.find(session, caller, session_id)
        if found.status == "published":
            return _describe_version(session, found, base_url), False
        _require_ready(session, found, caller, settings)
    with ExitStack() as stack:
        bodies: list[tuple[StagedFile, BinaryIO]] = []
        for file in found.files:
            body = cast(BinaryIO, stack.enter_context(tempfile.SpooledTemporaryFile(_IN_MEMORY)))
            try:
                sha256 = _put_together(storage, found.id, file, body)
            except FileNotFoundError:
                return _without_chunks(database, storage, caller, file, settings, base_url), False
            if sha256 != file.sha256:
                _start_again(database, caller, found.id, file)
                detail = f"the bytes of `{file.filename}` are not those of its sha256"
                raise refusal("digest_mismatch", detail)
            bodies.append((file, body))
        checked = _check(found, bodies, caller, settings)
        for upload in _all(checked):
            storage.keep(upload.body, upload.sha256, upload.size)
        outcome = _record(database, storage, caller, found.id, checked, settings, base_url)
    drop_staged(storage, found.id)
    return outcome


def drop_staged(storage: Storage, session_id: str) -> None:
    """Remove the chunks of a session that has ended; what stays is left for the next sweep."""
    with suppress(BaseError, OSError):
        for one in list(storage.list_staged(f"{session_id}/")):
            storage.unstage(one.path)


def _require_ready(session: Session, found: UploadSession, caller: Identity, settings: Settings) -> None:
    """Refuse a session that is not whole, or whose place is no longer free, before any file is read."""
    sessions.require_open(found)
    missing = [one for one in found.files if one.received != one.size]
    if missing:
        parts = ", ".join(f"`{one.filename}` has {one.received:,} of {one.size:,} bytes" for one in missing)
        hint = "send the rest, then finalize again"
        raise HubProblem(409, "upload_incomplete", f"not everything is there: {parts}", hint=hint)
    files = {one.filename: one.sha256 for one in found.files if one.kind != "lock"}
    service.place_for(
        session,
        found.owner,
        service.Wanted(found.name, found.version, files),
        caller,
        private=found.stated["private"],
        open_days=settings.version_open_days,
    )


def _put_together(storage: Storage, session_id: str, file: StagedFile, body: BinaryIO) -> str:
    """Write a file's bytes and return their SHA-256."""
    digest = hashlib.sha256()
    for piece in _pieces(storage, session_id, file):
        digest.update(piece)
        body.write(piece)
    return digest.hexdigest()


def _pieces(storage: Storage, session_id: str, file: StagedFile) -> Iterator[bytes]:
    if file.published:
        for start in range(0, file.size, CHUNK):
            yield storage.read(file.sha256, start, min(CHUNK, file.size - start))
    for chunk in file.chunks:
        yield storage.staged(sessions.chunk_key(session_id, file.id, chunk.offset, chunk.sha256))


def _without_chunks(
    database: Database,
    storage: Storage,
    caller: Identity,
    file: StagedFile,
    settings: Settings,
    base_url: str,
) -> VersionDetail:
    """Return the version where the same request, sent twice, has just published it and dropped the chunks.

    Otherwise a chunk was lost: the file goes back to what is there, and the session is not whole.
    """
    sweep.count_again(database, storage, file.id)
    with database.read(caller) as session:
        found = sessions.find(session, caller, file.session_id)
        if found.status != "published":
            _require_ready(session, found, caller, settings)
            raise HubProblem(503, "storage_unavailable", f"the bytes of `{file.filename}` cannot be read")
        return _describe_version(session, found, base_url)


def _start_again(database: Database, caller: Identity, session_id: str, file: StagedFile) -> None:
    """Forget what came of a file whose bytes are not the ones that were announced."""
    with database.write(caller) as session:
        found = sessions.find(session, caller, session_id, lock=True)
        for one in found.files:
            if one.id == file.id and found.status == "open":
                repository.drop_chunks(session, [one])
                one.received, one.published = 0, False


def _check(
    found: UploadSession, bodies: list[tuple[StagedFile, BinaryIO]], caller: Identity, settings: Settings
) -> _Checked:
    """Run the gate over each distribution file, and over all of them together."""
    uploads, lock = [], None
    for file, body in bodies:
        upload = Upload(found.owner.name, file.filename, body, file.size, file.sha256)
        if file.kind == "lock":
            lock = upload
        else:
            uploads.append(upload)
    packages = [checks.check(one, Limits.of(settings)) for one in uploads]
    compared = comparison.compare(packages, found.stated["source_sha256"])
    if lock is not None:
        _check_lock(lock, packages, settings)
    digests = {one.filename: one.sha256 for one in packages}
    return _Checked(
        packages, uploads, lock, compared, sessions.check_attestations(digests, found.stated, caller)
    )


def _check_lock(lock: Upload, packages: list[Package], settings: Settings) -> None:
    """Refuse a lock that is not of the wheels beside it."""
    wheels = [one for one in packages if one.kind == "wheel"]
    if not wheels:
        hint = "send the wheel along, or attach the lock to the version: `wander lock NAME --attach`"
        raise HubProblem(422, "lock_mismatch", "a lock comes with the wheel that it is of", hint=hint)
    wanted = locks.LockedVersion(
        canonicalize_name(wheels[0].name),
        wheels[0].version,
        wheels[0].requires_dist,
        {one.filename: one.sha256 for one in wheels},
    )
    lock.body.seek(0)
    locks.check(lock.body.read(), wanted, settings.max_lock_bytes)


def _record(
    database: Database,
    storage: Storage,
    caller: Identity,
    session_id: str,
    checked: _Checked,
    settings: Settings,
    base_url: str,
) -> tuple[VersionDetail, bool]:
    """Write rows and index pages, and end the session, in one transaction."""

    def record(session: Session) -> tuple[VersionDetail, bool]:
        found = sessions.find(session, caller, session_id, lock=True)
        if found.status == "published":
            return _describe_version(session, found, base_url), False
        sessions.require_open(found)
        database.lock_objects(session, exclusive=False)
        for upload in _all(checked):
            storage.ensure(upload.sha256, upload.body)
        check = found.stated["check"]
        published = service.publish(
            session,
            found.owner,
            checked.packages,
            caller,
            check=CheckSummary.model_validate(check) if check else None,
            private=found.stated["private"],
            open_days=settings.version_open_days,
            compared=checked.compared,
            attested=checked.attested,
        )
        if checked.lock is not None:
            checked.lock.body.seek(0)
            place = (found.owner.name, published.environment.name, found.version)
            locks.attach(session, storage, caller, *place, checked.lock.body.read())
        found.status = "published"
        repository.drop_chunks(session, found.files)
        detail = _describe_version(session, found, base_url)
        ignored = [
            warning.model_copy(update={"filename": filename})
            for filename, outcome in checked.attested.items()
            for warning in outcome.warnings
        ]
        warnings = [*detail.warnings, *ignored]
        return detail.model_copy(update={"warnings": warnings}), published.created

    return database.committed(record, caller)


def _describe_version(session: Session, found: UploadSession, base_url: str) -> VersionDetail:
    """Return the version that a session became."""
    environment = environment_service.find(session, found.owner.name, found.name)
    version = environment_service.find_version(session, environment, found.version)
    return environment_service.version_detail(environment, version, base_url)


def _all(checked: _Checked) -> list[Upload]:
    return [*checked.uploads, *([checked.lock] if checked.lock is not None else [])]
