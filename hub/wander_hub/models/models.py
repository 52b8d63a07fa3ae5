"""Tables of models, their revisions and files."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import BigInteger, ForeignKey, String, Text, UniqueConstraint
from sqlalchemy.orm import Mapped, mapped_column, relationship

from wander_hub.accounts.models import Owner, User
from wander_hub.database import Base
from wander_hub.visibility import HasVisibility


class Model(HasVisibility, Base):
    """A named model of an owner."""

    __tablename__ = "models"
    __table_args__ = (UniqueConstraint("owner_id", "name"),)

    id: Mapped[int] = mapped_column(primary_key=True)
    owner_id: Mapped[int] = mapped_column(ForeignKey("owners.id"))
    name: Mapped[str] = mapped_column(String(200))
    """Name, normalized like an environment's name."""
    created_at: Mapped[datetime]
    deleted_at: Mapped[datetime | None]
    """Time of the deletion. The row remains permanently, so that the name cannot be reused."""
    owner: Mapped[Owner] = relationship(lazy="raise")


class Revision(Base):
    """An immutable revision of a model. Everything in it comes from its files."""

    __tablename__ = "model_revisions"
    __table_args__ = (UniqueConstraint("model_id", "revision"),)

    id: Mapped[int] = mapped_column(primary_key=True)
    model_id: Mapped[int] = mapped_column(ForeignKey("models.id"))
    revision: Mapped[str] = mapped_column(String(64))
    """SHA-256 over its files, as in `wander.wire.models`."""
    weights_sha256: Mapped[str] = mapped_column(String(64), index=True)
    """Digest of the weights. Runs refer to the weights by the same digest."""
    architecture: Mapped[str] = mapped_column(String(100))
    parameters: Mapped[int] = mapped_column(BigInteger)
    card_html: Mapped[str] = mapped_column(Text)
    """Model card as HTML, rendered and sanitized at upload."""
    yanked: Mapped[bool] = mapped_column(default=False)
    yanked_reason: Mapped[str | None] = mapped_column(Text)
    """Reason for yanking, or for deleting if it is deleted."""
    deleted_at: Mapped[datetime | None]
    """Time of the deletion. The files are removed and the row remains."""
    pushed_at: Mapped[datetime]
    pushed_by_id: Mapped[int] = mapped_column(ForeignKey("users.id"))
    model: Mapped[Model] = relationship(lazy="raise")
    pushed_by: Mapped[User] = relationship(lazy="raise")
    files: Mapped[list[RevisionFile]] = relationship(lazy="raise", order_by="RevisionFile.filename")


class RevisionFile(Base):
    """A file of a revision."""

    __tablename__ = "model_files"

    revision_id: Mapped[int] = mapped_column(ForeignKey("model_revisions.id"), primary_key=True)
    filename: Mapped[str] = mapped_column(String(100), primary_key=True)
    size: Mapped[int] = mapped_column(BigInteger)
    sha256: Mapped[str] = mapped_column(String(64), index=True)
