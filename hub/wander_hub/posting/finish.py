"""Makes a run of a posting whose parts have all arrived: aggregates, digest, and one transaction.

All numbers come from the stored rows of the chunks, which the hub wrote itself when it validated the
rollouts; no transcript is read again. Two numbers per rollout are held, whatever the size of the run.
"""

from __future__ import annotations

import io
import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice

from sqlalchemy import insert
from sqlalchemy.orm import Session
from wander.evals.stats.summary import RunningSummary
from wander.evals.store.jsonl import split_lines
from wander.wire import RunManifest, RunSummary
from wander.wire.gate import CHECKPOINT, Refused, read_record
from wander.wire.postings import Checkpoint, FinishPosting, RolloutsDigest, run_digest

from wander_hub import audit
from wander_hub.database import now
from wander_hub.environments import repository as environments
from wander_hub.environments.models import Environment, Version
from wander_hub.http.boundary import Context
from wander_hub.http.problems import HubProblem
from wander_hub.identity import Identity
from wander_hub.jobs import TableQueue
from wander_hub.leaderboards.listing import refresh_results
from wander_hub.names import skeleton
from wander_hub.posting import repository as posting_repository
from wander_hub.posting import service as posting
from wander_hub.posting.reading import bad_rollouts
from wander_hub.quotas import service as quotas
from wander_hub.runs import objects, signing
from wander_hub.runs.chunks import rows_of, stored_size
from wander_hub.runs.completions import CompletionSample
from wander_hub.runs.events import tell_of_run
from wander_hub.runs.manifest import PinnedRun, protocol_digest
from wander_hub.runs.models import (
    PostingArtifact,
    PostingChunk,
    PostingRow,
    Run,
    RunArtifact,
    RunCheckpoint,
    RunChunk,
    RunCompletion,
    without_examples,
)
from wander_hub.runs.order import OrderWriter
from wander_hub.runs.repository import own_run
from wander_hub.storage import Storage
from wander_hub.verification import service as verification
from wander_hub.verification.levels import level_of

CHECKPOINTS = "checkpoints.jsonl"
_MOST_CHECKPOINTS = 10_000
_SHOWN_MISSING = 20
_MOST_METRICS = _MOST_REASONS = 1000
_SHA256 = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True)
class FinishedRun:
    """The numbers, digests and checkpoints of a posting whose parts have all arrived."""

    summary: RunSummary
    rollouts_sha256: str | None
    order: bytes
    completions: Sequence[int]
    """Digests by which runs with the same answers are found."""
    own_seconds: float
    """Seconds that the rollouts took without their models."""
    checkpoints: Sequence[Checkpoint]


def finish(context: Context, queue: TableQueue, sha256: str, wanted: FinishPosting) -> tuple[str, bool]:
    """Make a run visible whose parts have all arrived; return its id, and whether that was now."""
    caller, storage = context.caller, context.storage
    with context.read() as session:
        if posting_repository.find_posting(session, caller.user_id, sha256) is None:
            done = own_run(session, caller.user_id, sha256)
            if done is not None:
                return done, False
        row, pinned = posting.find(session, sha256, caller)
        text, run_id = row.manifest, row.run_id
        chunks = _chunks(session, row, wanted.chunks)
        artifacts = posting_repository.artifacts_of(session, row.id)
        key = (
            signing.verify_signature(session, caller, wanted.signature, sha256) if wanted.signature else None
        )
    finished = _sum_up(storage, pinned, chunks, artifacts)
    names = {one.name: one.sha256 for one in artifacts}
    if run_digest(text.encode(), finished.rollouts_sha256, names) != sha256:
        raise HubProblem(
            422,
            "digest_mismatch",
            "what arrived is not the run of this digest",
            hint="its folder changed while it was sent, or parts of it are missing: post it again",
        )
    order = io.BytesIO(finished.order)
    order_sha256 = storage.put(order) if finished.order else None

    def record(session: Session) -> bool:
        waited = posting_repository.find_posting(session, caller.user_id, sha256, lock=True)
        if waited is None and own_run(session, caller.user_id, sha256) is not None:
            audit.nothing_done(session)
            return False  # another request finished it meanwhile
        row, _ = posting.find(session, sha256, caller)
        if posting.is_known(session, row.run_id, sha256):
            posting_repository.remove(session, row)
            audit.nothing_done(session)
            return False
        if _identity(_chunks(session, row, wanted.chunks)) != _identity(chunks):
            hint = "wait for the other `wander post` of this run to end, then run it again"
            raise HubProblem(409, "concurrent_change", "another request changed a chunk", hint=hint)
        context.database.lock_objects(session, exclusive=False)
        storage.ensure(order_sha256, order)
        place = posting.require_permission(session, pinned.manifest, caller)
        limited = quotas.lock_poster(session, context.settings, caller.user)  # owners before environments
        environments.lock_environment(session, place[0])
        audit.about(session, target=row.run_id, sha256=sha256, private=row.private)
        run = _run(row, place, pinned.manifest, finished, caller, order_sha256)
        run.name = wanted.name.strip() or None
        run.signing_key_id = key.id if key is not None else None
        run.signature = wanted.signature.signature if wanted.signature is not None else None
        run.stored_bytes = _stored_bytes(run, finished, chunks, artifacts)
        _add(session, run, chunks, artifacts, finished)
        if limited is not None:
            quotas.require_room(session, context.settings, limited, quotas.OF_RUNS)
        posting_repository.remove(session, row)
        refresh_results(session, place[0])
        tell_of_run(session, place[0], run, "run.posted")
        verification.request_after_post(session, queue, context.settings, run.run_id)
        return True

    try:
        return run_id, context.commit(record)
    except HubProblem:
        objects.discard(context.database, storage, [order_sha256] if order_sha256 else [])
        raise


def _chunks(session: Session, row: PostingRow, count: int) -> list[PostingChunk]:
    """Return the chunks of a run, refusing one of which some have not arrived."""
    found = [one for one in posting_repository.chunks_of(session, row.id) if one.number < count]
    if len(found) < count:
        present = {one.number for one in found}
        missing = islice((number for number in range(count) if number not in present), _SHOWN_MISSING)
        raise HubProblem(
            422,
            "chunks_missing",
            f"{count - len(found)} of {count} chunks have not arrived",
            hint="send them, then finish again: `wander post` does so",
            errors=[{"chunk": number, "msg": "missing"} for number in missing],
        )
    return found


def _sum_up(
    storage: Storage,
    pinned: PinnedRun,
    chunks: Sequence[PostingChunk],
    artifacts: Sequence[PostingArtifact],
) -> FinishedRun:
    manifest = pinned.manifest
    digest, order, completions = (
        RolloutsDigest(),
        OrderWriter(),
        CompletionSample(manifest.rollouts_per_example),
    )
    summary = RunningSummary(manifest.environment.info)
    last, own_seconds = -1, 0.0
    # An example's rollouts come one after another, so only its seed is held. Whether the environment gives
    # the example that seed, a replay tells.
    example: str | None = None
    seed: int | None = None
    for chunk in chunks:
        for number, row in enumerate(rows_of(storage, chunk), start=1):
            facts = row.facts
            place = pinned.positions[facts.example_id] * manifest.rollouts_per_example + facts.index
            if place <= last:
                where = f"line {number} of chunk {chunk.number}"
                raise bad_rollouts(where, "rollouts come in the manifest's order of examples, each once")
            last = place
            if facts.example_id != example:
                example, seed = facts.example_id, facts.seed
            if manifest.kind == "evaluation" and facts.seed != seed:
                where = f"line {number} of chunk {chunk.number}"
                raise bad_rollouts(
                    where, f"another seed than a rollout of `{facts.example_id[:80]}` before it"
                )
            digest.add(row.line_sha256())
            order.add(facts.reward)
            own_seconds += facts.own_seconds
            completions.add(facts.example_id, row.completion_digest())
            summary.add(row.bare_rollout())
    found = summary.summary(expected=manifest.expected_rollouts)
    if len(found.metrics) > _MOST_METRICS or len(found.stop_reasons) > _MOST_REASONS:
        fault = f"{len(found.metrics):,} metrics and {len(found.stop_reasons):,} stop reasons"
        raise HubProblem(
            422, "bad_rollouts", f"the rollouts have {fault}; a hub shows {_MOST_METRICS:,} of each"
        )
    return FinishedRun(
        found,
        digest.hexdigest(),
        order.content(),
        completions.values() if manifest.kind == "evaluation" else [],
        own_seconds,
        _checkpoints(storage, artifacts) if manifest.kind == "training" else [],
    )


def _checkpoints(storage: Storage, artifacts: Sequence[PostingArtifact]) -> list[Checkpoint]:
    """Return what a training run says of the weights that it made."""
    found: dict[str, Checkpoint] = {}
    for artifact in artifacts:
        if artifact.name != CHECKPOINTS:
            continue
        for number, line in enumerate(split_lines([storage.read(artifact.sha256)]), start=1):
            try:
                one = read_record(Checkpoint, line, CHECKPOINT)
            except Refused as error:
                raise HubProblem(422, "bad_artifact", f"line {number} of `{CHECKPOINTS}`: {error}") from error
            found[one.weights_sha256] = one
            if len(found) > _MOST_CHECKPOINTS:
                fault = f"`{CHECKPOINTS}` may name {_MOST_CHECKPOINTS:,} checkpoints"
                raise HubProblem(422, "bad_artifact", fault)
    return list(found.values())


def _run(
    row: PostingRow,
    place: tuple[Environment, Version],
    manifest: RunManifest,
    finished: FinishedRun,
    caller: Identity,
    order_sha256: str | None,
) -> Run:
    summary, (environment, version) = finished.summary, place
    level, reason = level_of(manifest, summary)
    weights = manifest.model.weights_sha256
    posted_at = now()
    return Run(
        run_id=row.run_id,
        environment_id=environment.id,
        version_id=version.id,
        kind=manifest.kind,
        model=manifest.model.name,
        skeleton=skeleton(manifest.model.name),
        model_kind=manifest.model.kind,
        task_set_sha256=manifest.task_set_sha256,
        protocol_sha256=protocol_digest(manifest),
        rollouts_per_example=manifest.rollouts_per_example,
        examples=len(manifest.example_ids),
        level=level,
        level_reason=reason,
        reward_mean=summary.reward_mean,
        manifest=row.manifest,
        brief=without_examples(manifest).model_dump_json(by_alias=True),
        summary=summary.model_dump(mode="json"),
        sha256=row.sha256,
        rollouts_sha256=finished.rollouts_sha256,
        order_sha256=order_sha256,
        weights_sha256=weights if weights and _SHA256.fullmatch(weights) else None,
        private=row.private,
        public_at=None if row.private else posted_at,
        posted_by_id=caller.user_id,
        posted_at=posted_at,
        own_seconds=finished.own_seconds,
    )


def _stored_bytes(
    run: Run,
    finished: FinishedRun,
    chunks: Sequence[PostingChunk],
    artifacts: Sequence[PostingArtifact],
) -> int:
    objects = {one.object_sha256: stored_size(one) for one in chunks}
    objects |= {one.sha256: one.size for one in artifacts}
    return len(run.manifest.encode()) + len(finished.order) + sum(objects.values())


def _add(
    session: Session,
    run: Run,
    chunks: Sequence[PostingChunk],
    artifacts: Sequence[PostingArtifact],
    finished: FinishedRun,
) -> None:
    session.add(run)
    session.flush()
    first = 0
    for chunk in chunks:
        session.add(
            RunChunk(
                run_id=run.run_id,
                first=first,
                rollouts=chunk.rollouts,
                object_sha256=chunk.object_sha256,
                row_frames=chunk.row_frames,
            )
        )
        first += chunk.rollouts
    for one in artifacts:
        kept = {"media_type": one.media_type, "size": one.size, "sha256": one.sha256}
        session.add(RunArtifact(run_id=run.run_id, name=one.name, **kept))
    for each in finished.checkpoints:
        session.add(RunCheckpoint(run_id=run.run_id, step=each.step, weights_sha256=each.weights_sha256))
    if finished.completions:
        rows = [{"digest": one, "run_id": run.run_id} for one in finished.completions]
        session.execute(insert(RunCompletion), rows)
    session.flush()


def _identity(chunks: Sequence[PostingChunk]) -> list[tuple[int, str]]:
    return [(one.number, one.object_sha256) for one in chunks]
