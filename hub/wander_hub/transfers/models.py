"""Tables of transfers and their received parts."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy import JSON, BigInteger, ForeignKey, String, Text, UniqueConstraint
from sqlalchemy.orm import Mapped, mapped_column
from wander.wire.transfers import TransferFile, TransferKind

from wander_hub.database import Base


class Transfer(Base):
    """An upload in progress of a version, a model or a run. Only its sender can see it."""

    __tablename__ = "transfers"
    __table_args__ = (UniqueConstraint("user_id", "kind", "digest"),)

    id: Mapped[str] = mapped_column(String(32), primary_key=True)
    """Random id."""
    user_id: Mapped[int] = mapped_column(ForeignKey("users.id"))
    kind: Mapped[TransferKind] = mapped_column(String(8))
    digest: Mapped[str] = mapped_column(String(64))
    """SHA-256 of the content. Announcing the same content again continues the transfer."""
    stated: Mapped[dict[str, Any]] = mapped_column(JSON)
    """Announcement, without the text of a manifest."""
    manifest: Mapped[str | None] = mapped_column(Text, deferred=True)
    """The `run.json` of a run."""
    listed: Mapped[list[dict[str, Any]]] = mapped_column(JSON)
    """Announced files, each a `TransferFile`."""
    finished: Mapped[bool] = mapped_column(default=False)
    """Whether the content was published. The row remains until it expires, so that a lost response can be
    repeated."""
    expires_at: Mapped[datetime] = mapped_column(index=True)

    @property
    def files(self) -> list[TransferFile]:
        """Announced files."""
        return [TransferFile.model_validate(file) for file in self.listed]


class TransferPart(Base):
    """A received part of a file."""

    __tablename__ = "transfer_parts"

    transfer_id: Mapped[str] = mapped_column(ForeignKey("transfers.id"), primary_key=True)
    filename: Mapped[str] = mapped_column(String(255), primary_key=True)
    offset: Mapped[int] = mapped_column(BigInteger, primary_key=True)
    size: Mapped[int]
    sha256: Mapped[str] = mapped_column(String(64))
    """SHA-256 of its uncompressed bytes as they were sent."""
    object_sha256: Mapped[str] = mapped_column(String(64), index=True)
    """Object that contains it: the same bytes, or a chunk of rollouts in its final form."""
    rollouts: Mapped[int] = mapped_column(default=0)
    row_frames: Mapped[list[list[int]]] = mapped_column(JSON, default=list)
    """Frames as in `RunChunk`; empty for plain bytes."""
