"""Tables of trusted publishers and of the identity tokens that were traded already."""

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
    """Normalised name of an environment that may not exist yet; None for all of the owner's."""
    kind: Mapped[str] = mapped_column(String(8))
    issuer: Mapped[str] = mapped_column(String(255), index=True)
    subject: Mapped[str] = mapped_column(String(255))
    workflow: Mapped[str | None] = mapped_column(String(255))
    deployment: Mapped[str | None] = mapped_column(String(255))
    pinned: Mapped[dict[str, str] | None] = mapped_column(JSON(none_as_null=True))
    """Ids among the claims of its first use; later ones must be the same."""
    created_by_id: Mapped[int] = mapped_column(ForeignKey("users.id"))
    """Its tokens may do what this user may: they end with the user's role."""
    created_at: Mapped[datetime]
    last_used_at: Mapped[datetime | None]
    owner: Mapped[Owner] = relationship(lazy="raise")
    created_by: Mapped[User] = relationship(lazy="raise")


class UsedAssertion(Base):
    """An identity token that was traded; the row refuses it a second time."""

    __tablename__ = "used_assertions"

    sha256: Mapped[str] = mapped_column(String(64), primary_key=True)
    """Of issuer and `jti`."""
    expires_at: Mapped[datetime] = mapped_column(index=True)
    """From then on the token's own expiry refuses it."""
