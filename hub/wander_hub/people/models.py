"""Tables of what people sign in with."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import JSON, ForeignKey, String
from sqlalchemy.orm import Mapped, mapped_column

from wander_hub.database import Base


class BrowserSession(Base):
    """A browser in which somebody signed in; the row ends with the session."""

    __tablename__ = "browser_sessions"

    id: Mapped[int] = mapped_column(primary_key=True)
    user_id: Mapped[int] = mapped_column(ForeignKey("users.id"), index=True)
    sha256: Mapped[str] = mapped_column(String(64), unique=True)
    """Of the cookie, which nobody else keeps."""
    created_at: Mapped[datetime]
    seen_at: Mapped[datetime]
    expires_at: Mapped[datetime]
    """Its end at the latest, however much it is used."""


class OneTimeCode(Base):
    """A code with which a user chooses a password, once: an invitation, or the way back for who forgot it."""

    __tablename__ = "one_time_codes"

    user_id: Mapped[int] = mapped_column(ForeignKey("users.id"), primary_key=True)
    sha256: Mapped[str] = mapped_column(String(64), unique=True)
    expires_at: Mapped[datetime]


class LinkedIdentity(Base):
    """As whom a user signs in at a provider."""

    __tablename__ = "linked_identities"

    issuer: Mapped[str] = mapped_column(String(300), primary_key=True)
    subject: Mapped[str] = mapped_column(String(255), primary_key=True)
    """What the provider calls them for ever, unlike a name or an address."""
    user_id: Mapped[int] = mapped_column(ForeignKey("users.id"), index=True)
    created_at: Mapped[datetime]


class SecondFactor(Base):
    """What makes the codes of a user's authenticator app."""

    __tablename__ = "second_factors"

    user_id: Mapped[int] = mapped_column(ForeignKey("users.id"), primary_key=True)
    secret: Mapped[str] = mapped_column(String(64))
    confirmed_at: Mapped[datetime | None]
    """Since when it is asked for; None until a first code of it came."""
    last_step: Mapped[int]
    """The time step, of 30 s since 1970, of the last code that was used: it and older ones are not taken."""
    recovery: Mapped[list[str]] = mapped_column(JSON)
    """Hashes of the recovery codes that were not used yet."""


class Attempts(Base):
    """How often signing in went wrong lately, for one address, or one name from one address."""

    __tablename__ = "attempts"

    sha256: Mapped[str] = mapped_column(String(64), primary_key=True)
    """Of what is counted: names that are typed here may be anything, passwords included."""
    failures: Mapped[int]
    until: Mapped[datetime] = mapped_column(index=True)
    """Nobody may try again before then; a day later it is forgotten."""
