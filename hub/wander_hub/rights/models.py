"""Tables of tokens, of roles on single environments, and of invitations."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import JSON, ForeignKey, Index, String
from sqlalchemy.orm import Mapped, mapped_column, relationship
from wander.wire import Role

from wander_hub.accounts.models import Owner, User
from wander_hub.database import Base
from wander_hub.environments.models import Environment


class Grant(Base):
    """What a user may do with one environment, beside what the owner's membership gives."""

    __tablename__ = "grants"

    environment_id: Mapped[int] = mapped_column(ForeignKey("environments.id"), primary_key=True)
    user_id: Mapped[int] = mapped_column(ForeignKey("users.id"), primary_key=True, index=True)
    role: Mapped[Role] = mapped_column(String(12))
    user: Mapped[User] = relationship(lazy="raise")


class Invitation(Base):
    """A role that waits for whoever has a name, which need not be a user's."""

    __tablename__ = "invitations"
    __table_args__ = (
        Index("uq_invitations_owner", "owner_id", "name", unique=True),
        Index("uq_invitations_environment", "environment_id", "name", unique=True),
    )

    id: Mapped[int] = mapped_column(primary_key=True)
    owner_id: Mapped[int | None] = mapped_column(ForeignKey("owners.id"))
    environment_id: Mapped[int | None] = mapped_column(ForeignKey("environments.id"))
    name: Mapped[str] = mapped_column(String(39), index=True)
    role: Mapped[Role] = mapped_column(String(12))
    invited_by_id: Mapped[int] = mapped_column(ForeignKey("users.id"), index=True)
    created_at: Mapped[datetime]
    expires_at: Mapped[datetime] = mapped_column(index=True)
    owner: Mapped[Owner | None] = relationship(lazy="raise")
    environment: Mapped[Environment | None] = relationship(lazy="raise")
    invited_by: Mapped[User] = relationship(lazy="raise")


class Token(Base):
    """An API token, without its secret."""

    __tablename__ = "tokens"

    id: Mapped[int] = mapped_column(primary_key=True)
    user_id: Mapped[int] = mapped_column(ForeignKey("users.id"), index=True)
    name: Mapped[str] = mapped_column(String(80))
    prefix: Mapped[str] = mapped_column(String(16), index=True)
    sha256: Mapped[str] = mapped_column(String(64), unique=True)
    created_at: Mapped[datetime]
    last_used_at: Mapped[datetime | None]
    revoked_at: Mapped[datetime | None]
    expires_at: Mapped[datetime | None]
    """The end of its life; None for a token that lives until it is revoked."""
    scope: Mapped[str] = mapped_column(String(40))
    """Words of `TokenScope`, separated by spaces."""
    owner_id: Mapped[int | None] = mapped_column(ForeignKey("owners.id"))
    """Good for this owner's environments alone."""
    environment_id: Mapped[int | None] = mapped_column(ForeignKey("environments.id"))
    """Good for this environment alone."""
    environment_name: Mapped[str | None] = mapped_column(String(200))
    """With an owner: good for its environment of this name alone, which need not exist yet."""
    claims: Mapped[dict[str, str] | None] = mapped_column(JSON(none_as_null=True))
    """What the trusted publisher proved to get this token; None for one that a user made."""
    parent_id: Mapped[int | None] = mapped_column(ForeignKey("tokens.id"), index=True)
    """The token that it was made with: it ends when that one is revoked."""
    version_id: Mapped[int | None]
    """With its environment: reads this version of it alone, and what the version requires."""
    job_id: Mapped[int | None]
    """The job of the hub that it was made for: it ends when the job is not running."""
    user: Mapped[User] = relationship(lazy="raise")
    owner: Mapped[Owner | None] = relationship(lazy="raise")
    environment: Mapped[Environment | None] = relationship(lazy="raise")
