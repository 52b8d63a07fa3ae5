"""Tables of trusted publishers and of used identity tokens."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import JSON, ForeignKey, String
from sqlalchemy.orm import Mapped, mapped_column, relationship

from wander_hub.accounts.models import Owner, User
from wander_hub.database import Base


class Publisher(Base):
    """A workflow that may publish for one environment or for all of an owner."""

    __tablename__ = "publishers"

    id: Mapped[int] = mapped_column(primary_key=True)
    owner_id: Mapped[int] = mapped_column(ForeignKey("owners.id"), index=True)
    name: Mapped[str | None] = mapped_column(String(200))
    """Normalized name of an environment, which may not exist yet; None for all environments of the owner."""
    kind: Mapped[str] = mapped_column(String(8))
    issuer: Mapped[str] = mapped_column(String(255), index=True)
    subject: Mapped[str] = mapped_column(String(255))
    workflow: Mapped[str | None] = mapped_column(String(255))
    deployment: Mapped[str | None] = mapped_column(String(255))
    pinned: Mapped[dict[str, str] | None] = mapped_column(JSON(none_as_null=True))
    """Account ids from the claims of the first use. Later claims must have the same ids."""
    created_by_id: Mapped[int] = mapped_column(ForeignKey("users.id"))
    """User whose permissions limit the publisher's tokens. The tokens become invalid when the user loses the
    role."""
    created_at: Mapped[datetime]
    last_used_at: Mapped[datetime | None]
    owner: Mapped[Owner] = relationship(lazy="raise")
    created_by: Mapped[User] = relationship(lazy="raise")


class UsedAssertion(Base):
    """A used identity token, stored so that it cannot be used again."""

    __tablename__ = "used_assertions"

    sha256: Mapped[str] = mapped_column(String(64), primary_key=True)
    """Hash of issuer and `jti`."""
    expires_at: Mapped[datetime] = mapped_column(index=True)
    """Time after which the row is no longer needed, because the token itself has expired."""
