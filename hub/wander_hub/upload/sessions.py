"""Staged uploads: sessions are opened and called off, chunks come in one after another.

A chunk's bytes are stored before the row that counts them, under its own digest, so whichever of two requests
for one place wins, what it counted is what lies there. `finalize` makes a version of a session.
"""

from __future__ import annotations

import hashlib
import json
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version
from sqlalchemy.orm import Session
from wander.wire.uploads import OFFSET_HEADER, NewUpload, UploadedFile, UploadFile
from wander.wire.uploads import UploadSession as SessionInfo

from wander_hub.attestations import verification
from wander_hub.database import Database, now
from wander_hub.environments import documents
from wander_hub.http.problems import HubProblem
from wander_hub.identity import Identity
from wander_hub.rights import rights
from wander_hub.settings import Settings
from wander_hub.storage import Storage
from wander_hub.upload import checks, service
from wander_hub.upload import session_repository as repository
from wander_hub.upload.models import StagedChunk, StagedFile, UploadSession
from wander_hub.upload.schemas import Limits, refusal

SMALLEST_CHUNK = 64 * 1024
"""Bytes; only the last of a file may have fewer, so that no file becomes a million objects."""


@dataclass(frozen=True)
class Chunk:
    """A piece of a file as it arrived."""

    offset: int
    content: bytes
    stated: str | None = None
    """SHA-256 that the sender gave, in hexadecimal."""


def begin(
    database: Database, wanted: NewUpload, caller: Identity, settings: Settings, base_url: str
) -> tuple[SessionInfo, bool]:
    """Open a session, or return the caller's open one for the very same wheels and source; tell which.

    Refuses at once whatever can be said of files whose bytes are still to come.
    """
    name, version = _check_names(wanted, settings)
    check_attestations({one.filename: one.sha256 for one in wanted.files}, _statement(wanted), caller)

    def record(session: Session) -> tuple[SessionInfo, bool]:
        owner = rights.find_uploading_owner(session, caller, wanted.owner)
        files = {one.filename: one.sha256 for one in wanted.files if one.kind != "lock"}
        place = service.place_for(
            session,
            owner,
            service.Wanted(name, version, files),
            caller,
            private=wanted.private,
            open_days=settings.version_open_days,
        )
        for known in repository.open_sessions(session, caller.user_id, owner.id, name, version, now()):
            if _same_files(known, wanted):
                _take_lock(session, known, wanted)
                known.stated, known.expires_at = _statement(wanted), _until(settings)
                session.flush()
                return describe_session(known, settings, base_url), False
        if repository.count_open(session, caller.user_id, now()) >= settings.max_open_uploads:
            detail = f"{settings.max_open_uploads} uploads of yours are open"
            hint = (
                f"finish them with `wander publish`, or wait: they end after {settings.upload_hours:g} hours"
            )
            raise HubProblem(429, "too_many_uploads", detail, hint=hint)
        opened = UploadSession(
            id=secrets.token_hex(16),
            user_id=caller.user_id,
            owner=owner,
            name=name,
            version=version,
            status="open",
            stated=_statement(wanted),
            created_at=now(),
            expires_at=_until(settings),
            files=[_stage(one, published=one.filename in place.known) for one in wanted.files],
        )
        session.add(opened)
        session.flush()
        return describe_session(opened, settings, base_url), True

    return database.committed(record, caller)


def find(session: Session, caller: Identity, session_id: str, *, lock: bool = False) -> UploadSession:
    """Return a session of the caller, who may still publish there; any other does not exist."""
    found = repository.session_of(session, caller.user_id, session_id, now(), lock=lock)
    if found is None:
        hint = "`wander publish` begins a new one; a hub keeps unfinished uploads for a limited time"
        raise HubProblem(404, "upload_not_found", f"there is no upload `{session_id[:40]}`", hint=hint)
    service.require_publisher(session, found.owner, found.name, caller)
    return found


def find_file(session: Session, caller: Identity, session_id: str, filename: str) -> StagedFile:
    """Return a file of an open session."""
    found = find(session, caller, session_id)
    require_open(found)
    for file in found.files:
        if file.filename == filename:
            return file
    listed = ", ".join(f"`{file.filename}`" for file in found.files)
    raise HubProblem(404, "file_not_found", f"the upload has no file `{filename[:100]}`; it has {listed}")


def require_open(found: UploadSession) -> None:
    """Refuse a session that has ended."""
    if found.status != "open":
        hint = "`wander publish` begins a new one"
        raise HubProblem(409, "upload_ended", f"the upload is {found.status}", hint=hint)


def receive(
    database: Database,
    storage: Storage,
    caller: Identity,
    session_id: str,
    filename: str,
    chunk: Chunk,
    settings: Settings,
    base_url: str,
) -> UploadedFile:
    """Keep a chunk and return how far its file is; the same chunk again changes nothing."""
    sha256 = hashlib.sha256(chunk.content).hexdigest()
    if chunk.stated is not None and chunk.stated != sha256:
        raise HubProblem(
            422, "digest_mismatch", "the chunk has another digest than stated", hint="send it again"
        )
    with database.read(caller) as session:
        file = find_file(session, caller, session_id, filename)
        if not _is_next(file, chunk, sha256):
            return file_shown(file, session_id, base_url)
        key = chunk_key(session_id, file.id, chunk.offset, sha256)
    storage.stage(key, chunk.content)

    def record(session: Session) -> UploadedFile:
        found = find(session, caller, session_id, lock=True)
        require_open(found)
        file = next(one for one in found.files if one.filename == filename)
        if _is_next(file, chunk, sha256):
            repository.advance(session, file, chunk.offset, len(chunk.content))
            file.chunks.append(StagedChunk(offset=chunk.offset, size=len(chunk.content), sha256=sha256))
            file.received = chunk.offset + len(chunk.content)
        found.expires_at = _until(settings)
        return file_shown(file, session_id, base_url)

    return database.committed(record, caller)


def _is_next(file: StagedFile, chunk: Chunk, sha256: str) -> bool:
    """Tell whether a chunk goes on where its file ends; False for one that is there, else a refusal."""
    size = len(chunk.content)
    if chunk.offset != file.received:
        if any((one.offset, one.size, one.sha256) == (chunk.offset, size, sha256) for one in file.chunks):
            return False
        raise offset_mismatch(file, chunk.offset)
    if file.received + size > file.size:
        left = file.size - file.received
        detail = f"the chunk has {size:,} bytes, and `{file.filename}` only {left:,} more"
        raise HubProblem(422, "chunk_too_long", detail, headers=_offset(file))
    if size < SMALLEST_CHUNK and (size == 0 or file.received + size != file.size):
        detail = f"the chunk has {size:,} bytes; all but a file's last have {SMALLEST_CHUNK:,} at least"
        raise HubProblem(422, "chunk_too_short", detail, headers=_offset(file))
    return True


def offset_mismatch(file: StagedFile, offset: int) -> HubProblem:
    """Return the refusal of a chunk for another place; it tells the right one."""
    detail = f"the hub has {file.received:,} bytes of `{file.filename}`, and the chunk begins at {offset:,}"
    hint = f"go on at {file.received}, as `{OFFSET_HEADER}` of this answer says"
    return HubProblem(409, "offset_mismatch", detail, hint=hint, headers=_offset(file))


def cancel(database: Database, caller: Identity, session_id: str) -> None:
    """Call a session off; what was sent is dropped. One that was called off before is fine."""
    with database.write(caller) as session:
        found = find(session, caller, session_id, lock=True)
        if found.status != "canceled":
            require_open(found)
        found.status = "canceled"
        repository.drop_chunks(session, found.files)


def chunk_key(session_id: str, file_id: int, offset: int, sha256: str) -> str:
    """Return where a chunk lies in the staging part of the storage."""
    return f"{session_id}/{file_id}/{offset:015d}-{sha256}"


def describe_session(found: UploadSession, settings: Settings, base_url: str) -> SessionInfo:
    """Return a session as the API shows it."""
    return SessionInfo(
        id=found.id,
        owner=found.owner.name,
        name=found.name,
        version=found.version,
        status=found.status,
        files=[file_shown(one, found.id, base_url) for one in found.files],
        chunk_bytes=settings.upload_chunk_bytes,
        expires_at=found.expires_at,
    )


def file_shown(file: StagedFile, session_id: str, base_url: str) -> UploadedFile:
    """Return a file as the API shows it."""
    return UploadedFile(
        filename=file.filename,
        kind=file.kind,
        size=file.size,
        sha256=file.sha256,
        offset=file.received,
        published=file.published,
        url=f"{base_url}/api/v1/uploads/{session_id}/files/{file.filename}",
    )


def _check_names(wanted: NewUpload, settings: Settings) -> tuple[str, str]:
    """Return name and version in their normal forms; refuse files that are not all of them."""
    limits = Limits.of(settings)
    name = canonicalize_name(wanted.name)
    try:
        version = str(Version(wanted.version))
    except InvalidVersion as error:
        detail = f"`{wanted.version[:50]}` is no version as PEP 440 has it"
        raise HubProblem(422, "bad_version", detail) from error
    if len({one.filename for one in wanted.files}) != len(wanted.files):
        raise HubProblem(422, "invalid_request", "a file is named twice")
    if all(one.kind == "lock" for one in wanted.files):
        raise HubProblem(422, "invalid_request", "the upload has neither a wheel nor a source archive")
    for file in wanted.files:
        if file.kind == "lock":
            _check_lock(file, settings)
            continue
        found = checks.check_filename(file.filename)
        if (found.kind, found.name, found.version) != (file.kind, name, version):
            detail = f"`{file.filename}` is not the name of a {file.kind} of `{name}` {version}"
            raise refusal("name_mismatch", detail)
        checks.check_size(file.filename, file.size, limits)
    return name, version


def _check_lock(file: UploadFile, settings: Settings) -> None:
    if file.filename != documents.NAMES["lock"]:
        raise refusal("bad_filename", f"a lock is called `{documents.NAMES['lock']}`")
    if file.size > settings.max_lock_bytes:
        detail = f"`{file.filename}` is over this hub's {settings.max_lock_bytes:,} bytes"
        raise refusal("too_large", detail)


def _same_files(known: UploadSession, wanted: NewUpload) -> bool:
    """Tell whether a session is of these very distribution files; a lock may be another one every time."""
    staged = {(one.filename, one.size, one.sha256) for one in known.files if one.kind != "lock"}
    return staged == {(one.filename, one.size, one.sha256) for one in wanted.files if one.kind != "lock"}


def _take_lock(session: Session, known: UploadSession, wanted: NewUpload) -> None:
    """Give a session that is resumed the lock that is wanted now."""
    locks = [one for one in wanted.files if one.kind == "lock"]
    digests = {one.sha256 for one in locks}
    kept = [one for one in known.files if one.kind != "lock" or one.sha256 in digests]
    there = {one.sha256 for one in kept if one.kind == "lock"}
    known.files = kept
    session.flush()  # the one before goes first: a session has one file of a name
    known.files += [_stage(one, published=False) for one in locks if one.sha256 not in there]


def _stage(file: UploadFile, *, published: bool) -> StagedFile:
    return StagedFile(
        filename=file.filename,
        kind=file.kind,
        size=file.size,
        sha256=file.sha256,
        received=file.size if published else 0,
        published=published,
        chunks=[],
    )


def _statement(wanted: NewUpload) -> dict[str, Any]:
    stated = wanted.model_dump(mode="json", include={"private", "source_sha256", "check"})
    attested = {one.filename: json.dumps(one.attestations) for one in wanted.files if one.attestations}
    return stated | {"attestations": attested}


def check_attestations(
    files: Mapping[str, str], stated: Mapping[str, Any], caller: Identity
) -> dict[str, verification.Outcome]:
    """Check the attestations of files, given by their SHA-256; raise a 400 for a false one."""
    texts = stated.get("attestations", {})
    return {
        filename: verification.verify(texts[filename], filename, sha256, caller.claims)
        for filename, sha256 in files.items()
        if filename in texts
    }


def _until(settings: Settings) -> Any:
    return now() + timedelta(hours=settings.upload_hours)


def _offset(file: StagedFile) -> dict[str, str]:
    return {OFFSET_HEADER: str(file.received)}
