"""Tables of users, owners, memberships and tokens."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import ForeignKey, String
from sqlalchemy.orm import Mapped, mapped_column, relationship

from wander_hub.database import Base


class User(Base):
    """A person or a machine that may hold tokens."""

    __tablename__ = "users"

    id: Mapped[int] = mapped_column(primary_key=True)
    name: Mapped[str] = mapped_column(String(39), unique=True)
    admin: Mapped[bool]
    created_at: Mapped[datetime]
    memberships: Mapped[list[Membership]] = relationship(back_populates="user", lazy="raise")


class Owner(Base):
    """A name space of environments; every user has one of the same name."""

    __tablename__ = "owners"

    id: Mapped[int] = mapped_column(primary_key=True)
    name: Mapped[str] = mapped_column(String(39), unique=True)
    created_at: Mapped[datetime]


class Membership(Base):
    """A user may publish under an owner."""

    __tablename__ = "memberships"

    owner_id: Mapped[int] = mapped_column(ForeignKey("owners.id"), primary_key=True)
    user_id: Mapped[int] = mapped_column(ForeignKey("users.id"), primary_key=True, index=True)
    user: Mapped[User] = relationship(back_populates="memberships", lazy="raise")
    owner: Mapped[Owner] = relationship(lazy="raise")


class Token(Base):
    """An API token, without its secret."""

    __tablename__ = "tokens"

    id: Mapped[int] = mapped_column(primary_key=True)
    user_id: Mapped[int] = mapped_column(ForeignKey("users.id"), index=True)
    name: Mapped[str] = mapped_column(String(80))
    prefix: Mapped[str] = mapped_column(String(16))
    sha256: Mapped[str] = mapped_column(String(64), unique=True)
    created_at: Mapped[datetime]
    last_used_at: Mapped[datetime | None]
    revoked_at: Mapped[datetime | None]
    user: Mapped[User] = relationship(lazy="raise")
