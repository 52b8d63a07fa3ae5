"""Takes posted runs in, and gives runs and rollouts out."""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Iterator

from sqlalchemy.orm import Session
from wander.types import Rollout
from wander.wire import (
    ArtifactInfo,
    RolloutPage,
    RolloutRow,
    RunDetail,
    RunManifest,
    RunPage,
    RunSummary,
)

from wander_hub.accounts import rights
from wander_hub.accounts.schemas import Identity
from wander_hub.database import Database, now
from wander_hub.environments import repository as environment_repository
from wander_hub.environments import service as environments
from wander_hub.environments.models import Environment, Version
from wander_hub.environments.schemas import Position
from wander_hub.leaderboards import service as leaderboards
from wander_hub.problems import HubProblem
from wander_hub.runs import repository
from wander_hub.runs.blocks import unpacked
from wander_hub.runs.manifest import level_of, pinned_version, protocol_digest
from wander_hub.runs.models import Run, RunArtifact, RunRollout
from wander_hub.runs.reading import store_rollouts
from wander_hub.runs.schemas import PostedRun, StoredRollouts
from wander_hub.storage import Storage


def post(
    database: Database, storage: Storage, posted: PostedRun, caller: Identity, *, max_bytes: int
) -> tuple[str, bool]:
    """Validate, summarise and keep a run; return its id and whether it is new.

    Validation and storing happen before the transaction, which is then short; it checks again what the
    pinned environment is, since that is what the run is recorded under.
    """
    with database.read(caller) as session:
        _permitted(session, posted, caller)
    with tempfile.TemporaryFile() as packed:
        stored = store_rollouts(posted.rollouts, posted.manifest, packed, max_bytes=max_bytes)
        sha256 = posted_digest(posted, stored)
        with database.read(caller) as session:
            if _is_known(session, posted.manifest.run_id, sha256):
                return posted.manifest.run_id, False
        rollouts_sha256 = storage.put(packed) if stored.lines else None
    for artifact in posted.artifacts:
        storage.put(artifact.body)

    def record(session: Session) -> bool:
        if _is_known(session, posted.manifest.run_id, sha256):
            return False
        database.lock_objects(session, exclusive=False)
        storage.ensure(rollouts_sha256, packed)
        for artifact in posted.artifacts:
            storage.ensure(artifact.sha256, artifact.body)
        _add(session, posted, stored, caller, sha256, rollouts_sha256)
        return True

    return posted.manifest.run_id, database.committed(record, caller)


def _permitted(session: Session, posted: PostedRun, caller: Identity) -> tuple[Environment, Version]:
    """Return what the run is recorded under; refuse a caller who may not post results there."""
    environment, version = pinned_version(session, posted.manifest)
    if not rights.may(caller, "results", environment):
        raise rights.refusal(caller, "results", environment)
    return environment, version


def posted_digest(posted: PostedRun, stored: StoredRollouts) -> str:
    """Return the digest of a posted run: SHA-256 of the `sha256sum` listing of its files.

    Rollouts count as plain lines, so that compressing them changes nothing.
    """
    files = {"run.json": hashlib.sha256(posted.manifest_text.encode()).hexdigest()}
    files["rollouts.jsonl"] = stored.sha256
    files |= {f"artifacts/{one.name}": one.sha256 for one in posted.artifacts}
    listing = "".join(f"{sha256}  {name}\n" for name, sha256 in sorted(files.items()))
    return hashlib.sha256(listing.encode()).hexdigest()


def _is_known(session: Session, run_id: str, sha256: str) -> bool:
    known = session.get(Run, run_id)  # whoever may read it: ids are given once
    if known is None:
        return False
    if known.sha256 != sha256:
        hint = "a posted run never changes; evaluate again for a new run"
        raise HubProblem(409, "run_exists", f"the run `{run_id}` was posted with other content", hint=hint)
    return True


def _add(
    session: Session,
    posted: PostedRun,
    stored: StoredRollouts,
    caller: Identity,
    sha256: str,
    rollouts_sha256: str | None,
) -> None:
    manifest = posted.manifest
    environment, version = _permitted(session, posted, caller)
    level, reason = level_of(manifest, stored.summary)
    run = Run(
        run_id=manifest.run_id,
        environment_id=environment.id,
        version_id=version.id,
        kind=manifest.kind,
        model=manifest.model.name,
        model_kind=manifest.model.kind,
        task_set_sha256=manifest.task_set_sha256,
        protocol_sha256=protocol_digest(manifest),
        rollouts_per_example=manifest.rollouts_per_example,
        examples=len(manifest.example_ids),
        level=level,
        level_reason=reason,
        reward_mean=stored.summary.reward_mean,
        manifest=posted.manifest_text,
        summary=stored.summary.model_dump(mode="json"),
        sha256=sha256,
        rollouts_sha256=rollouts_sha256,
        posted_by_id=caller.user_id,
        posted_at=now(),
    )
    session.add(run)
    session.flush()
    repository.add_rollouts(session, run.run_id, stored.lines)
    for one in posted.artifacts:
        session.add(
            RunArtifact(
                run_id=run.run_id, name=one.name, media_type=one.media_type, size=one.size, sha256=one.sha256
            )
        )
    session.flush()
    refresh_listing(session, environment)


def refresh_listing(session: Session, environment: Environment) -> None:
    """Bring what listings show of an environment's results up to date."""
    environment_repository.lock_environment(session, environment)
    environment.run_count = repository.count_runs(session, environment.id)
    environment.best_model, environment.best_reward = leaderboards.best(session, environment)


SHORTEST_BEGINNING = 6
"""Characters of a run's id that may stand for the whole."""


def listing(
    session: Session,
    base_url: str,
    *,
    environment: str | None = None,
    model: str | None = None,
    limit: int = 50,
    cursor: str | None = None,
) -> RunPage:
    """Return one page of runs, newest first."""
    environment_id = None
    if environment is not None:
        owner, slash, name = environment.partition("/")
        if not slash:
            raise HubProblem(422, "invalid_request", "`environment` is written `owner/name`")
        environment_id = environments.resolve(session, owner, name).id
    found = list(
        repository.page(session, environment_id=environment_id, model=model, limit=limit, cursor=cursor)
    )
    rows = found[:limit]
    following = Position(rows[-1].posted_at, rows[-1].run_id).cursor() if len(found) > limit else None
    return RunPage(data=[detail_of(one, base_url) for one in rows], next=following)


def find(session: Session, run_id: str) -> Run:
    """Return a run or raise a 404."""
    run = repository.run_named(session, run_id)
    if run is None:
        raise HubProblem(404, "run_not_found", f"there is no run `{run_id[:80]}`")
    return run


def meant(session: Session, word: str) -> Run:
    """Return the run of an id, or of the beginning of one when no other run's begins so; or raise a 404."""
    run = repository.run_named(session, word)
    if run is not None:
        return run
    found = repository.runs_beginning(session, word) if len(word) >= SHORTEST_BEGINNING else []
    if len(found) > 1:
        raise HubProblem(
            404, "run_ambiguous", f"several runs begin with `{word[:80]}`", hint="write more of it"
        )
    return found[0] if found else find(session, word)


def manifest_of(run: Run) -> RunManifest:
    """Return a run's manifest."""
    return RunManifest.model_validate_json(run.manifest)


def detail_of(run: Run, base_url: str) -> RunDetail:
    """Return a run as the API shows it."""
    return RunDetail(
        run_id=run.run_id,
        manifest=manifest_of(run),
        summary=RunSummary.model_validate(run.summary),
        level=run.level,
        level_reason=run.level_reason,
        sha256=run.sha256,
        posted_by=run.posted_by.name,
        posted_at=run.posted_at,
        url=f"{base_url}/runs/{run.run_id}",
        version_deleted=run.version.deleted_at is not None,
        artifacts=[artifact_info(run.run_id, one, base_url) for one in run.artifacts],
    )


def artifact_info(run_id: str, artifact: RunArtifact, base_url: str) -> ArtifactInfo:
    """Return an artifact with its address."""
    return ArtifactInfo(
        name=artifact.name,
        media_type=artifact.media_type,
        size=artifact.size,
        sha256=artifact.sha256,
        url=f"{base_url}/api/v1/runs/{run_id}/artifacts/{artifact.name}",
    )


def rollout_page(session: Session, run_id: str, offset: int, limit: int) -> RolloutPage:
    """Return a page of thin rows."""
    run = find(session, run_id)
    rows = [row_of(one) for one in repository.rollouts_of(session, run_id, offset, limit)]
    return RolloutPage(data=rows, total=int(run.summary["rollouts"]), offset=offset)


def row_of(row: RunRollout) -> RolloutRow:
    """Return what a list shows of a rollout."""
    fields = {name: getattr(row, name) for name in RolloutRow.model_fields}
    return RolloutRow(**fields)


def rollout(session: Session, storage: Storage, run_id: str, number: int) -> Rollout:
    """Return one whole rollout with a single range read."""
    run = find(session, run_id)
    row = repository.rollout_numbered(session, run_id, number)
    if row is None or run.rollouts_sha256 is None:
        hint = f"numbers go from 0 to {int(run.summary['rollouts']) - 1}" if run.summary["rollouts"] else None
        raise HubProblem(404, "rollout_not_found", f"`{run_id}` has no rollout {number}", hint=hint)
    block = storage.read(run.rollouts_sha256, row.block_start, row.block_length)
    return Rollout.model_validate_json(unpacked(block)[row.offset : row.offset + row.length])


def rollout_lines(storage: Storage, rollouts_sha256: str, blocks: list[tuple[int, int]]) -> Iterator[bytes]:
    """Yield every rollout of a run as JSON lines, a block at a time."""
    for start, length in blocks:
        yield unpacked(storage.read(rollouts_sha256, start, length))
