"""Posts a run all of which is here, by the same steps as one that comes in parts."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Sequence
from typing import BinaryIO

from wander.wire.postings import FinishPosting, RolloutsDigest, line_digest, run_digest

from wander_hub.http.boundary import Context
from wander_hub.http.problems import HubProblem
from wander_hub.jobs import TableQueue
from wander_hub.posting import finish as finishing
from wander_hub.posting import service as posting
from wander_hub.posting.reading import Line, split
from wander_hub.runs.artifacts import PostedFile

_CHUNK_BYTES = 8 * 1024 * 1024


def post_whole(
    context: Context,
    queue: TableQueue,
    manifest: bytes,
    plain: BinaryIO,
    lines: Sequence[Line],
    artifacts: Sequence[PostedFile],
    *,
    private: bool,
    name: str = "",
    expected: str | None = None,
) -> tuple[str, bool]:
    """Post a run by the same steps as one that comes in parts; `lines` of `plain` are its rollouts.

    Refuses one of another digest than is `expected`. Returns the run's id and whether it is new.
    """
    digest = RolloutsDigest()
    for line in lines:
        digest.add(line_digest(_read(plain, line)))
    sha256 = run_digest(manifest, digest.hexdigest(), {one.name: one.sha256 for one in artifacts})
    if expected not in (None, sha256):
        detail = f"the run has the digest `{sha256}` and should have `{expected}`"
        raise HubProblem(422, "digest_mismatch", detail)
    opened, created = posting.open_posting(context.part, manifest, sha256, private=private)
    if opened.posted:
        return opened.run_id, False
    try:
        count = 0
        for count, part in enumerate(split(lines, _CHUNK_BYTES), start=1):
            text = b"".join(_read(plain, line).rstrip(b"\n") + b"\n" for line in part)
            stated = hashlib.sha256(text).hexdigest()
            posting.add_chunk(context.part, sha256, count - 1, io.BytesIO(text), stated)
        for artifact in artifacts:
            posting.add_artifact(context.part, sha256, artifact)
        return finishing.finish(context, queue, sha256, FinishPosting(chunks=count, name=name))
    except Exception as error:
        with context.read() as session:
            if posting.is_known(session, opened.run_id, sha256):
                return opened.run_id, False  # another request for the same run came first
        gone = getattr(error, "code", None) == "posting_not_found"
        if gone and not created:  # the request that began it failed, and dropped it
            return post_whole(
                *(context, queue, manifest, plain, lines, artifacts),
                private=private,
                name=name,
                expected=expected,
            )
        if created and not gone:
            posting.drop(context.part, sha256)
        raise


def _read(plain: BinaryIO, line: Line) -> bytes:
    plain.seek(line.offset)
    return plain.read(line.length)
