"""Staged uploads: sessions are opened and called off, chunks come in one after another.

A session holds the files of an environment's version, or those of a model's revision (`upload/models.py`).

A chunk's bytes are stored before the row that counts them, under its own digest, so whichever of two requests
for one place wins, what it counted is what lies there. `finalize` makes a version of a session.
"""

from __future__ import annotations

import hashlib
import json
import secrets
from collections.abc import Iterable, Mapping
from datetime import timedelta
from typing import Any

from sqlalchemy.orm import Session
from wander.wire.environments import wanted_visibility
from wander.wire.gate import LOCK
from wander.wire.models import ModelFile
from wander.wire.uploads import OFFSET_HEADER, NewUpload, StagedKind, UploadedFile, UploadFile
from wander.wire.uploads import UploadSession as SessionInfo

from wander_hub import names
from wander_hub.accounts.models import Owner
from wander_hub.attestations import verification
from wander_hub.database import fill, now
from wander_hub.environments import documents
from wander_hub.http.boundary import Context
from wander_hub.http.problems import HubProblem
from wander_hub.identity import Identity
from wander_hub.models import service as models
from wander_hub.quotas import service as quotas
from wander_hub.rights import rights
from wander_hub.settings import Settings
from wander_hub.upload import checks, service
from wander_hub.upload import session_repository as repository
from wander_hub.upload.models import StagedChunk, StagedFile, UploadSession
from wander_hub.upload.schemas import refusal

SMALLEST_CHUNK = 64 * 1024
"""Bytes; only the last of a file may have fewer, so that no file becomes a million objects."""


def begin(context: Context, wanted: NewUpload) -> tuple[SessionInfo, bool]:
    """Open a session, or return the caller's open one for the very same wheels and source; tell which.

    Refuses at once whatever can be said of files whose bytes are still to come.
    """
    caller, settings = context.caller, context.settings
    name, version = _check_names(wanted, settings)
    attested = {one.filename: json.dumps(one.attestations) for one in wanted.files if one.attestations}
    stated = wanted.model_dump(mode="json", include={"private", "internal", "source_sha256", "check"})
    stated |= {"attestations": attested}
    check_attestations({one.filename: one.sha256 for one in wanted.files}, stated, caller)
    expires_at = now() + timedelta(hours=settings.upload_hours)

    def record(session: Session) -> tuple[SessionInfo, bool]:
        owner = rights.find_uploading_owner(session, caller, wanted.owner)
        files = {one.filename: one.sha256 for one in wanted.files if one.kind != "lock"}
        place = service.place_for(
            *(session, owner, name, version, files, caller),
            visibility=wanted_visibility(wanted.private, internal=wanted.internal),
            open_days=settings.version_open_days,
        )
        foresee(session, context, owner, wanted.files, fresh=place.version is None)
        for known in repository.open_sessions(session, caller.user_id, owner.id, name, version):
            if _distributions(known.files) == _distributions(wanted.files):
                _take_lock(session, known, wanted)
                known.stated, known.expires_at = stated, expires_at
                session.flush()
                return describe_session(known, context), False
        staged = [stage(one, one.kind, published=one.filename in place.known) for one in wanted.files]
        return open_session(session, context, owner, (name, version), stated, staged), True

    return context.commit(record)


def open_session(
    session: Session,
    context: Context,
    owner: Owner,
    place: tuple[str, str],
    stated: dict[str, Any],
    files: list[StagedFile],
) -> SessionInfo:
    """Open a session for files of a place: a name and a version; refuse who has too many open."""
    settings, user_id = context.settings, context.caller.user_id
    if repository.count_open(session, user_id) >= settings.max_open_uploads:
        detail = f"{settings.max_open_uploads} uploads of yours are open"
        ends = f"they end after {settings.upload_hours:g} hours"
        hint = f"finish them with `wander publish` or `wander model push`; {ends}"
        raise HubProblem(429, "too_many_uploads", detail, hint=hint)
    opened = UploadSession(
        id=secrets.token_hex(16),
        user_id=user_id,
        owner=owner,
        name=place[0],
        version=place[1],
        status="open",
        stated=stated,
        created_at=now(),
        expires_at=now() + timedelta(hours=settings.upload_hours),
        files=files,
    )
    session.add(opened)
    session.flush()
    return describe_session(opened, context)


def foresee(
    session: Session,
    context: Context,
    owner: Owner,
    files: Iterable[StagedFile | UploadFile | ModelFile],
    *,
    fresh: bool,
) -> None:
    """Refuse files, of a version that is new or not, for which their owner has no room."""
    sizes = {one.sha256: one.size for one in files}
    quotas.foresee(session, context.settings, owner, files=sizes, versions=int(fresh))


def find(session: Session, caller: Identity, session_id: str, *, lock: bool = False) -> UploadSession:
    """Return a session of the caller, who may still publish there; any other does not exist."""
    found = repository.session_of(session, caller.user_id, session_id, lock=lock)
    if found is None:
        hint = "the same command begins a new one; a hub keeps unfinished uploads for a limited time"
        raise HubProblem(404, "upload_not_found", f"there is no upload `{session_id[:40]}`", hint=hint)
    if found.of_model:
        models.require_pusher(session, caller, found.owner, found.name)
    else:
        service.require_publisher(session, found.owner, found.name, caller)
    return found


def find_file(
    session: Session, caller: Identity, session_id: str, filename: str, *, lock: bool = False
) -> tuple[UploadSession, StagedFile]:
    """Return a session that was not called off, and one of its files."""
    found = find(session, caller, session_id, lock=lock)
    if found.status != "published":
        require_open(found)
    for file in found.files:
        if file.filename == filename:
            return found, file
    listed = ", ".join(f"`{file.filename}`" for file in found.files)
    raise HubProblem(404, "file_not_found", f"the upload has no file `{filename[:100]}`; it has {listed}")


def require_open(found: UploadSession) -> None:
    """Refuse a session that has ended."""
    if found.status != "open":
        hint = "the same command begins a new one"
        raise HubProblem(409, "upload_ended", f"the upload is {found.status}", hint=hint)


def receive(
    context: Context, session_id: str, filename: str, offset: int, content: bytes, stated: str | None
) -> UploadedFile:
    """Keep a chunk and return how far its file is; one that the hub has changes nothing.

    Two of a user's transfers share a session, so one may still send when the other has published all of it.
    `stated` is the SHA-256 that its sender gave, in hexadecimal.
    """
    caller, sha256 = context.caller, hashlib.sha256(content).hexdigest()
    chunk = StagedChunk(offset=offset, size=len(content), sha256=sha256)
    if stated not in (None, sha256):
        raise HubProblem(
            422, "digest_mismatch", "the chunk has another digest than stated", hint="send it again"
        )
    with context.read() as session:
        found, file = find_file(session, caller, session_id, filename)
        if not _is_next(found, file, chunk):
            return describe_file(file, context.base_url)
        key = chunk_key(file, chunk)
    context.storage.stage(key, content)

    def record(session: Session) -> UploadedFile:
        found, file = find_file(session, caller, session_id, filename, lock=True)
        if _is_next(found, file, chunk):
            file.chunks.append(StagedChunk(offset=offset, size=chunk.size, sha256=sha256))
            file.received = offset + chunk.size
        found.expires_at = now() + timedelta(hours=context.settings.upload_hours)
        return describe_file(file, context.base_url)

    return context.commit(record)


def _is_next(found: UploadSession, file: StagedFile, chunk: StagedChunk) -> bool:
    """Tell whether a chunk goes on where its file ends; False for one that is there, else a refusal."""
    if found.status == "published":
        return False
    size, told = chunk.size, {OFFSET_HEADER: str(file.received)}
    if chunk.offset != file.received:
        wanted = (chunk.offset, size, chunk.sha256)
        if any((one.offset, one.size, one.sha256) == wanted for one in file.chunks):
            return False
        has = f"the hub has {file.received:,} bytes of `{file.filename}`"
        detail = f"{has}, and the chunk begins at {chunk.offset:,}"
        hint = f"go on at {file.received}, as `{OFFSET_HEADER}` of this answer says"
        raise HubProblem(409, "offset_mismatch", detail, hint=hint, headers=told)
    if file.received + size > file.size:
        left = file.size - file.received
        detail = f"the chunk has {size:,} bytes, and `{file.filename}` only {left:,} more"
        raise HubProblem(422, "chunk_too_long", detail, headers=told)
    if size < SMALLEST_CHUNK and (size == 0 or file.received + size != file.size):
        detail = f"the chunk has {size:,} bytes; all but a file's last have {SMALLEST_CHUNK:,} at least"
        raise HubProblem(422, "chunk_too_short", detail, headers=told)
    return True


def cancel(context: Context, session_id: str) -> None:
    """Call a session off; what was sent is dropped. One that was called off before is fine."""
    with context.database.write(context.caller) as session:
        found = find(session, context.caller, session_id, lock=True)
        if found.status != "canceled":
            require_open(found)
        found.status = "canceled"
        repository.drop_chunks(session, found.files)


def chunk_key(file: StagedFile, chunk: StagedChunk) -> str:
    """Return where a chunk of a file lies in the staging part of the storage."""
    return f"{file.session_id}/{file.id}/{chunk.offset:015d}-{chunk.sha256}"


def describe_session(found: UploadSession, context: Context) -> SessionInfo:
    """Return a session as the API shows it."""
    return fill(
        SessionInfo,
        found,
        owner=found.owner.name,
        files=[describe_file(one, context.base_url) for one in found.files],
        chunk_bytes=context.settings.upload_chunk_bytes,
    )


def describe_file(file: StagedFile, base_url: str) -> UploadedFile:
    """Return a file as the API shows it."""
    url = f"{base_url}/api/v1/uploads/{file.session_id}/files/{file.filename}"
    return fill(UploadedFile, file, offset=file.received, url=url)


def _check_names(wanted: NewUpload, settings: Settings) -> tuple[str, str]:
    """Return name and version in their normal forms; refuse files that are not all of them."""
    name = names.normalise_environment(wanted.name)
    try:
        version = names.normalise_version(wanted.version)
    except ValueError as error:
        detail = f"`{wanted.version[:50]}` is no version as PEP 440 has it"
        raise HubProblem(422, "bad_version", detail) from error
    if len({one.filename for one in wanted.files}) != len(wanted.files):
        raise HubProblem(422, "invalid_request", "a file is named twice")
    if all(one.kind == "lock" for one in wanted.files):
        raise HubProblem(422, "invalid_request", "the upload has neither a wheel nor a source archive")
    for file in wanted.files:
        if file.kind == "lock":
            if file.filename != documents.NAMES["lock"]:
                raise refusal("bad_filename", f"a lock is called `{documents.NAMES['lock']}`")
            if file.size > LOCK.most_bytes:
                detail = f"`{file.filename}` is over {LOCK.most_bytes:,} bytes"
                raise refusal("too_large", detail)
            continue
        found = checks.check_filename(file.filename)
        if (found.kind, found.name, found.version) != (file.kind, name, version):
            detail = f"`{file.filename}` is not the name of a {file.kind} of `{name}` {version}"
            raise refusal("name_mismatch", detail)
        checks.check_size(file.filename, file.size, settings)
    return name, version


def _distributions(files: Iterable[StagedFile | UploadFile]) -> set[tuple[str, int, str]]:
    """Return what tells the uploads of a version apart; a lock may be another one every time."""
    return {(one.filename, one.size, one.sha256) for one in files if one.kind != "lock"}


def _take_lock(session: Session, known: UploadSession, wanted: NewUpload) -> None:
    """Give a session that is resumed the lock that is wanted now."""
    locks = [one for one in wanted.files if one.kind == "lock"]
    digests = {one.sha256 for one in locks}
    kept = [one for one in known.files if one.kind != "lock" or one.sha256 in digests]
    there = {one.sha256 for one in kept if one.kind == "lock"}
    known.files = kept
    session.flush()  # the one before goes first: a session has one file of a name
    known.files += [stage(one, one.kind, published=False) for one in locks if one.sha256 not in there]


def stage(file: UploadFile | ModelFile, kind: StagedKind, *, published: bool) -> StagedFile:
    """Return the row of a file that is announced; nothing of one that is `published` is to be sent."""
    return StagedFile(
        filename=file.filename,
        kind=kind,
        size=file.size,
        sha256=file.sha256,
        received=file.size if published else 0,
        published=published,
        chunks=[],
    )


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
