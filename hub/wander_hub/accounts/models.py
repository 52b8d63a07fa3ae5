"""Tables of users, owners and memberships."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import ForeignKey, String, Text, false
from sqlalchemy.orm import Mapped, mapped_column, relationship
from wander.wire import Role
from wander.wire.environments import Visibility, visibility_of

from wander_hub.database import Base


class User(Base):
    """A person or a machine that may hold tokens."""

    __tablename__ = "users"

    id: Mapped[int] = mapped_column(primary_key=True)
    name: Mapped[str] = mapped_column(String(39), unique=True)
    admin: Mapped[bool]
    created_at: Mapped[datetime]
    password_hash: Mapped[str | None] = mapped_column(Text)
    """Argon2id, with its parameters and salt; None for who signs in with tokens or elsewhere."""
    disabled_at: Mapped[datetime | None]
    """Since when the user is nobody: no token, cookie or role of theirs is good for anything."""
    removed_at: Mapped[datetime | None]
    """Since when nobody is called so any more; the name is never given again."""
    memberships: Mapped[list[Membership]] = relationship(back_populates="user", lazy="raise")


class Owner(Base):
    """A name space of environments; every user has one of the same name."""

    __tablename__ = "owners"

    id: Mapped[int] = mapped_column(primary_key=True)
    name: Mapped[str] = mapped_column(String(39), unique=True)
    private_by_default: Mapped[bool] = mapped_column(default=False)
    """New environments of this owner are private unless the publisher says otherwise."""
    internal_by_default: Mapped[bool] = mapped_column(default=False, server_default=false())
    """With `private_by_default`: they are internal."""
    created_at: Mapped[datetime]

    @property
    def default_visibility(self) -> Visibility:
        """What new environments are unless the publisher says otherwise."""
        return visibility_of(
            self.private_by_default, internal=self.private_by_default and self.internal_by_default
        )


class Membership(Base):
    """What a user may do with all environments of an owner."""

    __tablename__ = "memberships"

    owner_id: Mapped[int] = mapped_column(ForeignKey("owners.id"), primary_key=True)
    user_id: Mapped[int] = mapped_column(ForeignKey("users.id"), primary_key=True, index=True)
    role: Mapped[Role] = mapped_column(String(12))
    user: Mapped[User] = relationship(back_populates="memberships", lazy="raise")
    owner: Mapped[Owner] = relationship(lazy="raise")
