"""Tables of runs, their chunks, artifacts, checkpoints and examinations, and of signing keys."""

from __future__ import annotations

from datetime import datetime
from functools import cached_property
from typing import Any

from sqlalchemy import (
    JSON,
    BigInteger,
    ForeignKey,
    Index,
    String,
    Text,
    event,
    inspect,
    text,
)
from sqlalchemy.orm import Mapped, Session, mapped_column, relationship
from wander.wire import RunManifest, VerificationLevel
from wander.wire.events import LevelEvent
from wander.wire.untrusted_text import MANIFEST, MANIFEST_HEAD, read_record
from wander.wire.verification import TokenCheck

from wander_hub import audit
from wander_hub.accounts.models import Owner, User
from wander_hub.database import READER, Base
from wander_hub.environments.models import Environment, Version
from wander_hub.identity import HUB
from wander_hub.runs.events import emit_run_event

MISPLACED = text(
    "board_level <> CASE WHEN kind <> 'evaluation' OR level = 'claimed' OR private OR hidden THEN ''"
    " WHEN withdrawn_at IS NOT NULL THEN 'withdrawn' ELSE level END"
)
"""Condition for runs whose placement on a board is out of date, which have their own index."""
INCOMPLETE = text("kind = 'evaluation' AND level = 'claimed' AND NOT private AND withdrawn_at IS NULL")
"""Condition for evaluations that boards leave out, which have their own index."""
MOST_STRATA = 100
"""Maximum number of strata of a run that are distinguished. A manifest may have one for each example."""
DERIVATION = 1
"""Number of the way in which the hub derives a run's summary, the order of its rollouts, its interval and its
place. A change that gives another value for the same rollouts must raise it."""
TRAINING = text("kind = 'training'")
"""Condition for training runs, which have their own index because they are rare."""


class Run(Base):
    """A posted run. The hub computed its numbers from the rollouts."""

    __tablename__ = "runs"
    __table_args__ = (
        Index("ix_runs_listing", "environment_id", "posted_at"),
        Index("ix_runs_version", "version_id", "posted_at"),
        Index("ix_runs_skeleton", "environment_id", "skeleton", "model"),
        Index("ix_runs_of_poster", "posted_by_id", "withdrawn_at", "stored_bytes"),
        Index(
            "ix_runs_training",
            "environment_id",
            "posted_at",
            sqlite_where=TRAINING,
            postgresql_where=TRAINING,
        ),
        Index("ix_runs_misplaced", "environment_id", sqlite_where=MISPLACED, postgresql_where=MISPLACED),
        Index(
            "ix_runs_incomplete",
            "version_id",
            "task_set_sha256",
            sqlite_where=INCOMPLETE,
            postgresql_where=INCOMPLETE,
        ),
    )

    run_id: Mapped[str] = mapped_column(String(64), primary_key=True)
    environment_id: Mapped[int] = mapped_column(ForeignKey("environments.id"))
    version_id: Mapped[int] = mapped_column(ForeignKey("versions.id"))
    kind: Mapped[str] = mapped_column(String(16))
    name: Mapped[str | None] = mapped_column(String(100))
    """Name that the submitter gave the run, if any."""
    model: Mapped[str] = mapped_column(Text)
    skeleton: Mapped[str] = mapped_column(Text)
    """Form that all similar-looking model names share (`wander_hub.names.skeleton`)."""
    model_kind: Mapped[str] = mapped_column(Text)
    task_set_sha256: Mapped[str] = mapped_column(String(64))
    protocol_sha256: Mapped[str] = mapped_column(String(64))
    """Digest of everything that must be equal for two runs on one task set to be comparable."""
    rollouts_per_example: Mapped[int]
    examples: Mapped[int]
    level: Mapped[VerificationLevel] = mapped_column(String(16))
    level_reason: Mapped[str] = mapped_column(Text)
    reward_mean: Mapped[float | None]
    manifest: Mapped[str] = mapped_column(Text, deferred=True)
    """The posted `run.json`, of up to 32 MiB."""
    brief: Mapped[str] = mapped_column(Text)
    """The manifest without its examples, of at most 64 KiB."""
    summary: Mapped[dict[str, Any]] = mapped_column(JSON)
    sha256: Mapped[str] = mapped_column(String(64))
    rollouts_sha256: Mapped[str | None] = mapped_column(String(64))
    """Digest over the digests of the rollouts, as in `wander.wire.postings`; None without rollouts."""
    order_sha256: Mapped[str | None] = mapped_column(String(64), index=True)
    """Object with the order of the rollouts by reward (`runs/order.py`); None without rollouts."""
    weights_sha256: Mapped[str | None] = mapped_column(String(64), index=True)
    """Weights of the evaluated model, or the initial weights of a training run."""
    private: Mapped[bool] = mapped_column(default=False)
    """Whether only its submitter and people with a role on the environment can see it; then it is on no
    board."""
    public_at: Mapped[datetime | None]
    """Time since which the run is public; None while it is private."""
    withdrawn_at: Mapped[datetime | None]
    withdrawn_reason: Mapped[str | None] = mapped_column(Text)
    withdrawn_by_id: Mapped[int | None] = mapped_column(ForeignKey("users.id"))
    hidden: Mapped[bool] = mapped_column(default=False)
    """Whether an owner of the environment removed it from its board, with a public reason (`HiddenRun`)."""
    board_level: Mapped[str] = mapped_column(String(16), default="")
    """Level with which it was placed on its board; `withdrawn` if only its place remains; empty if it is on
    no board (`leaderboards/placement.py`)."""
    signature: Mapped[str | None] = mapped_column(String(100))
    signing_key_id: Mapped[int | None] = mapped_column(ForeignKey("signing_keys.id"))
    posted_by_id: Mapped[int] = mapped_column(ForeignKey("users.id"))
    posted_at: Mapped[datetime] = mapped_column(index=True)
    own_seconds: Mapped[float] = mapped_column(default=0.0)
    """Total seconds of its rollouts excluding their models, as they state them."""
    stored_bytes: Mapped[int] = mapped_column(BigInteger, default=0, server_default="0")
    """Size of its manifest and its objects, each object counted once."""
    derivation: Mapped[int] = mapped_column(default=DERIVATION, server_default="0", index=True)
    """The `DERIVATION` of the release that computed this run's numbers."""
    environment: Mapped[Environment] = relationship(lazy="raise")
    version: Mapped[Version] = relationship(lazy="raise")
    posted_by: Mapped[User] = relationship(lazy="raise", foreign_keys=[posted_by_id])
    withdrawn_by: Mapped[User | None] = relationship(lazy="raise", foreign_keys=[withdrawn_by_id])
    signing_key: Mapped[SigningKey | None] = relationship(lazy="raise")
    artifacts: Mapped[list[RunArtifact]] = relationship(lazy="raise", order_by="RunArtifact.name")

    @cached_property
    def parsed_manifest(self) -> RunManifest:
        """The whole manifest. Parsing takes half a second for a million examples, so pages use the brief
        manifest."""
        return read_record(RunManifest, self.manifest, MANIFEST)

    @cached_property
    def brief_manifest(self) -> RunManifest:
        """The manifest without its examples."""
        return read_record(RunManifest, self.brief, MANIFEST_HEAD)


def without_examples(manifest: RunManifest) -> RunManifest:
    """Return a manifest without example ids, and with only the first distinct strata."""
    strata = sorted({stratum for stratum in manifest.strata if stratum is not None})[:MOST_STRATA]
    return manifest.model_copy(update={"example_ids": [], "strata": strata})


class RunChunk(Base):
    """Some hundred rollouts of a run, stored in one object (`runs/chunks.py`)."""

    __tablename__ = "run_chunks"

    run_id: Mapped[str] = mapped_column(ForeignKey("runs.run_id"), primary_key=True)
    first: Mapped[int] = mapped_column(primary_key=True)
    """Number of its first rollout. Rollouts are numbered from 0, in the manifest's order of examples."""
    rollouts: Mapped[int]
    object_sha256: Mapped[str] = mapped_column(String(64), index=True)
    row_frames: Mapped[list[list[int]]] = mapped_column(JSON)


class RunArtifact(Base):
    """A file that was posted with a run."""

    __tablename__ = "run_artifacts"

    run_id: Mapped[str] = mapped_column(ForeignKey("runs.run_id"), primary_key=True)
    name: Mapped[str] = mapped_column(String(100), primary_key=True)
    media_type: Mapped[str] = mapped_column(String(80))
    size: Mapped[int] = mapped_column(BigInteger)
    sha256: Mapped[str] = mapped_column(String(64), index=True)


class RunCheckpoint(Base):
    """Weights from a training run. Evaluations refer to them by the same digest."""

    __tablename__ = "run_checkpoints"

    run_id: Mapped[str] = mapped_column(ForeignKey("runs.run_id"), primary_key=True)
    weights_sha256: Mapped[str] = mapped_column(String(64), primary_key=True, index=True)
    step: Mapped[int]


class RunCompletion(Base):
    """A digest for finding runs with the same completions (`completions.py`)."""

    __tablename__ = "run_completions"

    digest: Mapped[int] = mapped_column(BigInteger, primary_key=True)
    run_id: Mapped[str] = mapped_column(ForeignKey("runs.run_id"), primary_key=True, index=True)


class RunExamination(Base):
    """Results of examining a run: its tokens, and whether it agrees with the run that it repeats."""

    __tablename__ = "run_examinations"

    run_id: Mapped[str] = mapped_column(ForeignKey("runs.run_id"), primary_key=True)
    rerun_of: Mapped[str | None] = mapped_column(String(64), index=True)
    """Id of the run that it repeats, according to its manifest."""
    agreement: Mapped[dict[str, Any] | None] = mapped_column(JSON(none_as_null=True))
    """`wander.wire.verification.Agreement` with that run; None if they cannot be compared."""
    agrees: Mapped[bool] = mapped_column(default=False)
    """Whether it agrees with that run, and their manifests differ only in the endpoint."""
    tokens: Mapped[dict[str, Any] | None] = mapped_column(JSON(none_as_null=True))
    """`wander.wire.verification.TokenCheck`; None if the hub lacks a tokenizer for the model."""
    examined_at: Mapped[datetime]

    @property
    def token_check(self) -> TokenCheck | None:
        """Comparison of the stated completion tokens with the texts."""
        return TokenCheck.model_validate(self.tokens) if self.tokens else None


class SigningKey(Base):
    """A public key that verifies a user's signatures of runs. Revoked keys are kept because of earlier
    signatures."""

    __tablename__ = "signing_keys"

    id: Mapped[int] = mapped_column(primary_key=True)
    user_id: Mapped[int] = mapped_column(ForeignKey("users.id"), index=True)
    fingerprint: Mapped[str] = mapped_column(String(64), unique=True)
    name: Mapped[str] = mapped_column(String(80))
    public_key: Mapped[str] = mapped_column(String(44))
    created_at: Mapped[datetime]
    revoked_at: Mapped[datetime | None]
    user: Mapped[User] = relationship(lazy="raise")


@event.listens_for(Session, "before_flush")
def _record_levels(session: Session, *_: object) -> None:
    """Record every change of a level in the audit log and for webhooks, because levels decide ranks."""
    for run in [row for row in session.dirty if isinstance(row, Run)]:
        change = inspect(run).attrs.level.history
        if change.added and change.deleted:
            environment = session.get_one(Environment, run.environment_id)
            owner = session.get_one(Owner, environment.owner_id).name
            audit.record(
                session,
                audit.Origin("run.level", (session.info.get(READER) or HUB).user),
                owner=owner,
                target=run.run_id,
                environment=f"{owner}/{environment.name}",
                before=change.deleted[0],
                level=run.level,
                reason=run.level_reason,
            )
            emit_run_event(session, environment, run, "run.level", LevelEvent, before=change.deleted[0])
