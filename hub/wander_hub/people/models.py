"""Tables of browser sessions, password links, linked identities, second factors and failed attempts."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import JSON, ForeignKey, String
from sqlalchemy.orm import Mapped, mapped_column

from wander_hub.database import Base


class BrowserSession(Base):
    """A browser session; the row is deleted when the session ends."""

    __tablename__ = "browser_sessions"

    id: Mapped[int] = mapped_column(primary_key=True)
    user_id: Mapped[int] = mapped_column(ForeignKey("users.id"), index=True)
    sha256: Mapped[str] = mapped_column(String(64), unique=True)
    """Hash of the cookie; only the browser has the cookie itself."""
    created_at: Mapped[datetime]
    seen_at: Mapped[datetime]
    expires_at: Mapped[datetime]
    """Time when the session ends even if it is in use."""


class OneTimeCode(Base):
    """A one-time code for choosing a password, after an invitation or when the password was forgotten."""

    __tablename__ = "one_time_codes"

    user_id: Mapped[int] = mapped_column(ForeignKey("users.id"), primary_key=True)
    sha256: Mapped[str] = mapped_column(String(64), unique=True)
    expires_at: Mapped[datetime]


class LinkedIdentity(Base):
    """An identity at a provider that lets a user sign in."""

    __tablename__ = "linked_identities"

    issuer: Mapped[str] = mapped_column(String(300), primary_key=True)
    subject: Mapped[str] = mapped_column(String(255), primary_key=True)
    """The provider's permanent identifier, unlike a name or an email address."""
    user_id: Mapped[int] = mapped_column(ForeignKey("users.id"), index=True)
    created_at: Mapped[datetime]


class SecondFactor(Base):
    """The secret of a user's authenticator app."""

    __tablename__ = "second_factors"

    user_id: Mapped[int] = mapped_column(ForeignKey("users.id"), primary_key=True)
    secret: Mapped[str] = mapped_column(String(64))
    confirmed_at: Mapped[datetime | None]
    """Time since which the factor is required; None until the first code was entered."""
    last_step: Mapped[int]
    """Time step (30 s, since 1970) of the last used code. Codes of this step and of earlier steps are
    rejected."""
    recovery: Mapped[list[str]] = mapped_column(JSON)
    """Hashes of the unused recovery codes."""


class SignInAttempts(Base):
    """Recent failed sign-in attempts of an address, or of a name from an address."""

    __tablename__ = "attempts"

    sha256: Mapped[str] = mapped_column(String(64), primary_key=True)
    """Hash of the counted key. The key itself is not stored, because people may type a password as their
    name."""
    failures: Mapped[int]
    until: Mapped[datetime] = mapped_column(index=True)
    """Time before which new attempts are rejected. The row is deleted a day later."""
