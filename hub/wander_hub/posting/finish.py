"""Creates a run from parts that have all arrived: aggregates, digest, and one transaction.

All numbers come from the stored rows of the parts, which the hub wrote when it validated the rollouts. No
transcript is read again, and only two numbers per rollout are kept in memory.
"""

from __future__ import annotations

import io
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

from sqlalchemy import insert
from sqlalchemy.orm import Session
from wander.evals.stats.summary import RunningSummary
from wander.evals.store.jsonl import split_lines
from wander.wire import RunDetail, RunManifest, RunSummary
from wander.wire.postings import ROLLOUTS, Checkpoint, RolloutsDigest, RunSignature
from wander.wire.transfers import RunFile, TransferFile
from wander.wire.untrusted_text import CHECKPOINT, RefusedText, read_record

from wander_hub import audit
from wander_hub.database import now
from wander_hub.environments import repository as environments
from wander_hub.environments.models import Environment, Version
from wander_hub.http.boundary import Context
from wander_hub.http.problems import HubProblem
from wander_hub.identity import Identity
from wander_hub.jobs import TableQueue
from wander_hub.leaderboards.environment_listing import refresh_results
from wander_hub.names import skeleton
from wander_hub.posting import service as posting
from wander_hub.posting.reading import bad_rollouts
from wander_hub.quotas import service as quotas
from wander_hub.runs import service as runs
from wander_hub.runs import signing
from wander_hub.runs.artifacts import media_type_of
from wander_hub.runs.chunks import rows_of, stored_size
from wander_hub.runs.completions import CompletionSample
from wander_hub.runs.events import emit_run_event
from wander_hub.runs.manifest import PinnedRun, protocol_digest
from wander_hub.runs.models import (
    Run,
    RunArtifact,
    RunCheckpoint,
    RunChunk,
    RunCompletion,
    without_examples,
)
from wander_hub.runs.order import OrderWriter
from wander_hub.storage import Storage
from wander_hub.transfers import service as transfers
from wander_hub.transfers.models import Transfer, TransferPart
from wander_hub.verification import service as verification
from wander_hub.verification.levels import level_of

CHECKPOINTS = "checkpoints.jsonl"
_MOST_CHECKPOINTS = 10_000
_MOST_METRICS = _MOST_REASONS = 1000
_SHA256 = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True)
class FinishedRun:
    """The numbers, digests and checkpoints of a posting whose parts have all arrived."""

    summary: RunSummary
    rollouts_sha256: str | None
    order: bytes
    completions: Sequence[int]
    """Digests for finding runs with the same answers."""
    own_seconds: float
    """Seconds that the rollouts took, excluding their models."""
    checkpoints: Sequence[Checkpoint]


def finish(context: Context, arrived: transfers.Arrived) -> transfers.MakeVisible:
    """Compute everything that the hub shows of a run, and verify that its rollouts match its digest."""
    transfer, pinned = arrived.transfer, arrived.subject
    caller, storage = context.caller, context.storage
    artifacts = artifacts_of(transfer.files)
    for file in artifacts:
        arrived.store(storage, file)
    finished = _sum_up(storage, pinned, arrived.parts.get(ROLLOUTS, ()), artifacts)
    announced = {file.filename: file.sha256 for file in transfer.files}
    if finished.rollouts_sha256 != announced.get(ROLLOUTS):
        raise HubProblem(
            422,
            "digest_mismatch",
            "the received files do not match the digest of the run",
            hint="the run folder changed during the upload; post it again",
        )
    order = io.BytesIO(finished.order)
    order_sha256 = storage.put(order) if finished.order else None
    arrived.stored.extend([order_sha256] if order_sha256 else [])

    def record(session: Session) -> tuple[RunDetail, bool]:
        run_id, sha256 = transfer.stated["run_id"], transfer.digest
        if posting.is_known(session, run_id, sha256):
            audit.nothing_done(session)
            return describe(session, transfer, context.base_url), False
        arrived.ensure(storage, artifacts)
        storage.ensure(order_sha256, order)
        place = posting.require_permission(session, pinned.manifest, caller)
        signature = RunSignature.model_validate(stated) if (stated := transfer.stated["signature"]) else None
        key = signing.verify_signature(session, caller, signature, sha256) if signature else None
        limited = None
        if context.has_quota:  # lock owners before environments
            limited = quotas.lock_poster(session, context.settings, caller.user)
        environments.lock_environment(session, place[0])
        audit.about(session, target=run_id, sha256=sha256, private=transfer.stated["private"])
        run = _run(transfer, pinned.manifest, place, finished, caller)
        run.manifest = session.get_one(Transfer, transfer.id).manifest or ""
        run.order_sha256 = order_sha256
        run.signing_key_id = key.id if key is not None else None
        run.signature = signature.signature if signature is not None else None
        run.stored_bytes = _stored_bytes(run, finished, arrived)
        _add(session, run, arrived, finished)
        if limited is not None:
            quotas.require_room(session, context.settings, limited, quotas.OF_RUNS)
        refresh_results(session, place[0])
        emit_run_event(session, place[0], run, "run.posted")
        queue = TableQueue.of(context.settings, context.database)
        verification.request_after_post(session, queue, context.settings, run.run_id)
        return describe(session, transfer, context.base_url), True

    return record


def describe(session: Session, transfer: Transfer, base_url: str) -> RunDetail:
    """Return the run that was created from a transfer."""
    return runs.detail_of(runs.find(session, transfer.stated["run_id"]), base_url)


File = TypeVar("File", RunFile, TransferFile)


def artifacts_of(files: Sequence[File]) -> list[File]:
    """Return the files of a run that are not its rollouts."""
    return [file for file in files if file.filename != ROLLOUTS]


def _sum_up(
    storage: Storage,
    pinned: PinnedRun,
    chunks: Sequence[TransferPart],
    artifacts: Sequence[TransferFile],
) -> FinishedRun:
    manifest = pinned.manifest
    digest, order, completions = (
        RolloutsDigest(),
        OrderWriter(),
        CompletionSample(manifest.rollouts_per_example),
    )
    summary = RunningSummary(manifest.environment.info)
    last, own_seconds = -1, 0.0
    # The rollouts of an example are consecutive, so only its seed is kept. A replay checks whether the
    # environment gives the example that seed.
    example: str | None = None
    seed: int | None = None
    for chunk in chunks:
        for number, row in enumerate(rows_of(storage, chunk), start=1):
            facts = row.facts
            place = pinned.positions[facts.example_id] * manifest.rollouts_per_example + facts.index
            if place <= last:
                where = f"line {number} of the part at {chunk.offset}"
                raise bad_rollouts(where, "rollouts must follow the manifest's order of examples, each once")
            last = place
            if facts.example_id != example:
                example, seed = facts.example_id, facts.seed
            if manifest.kind == "evaluation" and facts.seed != seed:
                where = f"line {number} of the part at {chunk.offset}"
                raise bad_rollouts(
                    where, f"its seed differs from an earlier rollout of `{facts.example_id[:80]}`"
                )
            digest.add(row.line_sha256())
            order.add(facts.reward)
            own_seconds += facts.own_seconds
            completions.add(facts.example_id, row.completion_digest())
            summary.add(row.bare_rollout())
    aggregates = summary.summary(expected=manifest.expected_rollouts)
    if len(aggregates.metrics) > _MOST_METRICS or len(aggregates.stop_reasons) > _MOST_REASONS:
        counts = f"{len(aggregates.metrics):,} metrics and {len(aggregates.stop_reasons):,} stop reasons"
        raise HubProblem(
            422, "bad_rollouts", f"the rollouts have {counts}; the limit is {_MOST_METRICS:,} of each"
        )
    return FinishedRun(
        aggregates,
        digest.hexdigest(),
        order.content(),
        completions.values() if manifest.kind == "evaluation" else [],
        own_seconds,
        _checkpoints(storage, artifacts) if manifest.kind == "training" else [],
    )


def _checkpoints(storage: Storage, artifacts: Sequence[TransferFile]) -> list[Checkpoint]:
    """Return a training run's list of checkpoints."""
    checkpoints: dict[str, Checkpoint] = {}
    for artifact in artifacts:
        if artifact.filename != CHECKPOINTS:
            continue
        for number, line in enumerate(split_lines([storage.read(artifact.sha256)]), start=1):
            try:
                checkpoint = read_record(Checkpoint, line, CHECKPOINT)
            except RefusedText as error:
                raise HubProblem(422, "bad_artifact", f"line {number} of `{CHECKPOINTS}`: {error}") from error
            checkpoints[checkpoint.weights_sha256] = checkpoint
            if len(checkpoints) > _MOST_CHECKPOINTS:
                fault = f"`{CHECKPOINTS}` may list at most {_MOST_CHECKPOINTS:,} checkpoints"
                raise HubProblem(422, "bad_artifact", fault)
    return list(checkpoints.values())


def _run(
    transfer: Transfer,
    manifest: RunManifest,
    place: tuple[Environment, Version],
    finished: FinishedRun,
    caller: Identity,
) -> Run:
    private: bool = transfer.stated["private"]
    summary, (environment, version) = finished.summary, place
    level, reason = level_of(manifest, summary)
    weights = manifest.model.weights_sha256
    posted_at = now()
    return Run(
        run_id=transfer.stated["run_id"],
        environment_id=environment.id,
        version_id=version.id,
        kind=manifest.kind,
        name=transfer.stated["name"].strip() or None,
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
        brief=without_examples(manifest).model_dump_json(by_alias=True),
        summary=summary.model_dump(mode="json"),
        sha256=transfer.digest,
        rollouts_sha256=finished.rollouts_sha256,
        weights_sha256=weights if weights and _SHA256.fullmatch(weights) else None,
        private=private,
        public_at=None if private else posted_at,
        posted_by_id=caller.user_id,
        posted_at=posted_at,
        own_seconds=finished.own_seconds,
    )


def _stored_bytes(run: Run, finished: FinishedRun, arrived: transfers.Arrived) -> int:
    objects = {part.object_sha256: stored_size(part) for part in arrived.parts.get(ROLLOUTS, ())}
    objects |= {file.sha256: file.size for file in artifacts_of(arrived.transfer.files)}
    return len(run.manifest.encode()) + len(finished.order) + sum(objects.values())


def _add(session: Session, run: Run, arrived: transfers.Arrived, finished: FinishedRun) -> None:
    session.add(run)
    session.flush()
    first = 0
    for part in arrived.parts.get(ROLLOUTS, ()):
        session.add(
            RunChunk(
                run_id=run.run_id,
                first=first,
                rollouts=part.rollouts,
                object_sha256=part.object_sha256,
                row_frames=part.row_frames,
            )
        )
        first += part.rollouts
    for file in artifacts_of(arrived.transfer.files):
        stored = {"media_type": media_type_of(file.filename), "size": file.size, "sha256": file.sha256}
        session.add(RunArtifact(run_id=run.run_id, name=file.filename, **stored))
    for checkpoint in finished.checkpoints:
        values = {"step": checkpoint.step, "weights_sha256": checkpoint.weights_sha256}
        session.add(RunCheckpoint(run_id=run.run_id, **values))
    if finished.completions:
        rows = [{"digest": digest, "run_id": run.run_id} for digest in finished.completions]
        session.execute(insert(RunCompletion), rows)
    session.flush()
