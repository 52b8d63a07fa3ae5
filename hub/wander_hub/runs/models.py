"""Tables of runs and of those on their way here, where their rollouts lie, and of the keys that sign them."""

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
from wander.wire.gate import MANIFEST, MANIFEST_HEAD, read_record
from wander.wire.verification import TokenCheck

from wander_hub import audit
from wander_hub.accounts.models import Owner, User
from wander_hub.database import READER, Base
from wander_hub.environments.models import Environment, Version
from wander_hub.identity import HUB
from wander_hub.runs.events import tell_of_run

MISPLACED = text(
    "board_level <> CASE WHEN kind <> 'evaluation' OR level = 'claimed' OR private OR hidden THEN ''"
    " WHEN withdrawn_at IS NOT NULL THEN 'withdrawn' ELSE level END"
)
"""Holds for runs that stand on their board otherwise than they should; an index has just these."""
INCOMPLETE = text("kind = 'evaluation' AND level = 'claimed' AND NOT private AND withdrawn_at IS NULL")
"""Holds for evaluations that a board leaves out; an index has just these."""
MOST_STRATA = 100
"""Strata of a run that are told apart; a manifest may have as many as examples."""
TRAINING = text("kind = 'training'")
"""Holds for training runs, which are few among many evaluations; an index has just these."""


class Run(Base):
    """A posted run; every number in it was computed here from the rollouts."""

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
    """The name that its submitter gave the run, if any."""
    model: Mapped[str] = mapped_column(Text)
    skeleton: Mapped[str] = mapped_column(Text)
    """What all model names have that look like this one (`wander_hub.names.skeleton`)."""
    model_kind: Mapped[str] = mapped_column(Text)
    task_set_sha256: Mapped[str] = mapped_column(String(64))
    protocol_sha256: Mapped[str] = mapped_column(String(64))
    """Digest of what must be equal for two runs on one task set to be comparable."""
    rollouts_per_example: Mapped[int]
    examples: Mapped[int]
    level: Mapped[VerificationLevel] = mapped_column(String(16))
    level_reason: Mapped[str] = mapped_column(Text)
    reward_mean: Mapped[float | None]
    manifest: Mapped[str] = mapped_column(Text, deferred=True)
    """`run.json` as posted, which may have 32 MiB."""
    brief: Mapped[str] = mapped_column(Text)
    """The same without its examples, at most 64 KiB."""
    summary: Mapped[dict[str, Any]] = mapped_column(JSON)
    sha256: Mapped[str] = mapped_column(String(64))
    rollouts_sha256: Mapped[str | None] = mapped_column(String(64))
    """Digest over those of the rollouts, as in `wander.wire.postings`; None when there are none."""
    order_sha256: Mapped[str | None] = mapped_column(String(64), index=True)
    """Object with the order of the rollouts by reward (`runs/order.py`); None when there are none."""
    weights_sha256: Mapped[str | None] = mapped_column(String(64), index=True)
    """Weights of the model that was evaluated, or that training began with."""
    private: Mapped[bool] = mapped_column(default=False)
    """For its submitter and those with a role on the environment only, and on no board."""
    public_at: Mapped[datetime | None]
    """Since when everybody may see it: from its posting, or later where it was private; None while it is."""
    withdrawn_at: Mapped[datetime | None]
    withdrawn_reason: Mapped[str | None] = mapped_column(Text)
    withdrawn_by_id: Mapped[int | None] = mapped_column(ForeignKey("users.id"))
    hidden: Mapped[bool] = mapped_column(default=False)
    """Kept off its board by an owner of the environment, who gave a public reason (`HiddenRun`)."""
    on_top: Mapped[bool] = mapped_column(default=False)
    """Chosen by an owner of the environment to stand for all runs with its answers."""
    board_level: Mapped[str] = mapped_column(String(16), default="")
    """The level with which it stands on its board, `withdrawn` where it only keeps its turn there, and empty
    while on none (`leaderboards/placement.py`)."""
    signature: Mapped[str | None] = mapped_column(String(100))
    signing_key_id: Mapped[int | None] = mapped_column(ForeignKey("signing_keys.id"))
    posted_by_id: Mapped[int] = mapped_column(ForeignKey("users.id"))
    posted_at: Mapped[datetime] = mapped_column(index=True)
    own_seconds: Mapped[float] = mapped_column(default=0.0)
    """Seconds that its rollouts took together without their models, as they state it."""
    stored_bytes: Mapped[int] = mapped_column(BigInteger, default=0, server_default="0")
    """Of its manifest and its objects, each counted once."""
    environment: Mapped[Environment] = relationship(lazy="raise")
    version: Mapped[Version] = relationship(lazy="raise")
    posted_by: Mapped[User] = relationship(lazy="raise", foreign_keys=[posted_by_id])
    withdrawn_by: Mapped[User | None] = relationship(lazy="raise", foreign_keys=[withdrawn_by_id])
    signing_key: Mapped[SigningKey | None] = relationship(lazy="raise")
    artifacts: Mapped[list[RunArtifact]] = relationship(lazy="raise", order_by="RunArtifact.name")

    @cached_property
    def parsed_manifest(self) -> RunManifest:
        """The whole manifest: half a second for a million examples, so pages use the brief one."""
        return read_record(RunManifest, self.manifest, MANIFEST)

    @cached_property
    def brief_manifest(self) -> RunManifest:
        """The manifest without its examples."""
        return read_record(RunManifest, self.brief, MANIFEST_HEAD)


def without_examples(manifest: RunManifest) -> RunManifest:
    """Return a manifest without the ids of its examples; of their strata it has the first, each once."""
    strata = sorted({one for one in manifest.strata if one is not None})[:MOST_STRATA]
    return manifest.model_copy(update={"example_ids": [], "strata": strata})


class RunChunk(Base):
    """Some hundred rollouts of a run, in an object of their own (`runs/chunks.py`)."""

    __tablename__ = "run_chunks"

    run_id: Mapped[str] = mapped_column(ForeignKey("runs.run_id"), primary_key=True)
    first: Mapped[int] = mapped_column(primary_key=True)
    """Number of its first rollout; they are numbered from 0, in the manifest's order of examples."""
    rollouts: Mapped[int]
    object_sha256: Mapped[str] = mapped_column(String(64), index=True)
    row_frames: Mapped[list[list[int]]] = mapped_column(JSON)


class RunArtifact(Base):
    """A file that came with a run."""

    __tablename__ = "run_artifacts"

    run_id: Mapped[str] = mapped_column(ForeignKey("runs.run_id"), primary_key=True)
    name: Mapped[str] = mapped_column(String(100), primary_key=True)
    media_type: Mapped[str] = mapped_column(String(80))
    size: Mapped[int] = mapped_column(BigInteger)
    sha256: Mapped[str] = mapped_column(String(64), index=True)


class RunCheckpoint(Base):
    """Weights that a training run made; evaluations name them by the same digest."""

    __tablename__ = "run_checkpoints"

    run_id: Mapped[str] = mapped_column(ForeignKey("runs.run_id"), primary_key=True)
    weights_sha256: Mapped[str] = mapped_column(String(64), primary_key=True, index=True)
    step: Mapped[int]


class RunCompletion(Base):
    """A digest by which runs with the same completions are found (`completions.py`)."""

    __tablename__ = "run_completions"

    digest: Mapped[int] = mapped_column(BigInteger, primary_key=True)
    run_id: Mapped[str] = mapped_column(ForeignKey("runs.run_id"), primary_key=True, index=True)


class RunExamination(Base):
    """The results of reading a run: its tokens, and whether it agrees with the run that it repeats."""

    __tablename__ = "run_examinations"

    run_id: Mapped[str] = mapped_column(ForeignKey("runs.run_id"), primary_key=True)
    rerun_of: Mapped[str | None] = mapped_column(String(64), index=True)
    """The run that it repeats, by its manifest."""
    agreement: Mapped[dict[str, Any] | None] = mapped_column(JSON(none_as_null=True))
    """`wander.wire.verification.Agreement` with that run; None if the two cannot be compared."""
    agrees: Mapped[bool] = mapped_column(default=False)
    """Whether it agrees with that run, by a manifest that differs only in the endpoint."""
    tokens: Mapped[dict[str, Any] | None] = mapped_column(JSON(none_as_null=True))
    """`wander.wire.verification.TokenCheck`; None if the hub has no tokenizer of the model."""
    examined_at: Mapped[datetime]

    @property
    def token_check(self) -> TokenCheck | None:
        """The comparison of its stated completion tokens with its texts."""
        return TokenCheck.model_validate(self.tokens) if self.tokens else None


class SigningKey(Base):
    """A public key with which its user signs runs; revoked ones stay, for what they signed."""

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
def _tell_levels(session: Session, *_: object) -> None:
    """Have audit log and webhooks tell of every level that changes, whoever found out; it decides ranks."""
    for run in [one for one in session.dirty if isinstance(one, Run)]:
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
            tell_of_run(session, environment, run, "run.level", LevelEvent, before=change.deleted[0])
