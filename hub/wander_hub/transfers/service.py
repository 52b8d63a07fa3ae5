"""The steps of a transfer: announce all files, send their parts in any order, finish.

A part that is sent again changes nothing, and one with other bytes takes its place, so a sender who was cut
off sends what is missing. An object is stored before the row that points to it, and removed after that row
is gone. The kinds of transfers differ in their `TransferRules`, and in nothing else.
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
from wander_hub.settings import Settings
from wander_hub.storage import IN_MEMORY, ObjectMissing, Storage, digest_of
from wander_hub.transfers import objects, repository
from wander_hub.transfers.models import Transfer, TransferPart

SMALLEST_PART = 64 * 1024
"""Bytes; only the last part of a file may have fewer, so that no file becomes a million objects."""
_SHOWN_MISSING = 20


@dataclass(frozen=True)
class Arriving:
    """A part as it arrives: where it belongs, and the SHA-256 that its sender states."""

    file: TransferFile
    offset: int
    sha256: str
    body: IO[bytes]

    def require_fit(self, sha256: str, size: int) -> None:
        """Refuse plain bytes that are not the stated ones or that do not fit into the file."""
        if sha256 != self.sha256:
            detail = "the part has another digest than stated"
            raise HubProblem(422, "digest_mismatch", detail, hint="send it again")
        if self.offset + size > self.file.size:
            left = self.file.size - self.offset
            detail = f"the part has {size:,} bytes, and `{self.file.filename}` only {left:,} from there on"
            raise HubProblem(422, "part_too_long", detail)


@dataclass(frozen=True)
class Arrived:
    """A transfer whose parts have all arrived."""

    transfer: Transfer
    subject: Any
    """What `TransferRules.admit` returned."""
    parts: Mapping[str, Sequence[TransferPart]]
    """Parts by file, in order; a file that the hub already had is not a key."""
    stored: list[str] = field(default_factory=list)
    """Digests of the objects that are only needed if the transfer is finished."""

    def pieces(self, storage: Storage, file: TransferFile) -> Iterator[bytes]:
        """Yield the plain bytes of a file, also of a file that the hub already had."""
        parts = self.parts.get(file.filename, ())
        for sha256 in [file.sha256] if file.there else [part.object_sha256 for part in parts]:
            yield from storage.pieces(sha256)

    def store(self, storage: Storage, file: TransferFile) -> None:
        """Store a file as one object; refuse bytes that differ from the announcement."""
        self.stored.append(file.sha256)
        if storage.keep_pieces(self.pieces(storage, file), file.sha256, file.size) != file.sha256:
            raise other_bytes(file)

    def ensure(self, storage: Storage, files: Sequence[TransferFile]) -> None:
        """Store those of the files whose objects are not there, or are not there any more."""
        for file in files:
            if not storage.exists(file.sha256):
                self.store(storage, file)


MakeVisible = Callable[[Session], tuple[BaseModel, bool]]
"""Makes the whole visible in a transaction; returns what it became, and whether it is new."""
TakePart = Callable[[Any, Arriving, IO[bytes]], tuple[TransferPart, IO[bytes]]]
"""Checks a part of a subject; returns its row and what is stored of it, which may be in the file given."""


def take_bytes(_subject: Any, part: Arriving, _scratch: IO[bytes]) -> tuple[TransferPart, IO[bytes]]:
    """Take a part as it is."""
    sha256, size = digest_of(part.body)
    part.require_fit(sha256, size)
    if size < SMALLEST_PART and (size == 0 or part.offset + size != part.file.size):
        detail = f"the part has {size:,} bytes; all but a file's last have {SMALLEST_PART:,} at least"
        raise HubProblem(422, "part_too_short", detail)
    return TransferPart(size=size, rollouts=0, row_frames=[]), part.body


@dataclass(frozen=True)
class TransferRules:
    """What differs between the kinds of transfers."""

    kind: TransferKind
    admit: Callable[[Session, Transfer, Identity], Any]
    """Refuses a caller who may not send this any more; returns what is sent."""
    finish: Callable[[Context, Arrived], MakeVisible]
    """Checks the whole outside of a transaction."""
    describe: Callable[[Session, Transfer, str], BaseModel]
    """Returns what a finished transfer became."""
    take: TakePart = take_bytes
    most_part_bytes: Callable[[Settings], int] = lambda settings: settings.transfer_part_bytes


@dataclass(frozen=True)
class Announcement:
    """What a sender announces, after the checks of its kind."""

    digest: str
    files: Sequence[TransferFile]
    stated: dict[str, Any]
    manifest: str | None = None
    finished: bool = False
    """The hub has the very same already."""


def announce(
    session: Session, context: Context, rules: TransferRules, wanted: Announcement
) -> tuple[TransferInfo, bool]:
    """Open a transfer, or return the caller's open one of the very same content; tell which."""
    user_id, most = context.caller.user_id, context.settings.max_open_transfers
    transfer = repository.transfer_with_digest(session, user_id, rules.kind, wanted.digest)
    created = transfer is None
    if transfer is None:
        if not wanted.finished and repository.count_open(session, user_id) >= most:
            hint = "finish them, or wait: the hub drops transfers that nobody continues"
            raise HubProblem(429, "too_many_transfers", f"{most} transfers of yours are open", hint=hint)
        transfer = Transfer(id=secrets.token_hex(16), user_id=user_id, kind=rules.kind, digest=wanted.digest)
        session.add(transfer)
    transfer.stated, transfer.manifest, transfer.finished = wanted.stated, wanted.manifest, wanted.finished
    transfer.listed = [file.model_dump(mode="json") for file in wanted.files]
    _put_off(context, transfer)
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
        part_bytes=rules.most_part_bytes(context.settings),
        finished=transfer.finished,
        expires_at=transfer.expires_at,
    )


def find(
    session: Session, caller: Identity, rules: TransferRules, transfer_id: str, *, lock: bool = False
) -> tuple[Transfer, Any]:
    """Return a transfer of the caller, who may still send it, and its subject; raise a 404 otherwise."""
    transfer = repository.transfer_of(session, caller.user_id, rules.kind, transfer_id, lock=lock)
    if transfer is None:
        hint = "the same command begins a new one; a hub keeps unfinished transfers for a limited time"
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
    """Return a transfer with its subject and one of its files."""
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
    """Check and keep a part of a file. A part that the hub has or no longer needs changes nothing."""
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
            _put_off(context, transfer)
            return [digest for digest in replaced if digest != object_sha256]

        objects.discard(context.database, context.storage, context.commit(record))
    return answer


def finish(context: Context, rules: TransferRules, transfer_id: str) -> tuple[BaseModel, bool]:
    """Make the whole of a transfer visible; return what it became, and whether it is new."""
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
            hint = "wait for the other command that sends the same, then run yours again"
            raise HubProblem(409, "concurrent_change", "another request changed a part", hint=hint)
        context.database.lock_objects(session, exclusive=False)
        made = make(session)
        transfer.finished = True
        dropped = repository.drop_parts(session, [transfer_id])
        loose[:] = set(dropped) - objects.in_use(session, dropped)
        return made

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
    """Forget a transfer and all that came for it; what a finished one became stays."""

    def record(session: Session) -> list[str]:
        transfer, _ = find(session, context.caller, rules, transfer_id, lock=True)
        return repository.remove(session, [transfer.id])

    objects.discard(context.database, context.storage, context.commit(record))


def sweep(database: Database, storage: Storage) -> int:
    """Forget the transfers whose time is over; return how many."""

    def record(session: Session) -> tuple[int, list[str]]:
        expired = repository.list_expired(session)
        return len(expired), repository.remove(session, expired)

    total = 0
    while True:
        with database.read(HUB) as session:  # a writing session would make every other one wait
            if not repository.any_expired(session):
                return total
        count, loose = database.commit(record, HUB)
        objects.discard(database, storage, loose)
        total += count


def require_whole(transfer: Transfer, parts: Sequence[TransferPart]) -> None:
    """Refuse a transfer that lacks parts."""
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
            f"not everything is there: {gaps} has not arrived",
            hint="send the rest, then finish again; the same command does so",
            errors=[
                {"file": name, "start": start, "end": end, "msg": "missing"}
                for name, start, end in missing[:_SHOWN_MISSING]
            ],
        )


def other_bytes(file: TransferFile) -> HubProblem:
    """Return the refusal of a file whose bytes differ from the announcement."""
    detail = f"the bytes of `{file.filename}` are not those of its sha256"
    return HubProblem(422, "digest_mismatch", detail, hint="it changed while it was sent: send it again")


def digest_of_text(text: str) -> str:
    """Return the SHA-256 of a text."""
    return hashlib.sha256(text.encode()).hexdigest()


def _put_off(context: Context, transfer: Transfer) -> None:
    transfer.expires_at = now() + timedelta(hours=context.settings.transfer_hours)


def _identity(parts: Sequence[TransferPart]) -> list[tuple[str, int, str]]:
    return [(part.filename, part.offset, part.object_sha256) for part in parts]


def _without_objects(context: Context, rules: TransferRules, transfer_id: str) -> BaseModel:
    """Return what the same request, sent twice, has just made, whose parts were dropped meanwhile.

    Otherwise objects were lost: what they held is to be sent again.
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
    raise HubProblem(503, "storage_unavailable", "the bytes of the files cannot be read")
