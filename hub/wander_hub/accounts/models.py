"""Tables of users, owners and memberships."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import ForeignKey, String, Text, false
from sqlalchemy.orm import Mapped, mapped_column, relationship
from wander.wire import Role
from wander.wire.environments import Visibility, visibility_of

from wander_hub.database import Base


class User(Base):
    """A person or a program with an account."""

    __tablename__ = "users"

    id: Mapped[int] = mapped_column(primary_key=True)
    name: Mapped[str] = mapped_column(String(39), unique=True)
    admin: Mapped[bool]
    created_at: Mapped[datetime]
    password_hash: Mapped[str | None] = mapped_column(Text)
    """Argon2id hash with its parameters and salt; None for a user who signs in with tokens or a provider."""
    disabled_at: Mapped[datetime | None]
    """Time since which the user is disabled, and none of their tokens, cookies and roles is valid."""
    removed_at: Mapped[datetime | None]
    """Time since which the user is removed. The name is never available again."""
    memberships: Mapped[list[Membership]] = relationship(back_populates="user", lazy="raise")


class Owner(Base):
    """A namespace of environments and models. Every user has an owner of the same name."""

    __tablename__ = "owners"

    id: Mapped[int] = mapped_column(primary_key=True)
    name: Mapped[str] = mapped_column(String(39), unique=True)
    private_by_default: Mapped[bool] = mapped_column(default=False)
    """Whether new environments are private unless the publisher chooses otherwise."""
    internal_by_default: Mapped[bool] = mapped_column(default=False, server_default=false())
    """Whether those private environments are internal."""
    created_at: Mapped[datetime]

    @property
    def default_visibility(self) -> Visibility:
        """Visibility of new environments, unless the publisher chooses another one."""
        return visibility_of(
            self.private_by_default, internal=self.private_by_default and self.internal_by_default
        )


class Membership(Base):
    """A user's role on all environments of an owner."""

    __tablename__ = "memberships"

    owner_id: Mapped[int] = mapped_column(ForeignKey("owners.id"), primary_key=True)
    user_id: Mapped[int] = mapped_column(ForeignKey("users.id"), primary_key=True, index=True)
    role: Mapped[Role] = mapped_column(String(12))
    user: Mapped[User] = relationship(back_populates="memberships", lazy="raise")
    owner: Mapped[Owner] = relationship(lazy="raise")
