"""Tables of staged uploads: sessions, their files, and the chunks that came so far."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy import JSON, BigInteger, ForeignKey, Index, String, UniqueConstraint
from sqlalchemy.orm import Mapped, mapped_column, relationship
from wander.wire.environments import Visibility, wanted_visibility
from wander.wire.uploads import StagedKind, UploadStatus

from wander_hub.accounts.models import Owner
from wander_hub.database import Base


class UploadSession(Base):
    """The files of one version on their way; nothing of it is seen by anybody but who sends it."""

    __tablename__ = "upload_sessions"
    __table_args__ = (Index("ix_upload_sessions_place", "user_id", "owner_id", "name", "version"),)

    id: Mapped[str] = mapped_column(String(32), primary_key=True)
    """Random."""
    user_id: Mapped[int] = mapped_column(ForeignKey("users.id"))
    owner_id: Mapped[int] = mapped_column(ForeignKey("owners.id"))
    name: Mapped[str] = mapped_column(String(200))
    """Normalised."""
    version: Mapped[str] = mapped_column(String(100))
    """The version in PEP 440's normal form; of a model the revision."""
    status: Mapped[UploadStatus] = mapped_column(String(12))
    stated: Mapped[dict[str, Any]] = mapped_column(JSON)
    """What else the publisher said: `private`, `internal`, `check` and `source_sha256` of a `NewUpload`."""
    created_at: Mapped[datetime]
    expires_at: Mapped[datetime] = mapped_column(index=True)
    owner: Mapped[Owner] = relationship(lazy="raise")
    files: Mapped[list[StagedFile]] = relationship(
        lazy="raise", order_by="StagedFile.id", cascade="all, delete-orphan"
    )

    @property
    def visibility(self) -> Visibility | None:
        """Who is to see what is new; None leaves it to the owner's settings."""
        return wanted_visibility(self.stated["private"], internal=self.stated.get("internal", False))

    @property
    def of_model(self) -> bool:
        """Whether these are the files of a model, not of an environment."""
        return any(one.kind == "model" for one in self.files)


class StagedFile(Base):
    """One file of a session."""

    __tablename__ = "staged_files"
    __table_args__ = (UniqueConstraint("session_id", "filename"),)

    id: Mapped[int] = mapped_column(primary_key=True)
    session_id: Mapped[str] = mapped_column(ForeignKey("upload_sessions.id"))
    filename: Mapped[str] = mapped_column(String(255))
    kind: Mapped[StagedKind] = mapped_column(String(8))
    size: Mapped[int] = mapped_column(BigInteger)
    sha256: Mapped[str] = mapped_column(String(64))
    received: Mapped[int] = mapped_column(BigInteger, default=0)
    """Bytes from the start that the hub has; all of them where the version had the file before."""
    published: Mapped[bool] = mapped_column(default=False)
    """The version has these bytes already, so that nothing of it is sent."""
    chunks: Mapped[list[StagedChunk]] = relationship(
        lazy="raise", order_by="StagedChunk.offset", cascade="all, delete-orphan"
    )


class StagedChunk(Base):
    """A piece of a file; its bytes lie in the staging part of the storage, under session, file and offset."""

    __tablename__ = "staged_chunks"

    file_id: Mapped[int] = mapped_column(ForeignKey("staged_files.id"), primary_key=True)
    offset: Mapped[int] = mapped_column(BigInteger, primary_key=True)
    size: Mapped[int]
    sha256: Mapped[str] = mapped_column(String(64))
