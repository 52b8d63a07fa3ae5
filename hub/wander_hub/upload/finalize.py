"""Makes a version of a staged upload: all of its files pass the gate, then one transaction shows them.

Each file is put together from its chunks and hashed as that happens, which is the only time. Whatever fails
leaves the session as it was: nobody sees a part, and the same request may be sent again.

What Python runs from a wheel must be what the source archive holds, so who reads the source of a version
reads what will run. A wheel's file may lie deeper in the source (`src/`, `lib/`), never under another name;
what a build makes (a version module) is declared in the source itself, under `generated` of `[tool.wander]`,
and listed with the version.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import BinaryIO, cast

from obstore.exceptions import BaseError
from sqlalchemy.orm import Session
from wander.wire import CheckSummary, VersionDetail

from wander_hub import audit
from wander_hub.attestations.verification import Outcome
from wander_hub.environments import documents
from wander_hub.environments import service as environment_service
from wander_hub.http.boundary import Context
from wander_hub.http.problems import HubProblem
from wander_hub.lifecycle import locks
from wander_hub.quotas import service as quotas
from wander_hub.storage import CHUNK, IN_MEMORY, Storage, copy_pieces
from wander_hub.upload import checks, service, sessions, sweep
from wander_hub.upload import session_repository as repository
from wander_hub.upload.models import StagedFile, UploadSession
from wander_hub.upload.schemas import Package, Upload, refusal

MOST_GENERATED = 200


@dataclass(frozen=True)
class _Checked:
    """What the checks of an upload's files found."""

    packages: list[Package]
    lock: bytes | None
    compared: dict[str, list[str]]
    attested: dict[str, Outcome]
    """By the names of the files that came with attestations."""


def finalize(context: Context, session_id: str) -> tuple[VersionDetail, bool]:
    """Publish all files of a session; return the version, and whether the hub had not all of it before."""
    with context.read() as session:
        found = sessions.find(session, context.caller, session_id)
        if found.status == "published":
            audit.nothing_done(session)
            return _describe_version(session, found, context.base_url), False
        _require_ready(session, found, context)
    with ExitStack() as stack:
        uploads: list[Upload] = []
        for file in found.files:
            body = cast(BinaryIO, stack.enter_context(tempfile.SpooledTemporaryFile(IN_MEMORY)))
            try:
                check_digest(context, file, copy_pieces(pieces(context.storage, file), body))
            except FileNotFoundError:
                return _without_chunks(context, file), False
            uploads.append(Upload(found.owner.name, file.filename, body, file.size, file.sha256))
        checked = _check(found, uploads, context)
        for upload in uploads:
            context.storage.keep(upload.body, upload.sha256, upload.size)
        outcome = _record(context, found.id, uploads, checked)
    drop_staged(context.storage, found.id)
    return outcome


def check_digest(context: Context, file: StagedFile, sha256: str) -> None:
    """Refuse a file whose bytes are not those that were announced, and forget them."""
    if sha256 != file.sha256:
        _start_again(context, file)
        raise refusal("digest_mismatch", f"the bytes of `{file.filename}` are not those of its sha256")


def drop_staged(storage: Storage, session_id: str) -> None:
    """Remove the chunks of a session that has ended; what stays is left for the next sweep."""
    with suppress(BaseError, OSError):
        for one in list(storage.list_staged(f"{session_id}/")):
            storage.unstage(one.path)


def require_whole(found: UploadSession) -> None:
    """Refuse a session that has ended, or of which not everything is there."""
    sessions.require_open(found)
    missing = [one for one in found.files if one.received != one.size]
    if missing:
        parts = ", ".join(f"`{one.filename}` has {one.received:,} of {one.size:,} bytes" for one in missing)
        hint = "send the rest, then finalize again"
        raise HubProblem(409, "upload_incomplete", f"not everything is there: {parts}", hint=hint)


def _require_ready(session: Session, found: UploadSession, context: Context) -> None:
    """Refuse a session that is not whole, or whose place is no longer free, before any file is read."""
    require_whole(found)
    files = {one.filename: one.sha256 for one in found.files if one.kind != "lock"}
    place = service.place_for(
        *(session, found.owner, found.name, found.version, files, context.caller),
        visibility=found.visibility,
        open_days=context.settings.version_open_days,
    )
    sessions.foresee(session, context, found.owner, found.files, fresh=place.version is None)


def pieces(storage: Storage, file: StagedFile) -> Iterator[bytes]:
    """Yield the bytes of a file, from its chunks or where it was published before."""
    if file.published:
        for start in range(0, file.size, CHUNK):
            yield storage.read(file.sha256, start, min(CHUNK, file.size - start))
    for chunk in file.chunks:
        yield storage.read_staged(sessions.chunk_key(file, chunk))


def read_part(storage: Storage, file: StagedFile, start: int, length: int) -> bytes:
    """Return a part of a file, from its chunks or where it was published before."""
    if file.published:
        return storage.read(file.sha256, start, length)
    parts = []
    for chunk in file.chunks:
        begin, end = max(start, chunk.offset), min(start + length, chunk.offset + chunk.size)
        if begin < end:
            held = storage.read_staged(sessions.chunk_key(file, chunk))
            parts.append(held[begin - chunk.offset : end - chunk.offset])
    return b"".join(parts)


def count_again(context: Context, file: StagedFile) -> None:
    """Set a file back to what is there of it: the chunks without a gap, or nothing where it was published."""
    if file.published:
        _start_again(context, file)
    sweep.count_again(context.database, context.storage, file.id)


def _without_chunks(context: Context, file: StagedFile) -> VersionDetail:
    """Return the version where the same request, sent twice, has just published it and dropped the chunks.

    Otherwise a chunk was lost: the file goes back to what is there, and the session is not whole.
    """
    count_again(context, file)
    with context.read() as session:
        found = sessions.find(session, context.caller, file.session_id)
        if found.status != "published":
            _require_ready(session, found, context)
            raise HubProblem(503, "storage_unavailable", f"the bytes of `{file.filename}` cannot be read")
        return _describe_version(session, found, context.base_url)


def _start_again(context: Context, file: StagedFile) -> None:
    """Forget what came of a file whose bytes are not the ones that were announced."""
    with context.database.write(context.caller) as session:
        found = sessions.find(session, context.caller, file.session_id, lock=True)
        for one in found.files:
            if one.id == file.id and found.status == "open":
                repository.drop_chunks(session, [one])
                one.received, one.published = 0, False


def _check(found: UploadSession, uploads: list[Upload], context: Context) -> _Checked:
    """Run the gate over each distribution file, and over all of them together."""
    lock: bytes | None = None
    packages: list[Package] = []
    for upload in uploads:
        if upload.filename == documents.NAMES["lock"]:
            upload.body.seek(0)
            lock = upload.body.read()
        else:
            packages.append(checks.check(upload, context.settings))
    compared = compare(packages, found.stated["source_sha256"])
    if lock is not None:
        wheels = [one for one in packages if one.kind == "wheel"]
        if not wheels:
            hint = "send the wheel along, or attach the lock to the version: `wander env lock NAME --attach`"
            raise HubProblem(422, "lock_mismatch", "a lock comes with the wheel that it is of", hint=hint)
        first, held = wheels[0], {one.filename: one.sha256 for one in wheels}
        wanted = locks.LockedVersion(first.name, first.version, first.requires_dist, held)
        locks.check(lock, wanted, context)
    digests = {one.filename: one.sha256 for one in packages}
    attested = sessions.check_attestations(digests, found.stated, context.caller)
    return _Checked(packages, lock, compared, attested)


def _record(
    context: Context, session_id: str, uploads: list[Upload], checked: _Checked
) -> tuple[VersionDetail, bool]:
    """Write rows and index pages, and end the session, in one transaction."""

    def record(session: Session) -> tuple[VersionDetail, bool]:
        found = sessions.find(session, context.caller, session_id, lock=True)
        if found.status == "published":
            return _describe_version(session, found, context.base_url), False
        sessions.require_open(found)
        context.database.lock_objects(session, exclusive=False)
        for upload in uploads:
            context.storage.ensure(upload.sha256, upload.body)
        check = found.stated["check"]
        published = service.publish(
            session,
            found.owner,
            checked.packages,
            context.caller,
            check=CheckSummary.model_validate(check) if check else None,
            visibility=found.visibility,
            open_days=context.settings.version_open_days,
            compared=checked.compared,
            attested=checked.attested,
        )
        if checked.lock is not None:
            place = (found.owner.name, published.environment.name, found.version)
            locks.attach(session, context.storage, context.caller, *place, checked.lock)
        if published.created or checked.lock is not None:
            quotas.require_room(session, context.settings, found.owner, quotas.OF_VERSIONS)
        found.status = "published"
        repository.drop_chunks(session, found.files)
        detail = _describe_version(session, found, context.base_url)
        ignored = [
            warning.model_copy(update={"filename": filename})
            for filename, outcome in checked.attested.items()
            for warning in outcome.warnings
        ]
        return detail.model_copy(update={"warnings": [*detail.warnings, *ignored]}), published.created

    return context.commit(record)


def _describe_version(session: Session, found: UploadSession, base_url: str) -> VersionDetail:
    """Return the version that a session became."""
    environment = environment_service.find(session, found.owner.name, found.name)
    version = environment_service.find_version(session, environment, found.version)
    return environment_service.version_detail(environment, version, base_url)


def compare(packages: Sequence[Package], stated_tree: str | None = None) -> dict[str, list[str]]:
    """Hold the wheels of a version against its source archive, and that against the digest stated for it.

    Returns the wheels that were compared, each with the files that only its build made; none without an
    archive. Raises a `HubProblem` for what does not fit.
    """
    source = next((one for one in packages if one.kind == "sdist"), None)
    if source is None:
        return {}
    tree = source.contents.tree_sha256
    if stated_tree is not None and stated_tree != tree:
        detail = f"the files in `{source.filename}` have the tree digest {tree}, not {stated_tree}"
        raise refusal("source_tree_mismatch", detail)
    return {one.filename: find_generated_files(one, source) for one in packages if one.kind == "wheel"}


def find_generated_files(wheel: Package, source: Package) -> list[str]:
    """Return the files that only the wheel has; refuse those that the source does not declare."""
    wanted = {path for path, _ in wheel.contents.code}
    lying: dict[str, dict[str, bytes]] = {}
    for path, digest in source.contents.code:
        parts = path.split("/")
        for start in range(len(parts)):  # it may lie below folders that the wheel does without
            ending = "/".join(parts[start:])
            if ending in wanted:
                lying.setdefault(ending, {})[path] = digest
    made: list[str] = []
    for path, digest in sorted(wheel.contents.code):
        places = lying.get(path, {})
        if digest in places.values():
            continue
        if any(fnmatchcase(path, pattern) for pattern in source.contents.generated):
            made.append(path)
            continue
        where = f"has other bytes than `{min(places)}` of" if places else "is not in"
        detail = f"`{path}` of `{wheel.filename}` {where} `{source.filename}`"
        raise refusal("wheel_differs_from_source", detail)
    if len(made) > MOST_GENERATED:
        raise refusal("bad_generated", f"`{wheel.filename}` has {len(made):,} files that its source lacks")
    return made
