"""Queries on runs."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Sequence
from datetime import datetime
from functools import cache, lru_cache
from typing import Any, NamedTuple

from sqlalchemy import (
    ColumnElement,
    Integer,
    Select,
    and_,
    bindparam,
    delete,
    func,
    inspect,
    or_,
    select,
    true,
)
from sqlalchemy.orm import Session, aliased, contains_eager, joinedload, selectinload
from wander.wire import VerificationLevel

from wander_hub.accounts.models import Owner, User
from wander_hub.database import READER
from wander_hub.environments.models import Environment, Version
from wander_hub.environments.repository import KEPT_STATEMENTS, lock_environment, readable, readable_by
from wander_hub.environments.schemas import Position
from wander_hub.identity import Identity
from wander_hub.runs.models import TRAINING, Run, RunArtifact, RunCheckpoint, RunChunk, SigningKey

_OF_HIDDEN = 8
"""Number of hexadecimal digits of the digest in the id of a hidden run."""
_LONGEST_STATED = 64 - _OF_HIDDEN - 1


def readable_run(session: Session) -> ColumnElement[bool]:
    """Return the condition on runs that the session's reader may see; the statement must join environments.

    A private run is visible to its submitter and to people with a role on its environment.
    """
    return readable_run_by(session.info.get(READER))


def readable_run_by(reader: Identity | None) -> ColumnElement[bool]:
    """Return the condition on runs that a reader may see; None is the public."""
    open_to_all = Run.private.is_(False)
    if reader is None:
        return and_(readable_by(reader), open_to_all)
    if reader.only_version is not None:
        its_own = true() if reader.only_run is None else Run.run_id == reader.only_run
        return and_(readable_by(reader), Run.version_id == reader.only_version, its_own)
    if reader.admin and reader.only_owner is None and reader.only_environment is None:
        return readable_by(reader)
    mine: ColumnElement[bool] = or_(
        true() if reader.admin else Run.posted_by_id == reader.user_id,
        Environment.owner_id.in_(reader.roles),
        Environment.id.in_(reader.grants),
    )
    if reader.only_owner is not None:
        mine = and_(mine, Environment.owner_id == reader.only_owner)
    if reader.only_environment is not None:
        mine = and_(mine, Environment.id == reader.only_environment)
    return and_(readable_by(reader), or_(open_to_all, mine))


def counts() -> ColumnElement[bool]:
    """Return the condition on runs that lists, totals and boards show: public and not withdrawn."""
    return and_(Run.private.is_(False), Run.withdrawn_at.is_(None))


def readable_runs(session: Session) -> Select[Any]:
    """Return the statement for the runs that the session's reader may see."""
    return runs_readable_by(session.info.get(READER))


@lru_cache(KEPT_STATEMENTS)
def runs_readable_by(reader: Identity | None) -> Select[Any]:
    """Return the statement for the runs that a reader may see; None is the public."""
    query = select(Run).join(Run.environment).join(Environment.owner)
    return query.where(readable_run_by(reader))


def visible(session: Session) -> Select[Run]:
    """Return the base statement of every read of whole runs, with their related rows."""
    return readable_runs(session).options(
        contains_eager(Run.environment).contains_eager(Environment.owner),
        joinedload(Run.version),
        joinedload(Run.posted_by),
        joinedload(Run.withdrawn_by),
        joinedload(Run.signing_key).joinedload(SigningKey.user),
        selectinload(Run.artifacts),
    )


class ListedRun(NamedTuple):
    """One row of a table of runs."""

    run_id: str
    kind: str
    name: str | None
    model: str
    level: VerificationLevel
    level_reason: str
    summary: dict[str, Any]
    posted_at: datetime
    posted_by: str
    owner: str
    environment: str
    version: str
    looks_like: Sequence[str] = ()


def listed(session: Session) -> Select[Any]:
    """Return the statement for the fields of `ListedRun`, of the runs that the session's reader may see."""
    return _listed_for(session.info.get(READER))


@lru_cache(KEPT_STATEMENTS)
def _listed_for(reader: Identity | None) -> Select[Any]:
    fields = (Run.run_id, Run.kind, Run.name, Run.model, Run.level, Run.level_reason, Run.summary)
    names = (Run.posted_at, User.name, Owner.name, Environment.name, Version.version)
    query = runs_readable_by(reader).with_only_columns(*fields, *names, maintain_column_froms=True)
    return query.join(User, User.id == Run.posted_by_id).join(Run.version)


@lru_cache(KEPT_STATEMENTS)
def _newest_listed(reader: Identity | None, *, training: bool) -> Select[Any]:
    query = _listed_for(reader).where(Run.withdrawn_at.is_(None))
    query = query.where(Run.environment_id == bindparam("environment_id"))
    query = query.where(TRAINING if training else Run.kind != "training")
    return query.order_by(Run.posted_at.desc(), Run.run_id.desc()).limit(bindparam("most", type_=Integer))


def newest_of(session: Session, environment_id: int, limit: int) -> tuple[list[ListedRun], list[ListedRun]]:
    """Return the newest evaluations of an environment, and its newest training runs."""
    reader, values = session.info.get(READER), {"environment_id": environment_id, "most": limit}
    evaluations, trainings = (
        [ListedRun(*row) for row in session.execute(_newest_listed(reader, training=training), values)]
        for training in (False, True)
    )
    named = _with_lookalikes(session, [*evaluations, *trainings])
    return named[: len(evaluations)], named[len(evaluations) :]


def list_rows(session: Session, query: Select[Any]) -> list[ListedRun]:
    """Return the rows of a `listed` statement, with the names that their model names look like."""
    return _with_lookalikes(session, [ListedRun(*row) for row in session.execute(query)])


def _with_lookalikes(session: Session, runs: list[ListedRun]) -> list[ListedRun]:
    names = find_lookalikes(session, [run.run_id for run in runs])
    return [run._replace(looks_like=names[run.run_id]) for run in runs]


def lock_run(session: Session, run: Run) -> None:
    """Lock a run against concurrent changes on PostgreSQL, and read it again.

    This locks the environment, because changes of runs also change its boards. With a single lock, there can
    be no deadlock.
    """
    lock_environment(session, session.get_one(Environment, run.environment_id))
    never_change = {"manifest", "brief"}
    session.refresh(run, set(inspect(Run).column_attrs.keys()) - never_change)


def hidden_id(run_id: str, user_id: int) -> str:
    """Return the id under which the hub stores a user's run if only some readers may see it.

    A manifest cannot state such an id. If someone posts a run with the stated id of a hidden run, the
    response therefore does not reveal that the hidden run exists.
    """
    digest = hashlib.sha256(f"{user_id} {run_id}".encode()).hexdigest()
    return f"{run_id[:_LONGEST_STATED]}~{digest[:_OF_HIDDEN]}"


def run_named(session: Session, run_id: str) -> Run | None:
    """Return a run by its id, or by the id in its manifest if only one visible run has it; otherwise None."""
    run = session.scalar(visible(session).where(Run.run_id == run_id))
    if run is not None or "~" in run_id:
        return run
    start = f"{run_id[:_LONGEST_STATED]}~"
    within = Run.run_id.between(start + "0" * _OF_HIDDEN, start + "f" * _OF_HIDDEN)  # uses the index
    query = visible(session).where(within, Run.run_id.startswith(start, autoescape=True)).limit(2)
    matches = session.scalars(query).all()
    return matches[0] if len(matches) == 1 else None


def newest_first(
    query: Select[Any],
    *,
    environment_id: int | None = None,
    model: str | None = None,
    limit: int,
    cursor: str | None = None,
) -> Select[Any]:
    """Return a statement for up to `limit` runs, newest first, without withdrawn runs."""
    query = query.where(Run.withdrawn_at.is_(None))
    if environment_id is not None:
        query = query.where(Run.environment_id == environment_id)
    if model is not None:
        query = query.where(Run.model == model)
    if cursor:
        at = Position.from_cursor(cursor)
        same_moment = and_(Run.posted_at == at.moment, Run.run_id < at.row)
        query = query.where(or_(Run.posted_at < at.moment, same_moment))
    return query.order_by(Run.posted_at.desc(), Run.run_id.desc()).limit(limit)


def count_runs(session: Session, environment_id: int | None = None, *, most: int | None = None) -> int:
    """Return the number of public runs of one environment or of all, counting up to `most`."""
    query = select(Run.run_id).join(Run.environment).where(readable(session), counts())
    if environment_id is not None:
        query = query.where(Run.environment_id == environment_id)
    if most is not None:
        query = query.limit(most)
    return session.scalar(select(func.count()).select_from(query.subquery())) or 0


def chunks_of(session: Session, run_id: str) -> Sequence[RunChunk]:
    """Return the chunks of a run, in the order of its rollouts."""
    return session.scalars(select(RunChunk).where(RunChunk.run_id == run_id).order_by(RunChunk.first)).all()


def chunk_with(session: Session, run_id: str, number: int) -> RunChunk | None:
    """Return the chunk that contains a rollout, or None."""
    chunk = session.scalar(_chunk_with(), {"run": run_id, "number": number})
    return chunk if chunk is not None and number < chunk.first + chunk.rollouts else None


@cache
def _chunk_with() -> Select[RunChunk]:
    query = select(RunChunk).where(RunChunk.run_id == bindparam("run"), RunChunk.first <= bindparam("number"))
    return query.order_by(RunChunk.first.desc()).limit(1)


def chunks_around(session: Session, run_id: str, numbers: Sequence[int]) -> Sequence[RunChunk]:
    """Return the consecutive chunks that cover these rollout numbers, in order."""
    least, greatest = min(numbers, default=0), max(numbers, default=-1)
    query = select(RunChunk).where(RunChunk.run_id == run_id, RunChunk.first <= greatest)
    return session.scalars(
        query.where(RunChunk.first + RunChunk.rollouts > least).order_by(RunChunk.first)
    ).all()


def remove_contents(session: Session, run: Run) -> list[str]:
    """Remove everything except a run's manifest and aggregates; return the digests of the unused objects."""
    chunks, artifacts = RunChunk.run_id == run.run_id, RunArtifact.run_id == run.run_id
    loose = [
        *session.scalars(select(RunChunk.object_sha256).where(chunks)),
        *session.scalars(select(RunArtifact.sha256).where(artifacts)),
        *([run.order_sha256] if run.order_sha256 else []),
    ]
    session.execute(delete(RunChunk).where(chunks))
    session.execute(delete(RunArtifact).where(artifacts))
    run.order_sha256, run.stored_bytes = None, len(run.manifest.encode())
    session.flush()
    session.expire(run, ["artifacts"])
    return loose


class RunsOfWeights(NamedTuple):
    """Evaluations of a model's weights: their number, and the evaluation with the best mean reward."""

    runs: int
    run_id: str
    reward_mean: float | None
    environment: str


def runs_of_weights(session: Session, weights: Collection[str]) -> dict[str, RunsOfWeights]:
    """Return the evaluations of weights, by digest. Weights without evaluations are left out."""
    own = Run.weights_sha256
    place = func.row_number().over(
        partition_by=own, order_by=(Run.reward_mean.desc().nulls_last(), Run.run_id)
    )
    total = func.count().over(partition_by=own)
    label = Owner.name + "/" + Environment.name
    fields = (own, total, Run.run_id, Run.reward_mean, label, place.label("place"))
    query = readable_runs(session).with_only_columns(*fields, maintain_column_froms=True)
    query = query.where(own.in_(weights), Run.kind == "evaluation", counts())
    ranked = query.subquery()
    best = select(*list(ranked.c)[:-1]).where(ranked.c.place == 1)
    return {sha256: RunsOfWeights(*rest) for sha256, *rest in session.execute(best)}


def find_makers(session: Session, weights_sha256: str, limit: int) -> Sequence[tuple[Run, int]]:
    """Return the training runs that produced these weights, with the step of each."""
    query = visible(session).join(RunCheckpoint, RunCheckpoint.run_id == Run.run_id)
    query = query.where(RunCheckpoint.weights_sha256 == weights_sha256, Run.withdrawn_at.is_(None))
    pairs = query.add_columns(RunCheckpoint.step).order_by(Run.posted_at.desc()).limit(limit)
    return [(run, step) for run, step in session.execute(pairs)]


def evaluations_of(
    query: Select[Any], weights: Sequence[str], limit: int, *, kind: str = "evaluation"
) -> Select[Any]:
    """Return a statement for evaluations of these weights, or for training runs that started from them."""
    return newest_first(query.where(Run.weights_sha256.in_(weights), Run.kind == kind), limit=limit)


def find_lookalikes(session: Session, run_ids: Collection[str]) -> dict[str, list[str]]:
    """Return for each run up to two other names that its model name looks like.

    These are an ASCII form of the name, and names of public runs of the same environment.
    """
    if not run_ids:
        return {}
    names = session.execute(_names_of_runs(), {"run_ids": list(run_ids)})
    return {run_id: name_lookalikes(*neighbors) for run_id, *neighbors in names}


@cache
def _names_of_runs() -> Select[Any]:
    query = select(Run.run_id, Run.model, *neighboring_names())
    return query.where(Run.run_id.in_(bindparam("run_ids", expanding=True)))


def name_lookalikes(model: str, skeleton: str, *neighbors: str | None) -> list[str]:
    """Return up to two names that a model's name looks like, from its `neighboring_names`."""
    names = [name for name in neighbors if name is not None]
    if not model.isascii() and skeleton.isascii() and skeleton not in names:
        names.insert(0, skeleton)
    return names[:2]


def neighboring_names() -> tuple[Any, ...]:
    """Return the skeleton of a run's model name, and the names with this skeleton directly before and after
    it."""
    other = aliased(Run)
    same = select(other.model).where(
        other.environment_id == Run.environment_id,
        other.skeleton == Run.skeleton,
        other.private.is_(False),
        other.withdrawn_at.is_(None),
    )
    # Each subquery reads one entry of an index, no matter how many runs have these names.
    before = same.where(other.model < Run.model).with_only_columns(func.max(other.model))
    after = same.where(other.model > Run.model).with_only_columns(func.min(other.model))
    return Run.skeleton, before.scalar_subquery(), after.scalar_subquery()
