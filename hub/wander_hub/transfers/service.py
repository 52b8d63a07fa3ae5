"""The steps of a transfer: announce all files, send their parts in any order, finish.

Sending the same part again changes nothing, and a part with different bytes replaces the old part. So an
interrupted sender only sends the missing parts. An object is stored before the row that refers to it, and
deleted after that row. The kinds of transfers differ only in their `TransferRules`.
"""

from __future__ import annotations

import hashlib
import secrets
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from itertools import groupby
from typing import IO, Any

from pydantic import BaseModel
from sqlalchemy.orm import Session
from wander.wire.transfers import TransferFile, TransferInfo, TransferKind, TransferredPart

from wander_hub import audit
from wander_hub.database import Database, now
from wander_hub.http.boundary import Context
from wander_hub.http.problems import HubProblem
from wander_hub.identity import HUB, Identity
from wander_hub.storage import IN_MEMORY, ObjectMissing, Storage, digest_of
from wander_hub.transfers import objects, repository
from wander_hub.transfers.models import Transfer, TransferPart

MOST_PART_BYTES = 8 * 1024 * 1024
"""Longest part of a file of a version or a model; parts of rollouts may be longer."""
KEPT_HOURS = 72
"""How long the hub keeps an unfinished transfer, counted from its last part."""
SMALLEST_PART = 64 * 1024
"""Minimum size of a part in bytes, except for the last part of a file, so that no file becomes a million
objects."""
_SHOWN_MISSING = 20


@dataclass(frozen=True)
class Arriving:
    """A part that is being received, with its position and the stated SHA-256."""

    file: TransferFile
    offset: int
    sha256: str
    body: IO[bytes]

    def require_fit(self, sha256: str, size: int) -> None:
        """Raise if the plain bytes do not match the stated digest or do not fit into the file."""
        if sha256 != self.sha256:
            detail = "the part does not match its stated digest"
            raise HubProblem(422, "digest_mismatch", detail, hint="send it again")
        if self.offset + size > self.file.size:
            rest = self.file.size - self.offset
            detail = f"the part has {size:,} bytes, but `{self.file.filename}` has only {rest:,} left"
            raise HubProblem(422, "part_too_long", detail)


@dataclass(frozen=True)
class Arrived:
    """A transfer whose parts have all arrived."""

    transfer: Transfer
    subject: Any
    """Result of `TransferRules.admit`."""
    parts: Mapping[str, Sequence[TransferPart]]
    """Parts by file, in order. Files that the hub already had are left out."""
    stored: list[str] = field(default_factory=list)
    """Digests of the objects that are only needed if the transfer is finished."""

    def pieces(self, storage: Storage, file: TransferFile) -> Iterator[bytes]:
        """Yield the plain bytes of a file, including a file that the hub already had."""
        parts = self.parts.get(file.filename, ())
        for sha256 in [file.sha256] if file.there else [part.object_sha256 for part in parts]:
            yield from storage.pieces(sha256)

    def store(self, storage: Storage, file: TransferFile) -> None:
        """Store a file as one object; raise if its bytes differ from the announcement."""
        self.stored.append(file.sha256)
        if storage.keep_pieces(self.pieces(storage, file), file.sha256, file.size) != file.sha256:
            raise other_bytes(file)

    def ensure(self, storage: Storage, files: Sequence[TransferFile]) -> None:
        """Store the files that are not in the storage yet."""
        for file in files:
            if not storage.exists(file.sha256):
                self.store(storage, file)


MakeVisible = Callable[[Session], tuple[BaseModel, bool]]
"""Function that publishes the content in a transaction; it returns the result and whether it is new."""
TakePart = Callable[[Any, Arriving, IO[bytes]], tuple[TransferPart, IO[bytes]]]
"""Function that validates a part; it returns the part's row and the content to store, possibly in the given
file."""


def take_bytes(_subject: Any, part: Arriving, _scratch: IO[bytes]) -> tuple[TransferPart, IO[bytes]]:
    """Accept a part without changes."""
    sha256, size = digest_of(part.body)
    part.require_fit(sha256, size)
    if size < SMALLEST_PART and (size == 0 or part.offset + size != part.file.size):
        detail = f"the part has {size:,} bytes; all parts except the last need at least {SMALLEST_PART:,}"
        raise HubProblem(422, "part_too_short", detail)
    return TransferPart(size=size, rollouts=0, row_frames=[]), part.body


@dataclass(frozen=True)
class TransferRules:
    """The differences between the kinds of transfers."""

    kind: TransferKind
    admit: Callable[[Session, Transfer, Identity], Any]
    """Function that raises if the caller may not send this anymore, and otherwise returns the subject."""
    finish: Callable[[Context, Arrived], MakeVisible]
    """Function that validates the whole content outside of a transaction."""
    describe: Callable[[Session, Transfer, str], BaseModel]
    """Function that returns the result of a finished transfer."""
    take: TakePart = take_bytes
    most_part_bytes: int = MOST_PART_BYTES


@dataclass(frozen=True)
class Announcement:
    """A validated announcement of a sender."""

    digest: str
    files: Sequence[TransferFile]
    stated: dict[str, Any]
    manifest: str | None = None
    finished: bool = False
    """Whether the hub already has the same content."""


def announce(
    session: Session, context: Context, rules: TransferRules, wanted: Announcement
) -> tuple[TransferInfo, bool]:
    """Open a transfer, or return the caller's open transfer of the same content; also return whether it is
    new."""
    user_id, most = context.caller.user_id, context.settings.max_open_transfers
    transfer = repository.transfer_with_digest(session, user_id, rules.kind, wanted.digest)
    created = transfer is None
    if transfer is None:
        limited = context.has_quota and not wanted.finished
        if limited and repository.count_open(session, user_id) >= most:
            hint = "finish them, or wait until the hub drops them"
            raise HubProblem(429, "too_many_transfers", f"{most} of your transfers are unfinished", hint=hint)
        transfer = Transfer(id=secrets.token_hex(16), user_id=user_id, kind=rules.kind, digest=wanted.digest)
        session.add(transfer)
    transfer.stated, transfer.manifest, transfer.finished = wanted.stated, wanted.manifest, wanted.finished
    transfer.listed = [file.model_dump(mode="json") for file in wanted.files]
    _extend(context, transfer)
    session.flush()
    return describe(session, context, rules, transfer), created


def describe(session: Session, context: Context, rules: TransferRules, transfer: Transfer) -> TransferInfo:
    """Return a transfer as the API shows it."""
    return TransferInfo(
        id=transfer.id,
        kind=transfer.kind,
        files=transfer.files,
        parts=[
            TransferredPart(filename=part.filename, offset=part.offset, sha256=part.sha256)
            for part in repository.parts_of(session, transfer.id)
        ],
        part_bytes=rules.most_part_bytes,
        finished=transfer.finished,
        expires_at=transfer.expires_at,
    )


def find(
    session: Session, caller: Identity, rules: TransferRules, transfer_id: str, *, lock: bool = False
) -> tuple[Transfer, Any]:
    """Return a caller's transfer and its subject; raise a problem if it does not exist or is no longer
    permitted."""
    transfer = repository.transfer_of(session, caller.user_id, rules.kind, transfer_id, lock=lock)
    if transfer is None:
        hint = "run the same command again to start a new one; unfinished transfers expire"
        raise HubProblem(404, "transfer_not_found", f"there is no transfer `{transfer_id[:40]}`", hint=hint)
    return transfer, rules.admit(session, transfer, caller)


def find_file(
    session: Session,
    caller: Identity,
    rules: TransferRules,
    transfer_id: str,
    filename: str,
    *,
    lock: bool = False,
) -> tuple[Transfer, Any, TransferFile]:
    """Return a transfer with its subject and one of its files; raise a 404 problem if one of them is
    missing."""
    transfer, subject = find(session, caller, rules, transfer_id, lock=lock)
    for file in transfer.files:
        if file.filename == filename:
            return transfer, subject, file
    raise HubProblem(404, "file_not_found", f"the transfer has no file `{filename[:100]}`")


def receive(
    context: Context,
    rules: TransferRules,
    transfer_id: str,
    filename: str,
    offset: int,
    sha256: str,
    body: IO[bytes],
) -> TransferredPart:
    """Validate and store a part of a file. A part that the hub already has or no longer needs changes
    nothing."""
    answer = TransferredPart(filename=filename, offset=offset, sha256=sha256)
    with context.read() as session:
        transfer, subject, file = find_file(session, context.caller, rules, transfer_id, filename)
        known = session.get(TransferPart, (transfer_id, filename, offset))
        if transfer.finished or file.there or (known is not None and known.sha256 == sha256):
            return answer
    with tempfile.SpooledTemporaryFile(IN_MEMORY) as scratch:
        part, content = rules.take(subject, Arriving(file, offset, sha256, body), scratch)
        object_sha256 = context.storage.put(content)
        part.transfer_id, part.filename, part.offset = transfer_id, filename, offset
        part.sha256, part.object_sha256 = sha256, object_sha256

        def record(session: Session) -> list[str]:
            transfer, _, file = find_file(session, context.caller, rules, transfer_id, filename, lock=True)
            if transfer.finished or file.there:
                return [object_sha256]
            replaced = repository.drop_overlapping(session, part)
            context.database.lock_objects(session, exclusive=False)
            context.storage.ensure(object_sha256, content)
            session.merge(part)
            _extend(context, transfer)
            return [digest for digest in replaced if digest != object_sha256]

        objects.discard(context.database, context.storage, context.commit(record))
    return answer


def finish(context: Context, rules: TransferRules, transfer_id: str) -> tuple[BaseModel, bool]:
    """Publish the content of a transfer; return the result and whether it is new."""
    with context.read() as session:
        transfer, subject = find(session, context.caller, rules, transfer_id)
        if transfer.finished:
            return rules.describe(session, transfer, context.base_url), False
        parts = repository.parts_of(session, transfer_id)
        require_whole(transfer, parts)
    by_file = {name: list(group) for name, group in groupby(parts, lambda part: part.filename)}
    arrived = Arrived(transfer, subject, by_file)
    loose: list[str] = []

    def record(session: Session) -> tuple[BaseModel, bool]:
        transfer, _ = find(session, context.caller, rules, transfer_id, lock=True)
        if transfer.finished:
            audit.nothing_done(session)
            return rules.describe(session, transfer, context.base_url), False
        if _identity(repository.parts_of(session, transfer_id)) != _identity(parts):
            hint = "wait for the other command that sends the same content, then run yours again"
            raise HubProblem(409, "concurrent_change", "another request changed a part", hint=hint)
        context.database.lock_objects(session, exclusive=False)
        result = make(session)
        transfer.finished = True
        dropped = repository.drop_parts(session, [transfer_id])
        loose[:] = set(dropped) - objects.in_use(session, dropped)
        return result

    try:
        make = rules.finish(context, arrived)
        answer = context.commit(record)
    except ObjectMissing:
        return _without_objects(context, rules, transfer_id), False
    except HubProblem:
        objects.discard(context.database, context.storage, arrived.stored)
        raise
    objects.discard(context.database, context.storage, loose)
    return answer


def drop(context: Context, rules: TransferRules, transfer_id: str) -> None:
    """Remove a transfer and its parts. The result of a finished transfer is not affected."""

    def record(session: Session) -> list[str]:
        transfer, _ = find(session, context.caller, rules, transfer_id, lock=True)
        return repository.remove(session, [transfer.id])

    objects.discard(context.database, context.storage, context.commit(record))


def sweep(database: Database, storage: Storage) -> int:
    """Remove expired transfers; return their number."""

    def record(session: Session) -> tuple[int, list[str]]:
        expired = repository.list_expired(session)
        return len(expired), repository.remove(session, expired)

    total = 0
    while True:
        with database.read(HUB) as session:  # a writing session would block all others
            if not repository.any_expired(session):
                return total
        count, loose = database.commit(record, HUB)
        objects.discard(database, storage, loose)
        total += count


def require_whole(transfer: Transfer, parts: Sequence[TransferPart]) -> None:
    """Raise if parts of a transfer are missing."""
    missing = []
    for file in transfer.files:
        end = file.size if file.there else 0
        for part in (part for part in parts if part.filename == file.filename):
            if part.offset > end:
                missing.append((file.filename, end, part.offset))
            end = max(end, part.offset + part.size)
        if end != file.size:
            missing.append((file.filename, end, file.size))
    if missing:
        gaps = ", ".join(
            f"`{name}` from {start:,} to {end:,}" for name, start, end in missing[:_SHOWN_MISSING]
        )
        raise HubProblem(
            409,
            "transfer_incomplete",
            f"the transfer is incomplete: {gaps} has not arrived",
            hint="send the missing parts and finish again; running the same command again does both",
            errors=[
                {"file": name, "start": start, "end": end, "msg": "missing"}
                for name, start, end in missing[:_SHOWN_MISSING]
            ],
        )


def other_bytes(file: TransferFile) -> HubProblem:
    """Return the problem of a file whose bytes differ from the announcement."""
    detail = f"the bytes of `{file.filename}` do not match its sha256"
    return HubProblem(
        422, "digest_mismatch", detail, hint="the file changed during the upload; send it again"
    )


def digest_of_text(text: str) -> str:
    """Return the SHA-256 of a text."""
    return hashlib.sha256(text.encode()).hexdigest()


def _extend(context: Context, transfer: Transfer) -> None:
    transfer.expires_at = now() + timedelta(hours=KEPT_HOURS)


def _identity(parts: Sequence[TransferPart]) -> list[tuple[str, int, str]]:
    return [(part.filename, part.offset, part.object_sha256) for part in parts]


def _without_objects(context: Context, rules: TransferRules, transfer_id: str) -> BaseModel:
    """Return the result of a concurrent identical request, which has removed the parts in the meantime.

    Otherwise, objects are missing, and their content must be sent again.
    """
    with context.read() as session:
        transfer, _ = find(session, context.caller, rules, transfer_id)
        needed = {part.object_sha256 for part in repository.parts_of(session, transfer_id)}
    needed |= {file.sha256 for file in transfer.files if file.there}
    lost = {sha256 for sha256 in needed if not context.storage.exists(sha256)}

    def forget(session: Session) -> None:
        transfer, _ = find(session, context.caller, rules, transfer_id, lock=True)
        files = [file.model_dump(mode="json") for file in transfer.files]
        transfer.listed = [file | {"there": file["there"] and file["sha256"] not in lost} for file in files]
        repository.drop_lost(session, transfer_id, lost)

    context.part.commit(forget)
    with context.read() as session:
        transfer, _ = find(session, context.caller, rules, transfer_id)
        if transfer.finished:
            return rules.describe(session, transfer, context.base_url)
        require_whole(transfer, repository.parts_of(session, transfer_id))
    raise HubProblem(503, "storage_unavailable", "cannot read the content of the files")
