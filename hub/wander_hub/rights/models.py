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
    """A user's role on one environment, in addition to any role on its owner."""

    __tablename__ = "grants"

    environment_id: Mapped[int] = mapped_column(ForeignKey("environments.id"), primary_key=True)
    user_id: Mapped[int] = mapped_column(ForeignKey("users.id"), primary_key=True, index=True)
    role: Mapped[Role] = mapped_column(String(12))
    user: Mapped[User] = relationship(lazy="raise")


class Invitation(Base):
    """A role that is offered to a name, which may not belong to any user."""

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
    """Time when the token expires; None if it is valid until it is revoked."""
    scope: Mapped[str] = mapped_column(String(40))
    """Names of `TokenScope`, separated by spaces."""
    owner_id: Mapped[int | None] = mapped_column(ForeignKey("owners.id"))
    """Owner of the environments, if the token is limited to these."""
    environment_id: Mapped[int | None] = mapped_column(ForeignKey("environments.id"))
    """The only environment that the token is valid for."""
    environment_name: Mapped[str | None] = mapped_column(String(200))
    """Name of the only environment of `owner_id` that the token is valid for, even if it does not exist
    yet."""
    claims: Mapped[dict[str, str] | None] = mapped_column(JSON(none_as_null=True))
    """Verified claims of the trusted publisher that obtained this token; None for a user's own token."""
    parent_id: Mapped[int | None] = mapped_column(ForeignKey("tokens.id"), index=True)
    """Token that created this token. Revoking it revokes this token as well."""
    version_id: Mapped[int | None]
    """The only version of the environment that the token can read, together with what the version
    requires."""
    job_id: Mapped[int | None]
    """Job of the hub that uses the token. The token is only valid while the job runs."""
    user: Mapped[User] = relationship(lazy="raise")
    owner: Mapped[Owner | None] = relationship(lazy="raise")
    environment: Mapped[Environment | None] = relationship(lazy="raise")
