"""Runs that are posted in parts: announced with their manifest, with every line checked on arrival.

The parts of the rollouts are stored in their final form, and `finish` creates the run. A run that is posted
in one request takes the same steps.
"""

from __future__ import annotations

import hashlib
import io
import tempfile
from collections import OrderedDict
from collections.abc import Sequence
from contextlib import suppress
from threading import Lock
from typing import IO, BinaryIO

from pydantic import BaseModel
from sqlalchemy.orm import Session
from wander.wire.postings import MAX_CHUNK_BYTES, ROLLOUTS, RolloutsDigest, line_digest, run_digest
from wander.wire.transfers import NewRun, RunFile, TransferFile, TransferInfo

from wander_hub.database import fill
from wander_hub.http.boundary import Context
from wander_hub.http.problems import HubProblem
from wander_hub.identity import Identity
from wander_hub.posting.finish import artifacts_of, describe, finish
from wander_hub.posting.reading import FilePosition, rollouts_in_order, split, unpack
from wander_hub.posting.service import is_known, is_poster, require_permission
from wander_hub.quotas import service as quotas
from wander_hub.runs import manifest as manifests
from wander_hub.runs import repository as run_repository
from wander_hub.runs.artifacts import PostedFile, media_type_of, require_apart
from wander_hub.runs.chunks import write_chunk
from wander_hub.runs.manifest import PinnedRun
from wander_hub.settings import Settings
from wander_hub.storage import IN_MEMORY
from wander_hub.transfers import service as transfers
from wander_hub.transfers.models import Transfer, TransferPart

MAX_ARTIFACTS = 32
"""Maximum number of plots, metrics and other files of one run."""
MAX_ARTIFACT_BYTES = 32 * 1024 * 1024
_PART_BYTES = 8 * 1024 * 1024
"""Size of the parts into which a run posted in one request is split."""


class PinnedRuns:
    """Cache of recently used manifests, because every chunk of a run is checked against the same manifest."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._kept: OrderedDict[str, PinnedRun] = OrderedDict()
        self._lock = Lock()

    def of(self, transfer: Transfer) -> PinnedRun:
        """Return the manifest of a transfer, with the positions of its examples."""
        with self._lock:
            pinned = self._kept.get(transfer.digest)
        if pinned is None:
            assert transfer.manifest is not None
            pinned = PinnedRun.of(manifests.parse(transfer.manifest.encode()))
        with self._lock:
            self._kept[transfer.digest] = pinned
            self._kept.move_to_end(transfer.digest)
            while len(self._kept) > self._most:
                self._kept.popitem(last=False)
        return pinned


_pinned = PinnedRuns(2)


def announce(context: Context, wanted: NewRun) -> tuple[TransferInfo, bool]:
    """Open the transfer of a run, identified by its digest. It is finished if the run was posted before."""
    user_id, settings = context.caller.user_id, context.settings
    text = wanted.manifest.encode()
    manifest = manifests.parse(text)
    _check_files(wanted, settings)
    rollouts = next((file.sha256 for file in wanted.files if file.filename == ROLLOUTS), None)
    sha256 = run_digest(text, rollouts, {file.filename: file.sha256 for file in artifacts_of(wanted.files)})

    def record(session: Session) -> tuple[TransferInfo, bool]:
        environment, _ = require_permission(session, manifest, context.caller)
        hidden = wanted.private or environment.visibility == "private"
        run_id, other = manifest.run_id, run_repository.hidden_id(manifest.run_id, user_id)
        run_id, other = (other, run_id) if hidden else (run_id, other)
        known = is_known(session, run_id, sha256)
        if not known and is_poster(session, other, user_id) and is_known(session, other, sha256):
            run_id, known = other, True
        if not known:
            own = quotas.poster(session, context.caller.user) if context.has_quota else None
            quotas.require_quota(session, settings, own, stored_bytes=len(text), runs=1)
        announcement = transfers.Announcement(
            digest=sha256,
            files=[fill(TransferFile, file) for file in wanted.files],
            stated=wanted.model_dump(mode="json", exclude={"manifest", "files"}) | {"run_id": run_id},
            manifest=wanted.manifest,
            finished=known,
        )
        return transfers.announce(session, context, RUNS, announcement)

    return context.commit(record)


def _check_files(wanted: NewRun, settings: Settings) -> None:
    """Reject files by their announcement, before any of their bytes arrive."""
    artifacts, names = artifacts_of(wanted.files), list[str]()
    if len(artifacts) > MAX_ARTIFACTS:
        raise HubProblem(422, "too_many_artifacts", f"a run has at most {MAX_ARTIFACTS} files")
    for file in artifacts:
        media_type_of(file.filename)
        require_apart(file.filename, names)
        names.append(file.filename)
        if file.size > MAX_ARTIFACT_BYTES:
            detail = f"`{file.filename}` is larger than {MAX_ARTIFACT_BYTES:,} bytes"
            raise HubProblem(413, "too_large", detail)
    if len({file.filename for file in wanted.files}) != len(wanted.files):
        raise HubProblem(422, "invalid_request", "a file is listed twice")
    if any(file.size > settings.max_run_bytes for file in wanted.files):
        most = settings.max_run_bytes
        raise HubProblem(413, "too_large", f"the rollouts are larger than this hub's limit of {most:,} bytes")


def _admit(session: Session, transfer: Transfer, caller: Identity) -> PinnedRun:
    pinned = _pinned.of(transfer)
    require_permission(session, pinned.manifest, caller)
    return pinned


def _take(pinned: PinnedRun, part: transfers.Arriving, scratch: IO[bytes]) -> tuple[TransferPart, IO[bytes]]:
    """Store an artifact unchanged, and rollouts in their final form after validating every line."""
    if part.file.filename != ROLLOUTS:
        return transfers.take_bytes(pinned, part, scratch)
    with tempfile.SpooledTemporaryFile(IN_MEMORY) as plain:
        sha256, size = unpack(part.body, plain, MAX_CHUNK_BYTES, "the part is")
        part.require_fit(sha256, size)
        frames, count = write_chunk(rollouts_in_order(plain, pinned, part.offset), scratch)
    return TransferPart(size=size, rollouts=count, row_frames=frames), scratch


RUNS = transfers.TransferRules("runs", _admit, finish, describe, _take, MAX_CHUNK_BYTES)


def post_whole(
    context: Context,
    manifest: bytes,
    plain: BinaryIO,
    lines: Sequence[FilePosition],
    artifacts: Sequence[PostedFile],
    *,
    private: bool,
    name: str = "",
) -> tuple[BaseModel, bool]:
    """Post a run whose rollouts are `lines` of `plain`; return it and whether it is new."""
    digest, size = RolloutsDigest(), 0
    for line in lines:
        text = _read(plain, line)
        digest.add(line_digest(text))
        size += len(text)
    files = [RunFile(filename=file.name, size=file.size, sha256=file.sha256) for file in artifacts]
    if (sha256 := digest.hexdigest()) is not None:
        files.append(RunFile(filename=ROLLOUTS, size=size, sha256=sha256))
    wanted = NewRun(manifest=manifest.decode(), files=files, private=private, name=name)
    opened, created = announce(context.part, wanted)
    try:
        if not opened.finished:
            _send(context.part, opened.id, plain, lines, artifacts)
        return transfers.finish(context, RUNS, opened.id)
    except HubProblem:
        if created:
            with suppress(HubProblem):  # another request for the same run may have dropped the transfer
                transfers.drop(context.part, RUNS, opened.id)
        raise


def _send(
    context: Context,
    transfer_id: str,
    plain: BinaryIO,
    lines: Sequence[FilePosition],
    artifacts: Sequence[PostedFile],
) -> None:
    offset = 0
    for part in split(lines, _PART_BYTES):
        text = b"".join(_read(plain, line) for line in part)
        stated = hashlib.sha256(text).hexdigest()
        transfers.receive(context, RUNS, transfer_id, ROLLOUTS, offset, stated, io.BytesIO(text))
        offset += len(text)
    for file in (file for file in artifacts if file.size):
        transfers.receive(context, RUNS, transfer_id, file.name, 0, file.sha256, file.body)


def _read(plain: BinaryIO, line: FilePosition) -> bytes:
    """Return a line that ends with exactly one newline."""
    plain.seek(line.offset)
    return plain.read(line.length).rstrip(b"\n") + b"\n"
