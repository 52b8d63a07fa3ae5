"""Posts a run that came in one request, through the same steps as one that comes in parts."""

from __future__ import annotations

import hashlib
import io
import tempfile
from typing import BinaryIO

from wander.wire.postings import FinishPosting, RolloutsDigest, line_digest, run_digest

from wander_hub.database import Database
from wander_hub.identity import Identity
from wander_hub.posting import finish as finishing
from wander_hub.posting import service as posting
from wander_hub.posting.reading import Line, lines_that_count, split, unpack
from wander_hub.posting.service import PostingLimits
from wander_hub.runs.manifest import PinnedRun
from wander_hub.runs.schemas import PostedRun
from wander_hub.storage import Storage

_CHUNK_BYTES = 8 * 1024 * 1024


def post(
    database: Database, storage: Storage, posted: PostedRun, caller: Identity, limits: PostingLimits
) -> tuple[str, bool]:
    """Validate, summarise and keep a run; return its id and whether it is new."""
    with database.read(caller) as session:
        posting.require_permission(session, posted.manifest, caller)
    with tempfile.TemporaryFile() as plain:
        lines: list[Line] = []
        if posted.rollouts is not None:
            unpack(posted.rollouts, plain, limits.run_bytes, "the rollouts are")
            lines = lines_that_count(plain, PinnedRun.of(posted.manifest))
        artifacts = {one.name: one.sha256 for one in posted.artifacts}
        digest = RolloutsDigest()
        for line in lines:
            digest.add(line_digest(_read(plain, line)))
        sha256 = run_digest(posted.manifest_text, digest.hexdigest(), artifacts)
        opened, created = posting.open_posting(
            database, storage, posted.manifest_text, sha256, caller, limits, private=posted.private
        )
        if opened.posted:
            return opened.run_id, False
        try:
            count = 0
            for count, part in enumerate(split(lines, _CHUNK_BYTES), start=1):
                text = b"".join(_read(plain, line).rstrip(b"\n") + b"\n" for line in part)
                stated = hashlib.sha256(text).hexdigest()
                body = io.BytesIO(text)
                posting.add_chunk(database, storage, sha256, count - 1, body, stated, caller, limits)
            for artifact in posted.artifacts:
                posting.add_artifact(database, storage, sha256, artifact, caller, limits)
            return finishing.finish(database, storage, sha256, FinishPosting(chunks=count), caller)
        except Exception as error:
            with database.read(caller) as session:
                if posting.is_known(session, opened.run_id, sha256):
                    return opened.run_id, False  # another request for the same run came first
            if created and getattr(error, "code", None) != "posting_not_found":
                posting.drop(database, storage, sha256, caller)
            raise


def _read(plain: BinaryIO, line: Line) -> bytes:
    plain.seek(line.offset)
    return plain.read(line.length)
