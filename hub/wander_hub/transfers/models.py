"""Tables of transfers: what was announced, and the parts that have arrived."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy import JSON, BigInteger, ForeignKey, String, Text, UniqueConstraint
from sqlalchemy.orm import Mapped, mapped_column
from wander.wire.transfers import TransferFile, TransferKind

from wander_hub.database import Base


class Transfer(Base):
    """A version, a model or a run on its way here; only its sender sees it, and it counts nowhere."""

    __tablename__ = "transfers"
    __table_args__ = (UniqueConstraint("user_id", "kind", "digest"),)

    id: Mapped[str] = mapped_column(String(32), primary_key=True)
    """Random."""
    user_id: Mapped[int] = mapped_column(ForeignKey("users.id"))
    kind: Mapped[TransferKind] = mapped_column(String(8))
    digest: Mapped[str] = mapped_column(String(64))
    """SHA-256 of what is sent: a sender who announces the same again continues."""
    stated: Mapped[dict[str, Any]] = mapped_column(JSON)
    """The announcement, without the text of a manifest."""
    manifest: Mapped[str | None] = mapped_column(Text, deferred=True)
    """The `run.json` of a run."""
    listed: Mapped[list[dict[str, Any]]] = mapped_column(JSON)
    """The files, each a `TransferFile`."""
    finished: Mapped[bool] = mapped_column(default=False)
    """The whole has become visible. The row stays until it expires, so that a lost answer can be repeated."""
    expires_at: Mapped[datetime] = mapped_column(index=True)

    @property
    def files(self) -> list[TransferFile]:
        """The files that were announced."""
        return [TransferFile.model_validate(file) for file in self.listed]


class TransferPart(Base):
    """A part of a file that has arrived."""

    __tablename__ = "transfer_parts"

    transfer_id: Mapped[str] = mapped_column(ForeignKey("transfers.id"), primary_key=True)
    filename: Mapped[str] = mapped_column(String(255), primary_key=True)
    offset: Mapped[int] = mapped_column(BigInteger, primary_key=True)
    size: Mapped[int]
    sha256: Mapped[str] = mapped_column(String(64))
    """SHA-256 of its plain bytes as they were sent."""
    object_sha256: Mapped[str] = mapped_column(String(64), index=True)
    """The object that holds it: the same bytes, or a chunk of rollouts in its final form."""
    rollouts: Mapped[int] = mapped_column(default=0)
    row_frames: Mapped[list[list[int]]] = mapped_column(JSON, default=list)
    """As a `RunChunk` has them; empty for plain bytes."""
