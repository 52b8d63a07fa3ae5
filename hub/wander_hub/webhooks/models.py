"""Tables of webhooks and of what was and is to be delivered to them."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import JSON, Float, ForeignKey, Index, String, Text, text
from sqlalchemy.orm import Mapped, mapped_column, relationship
from wander.wire.events import EventName

from wander_hub.accounts.models import Owner, User
from wander_hub.database import Base
from wander_hub.environments.models import Environment

UNSENT = text("state = 'new'")
"""Holds for deliveries that no job was made for yet; an index has just these."""


class Webhook(Base):
    """An address that is told of events."""

    __tablename__ = "webhooks"

    id: Mapped[int] = mapped_column(primary_key=True)
    owner_id: Mapped[int | None] = mapped_column(ForeignKey("owners.id"), index=True)
    """Whose environments it tells of; None for all public ones."""
    environment_id: Mapped[int | None] = mapped_column(ForeignKey("environments.id"))
    """The one of them that it tells of; None for all."""
    url: Mapped[str] = mapped_column(Text)
    events: Mapped[list[EventName]] = mapped_column(JSON)
    """Empty for all."""
    secret: Mapped[str] = mapped_column(String(80))
    """What signs: it has to be known whole, so nothing but `signing` reads it."""
    former_secret: Mapped[str | None] = mapped_column(String(80))
    former_secret_until: Mapped[datetime | None]
    keeper_id: Mapped[int | None] = mapped_column(ForeignKey("users.id"))
    """By whose rights it is told; None for the operator's, of the command line."""
    created_at: Mapped[datetime]
    failing_since: Mapped[datetime | None]
    slow: Mapped[bool] = mapped_column(default=False)
    """The last attempt kept a worker waiting: those of others go first."""
    disabled_at: Mapped[datetime | None]
    disabled_reason: Mapped[str | None] = mapped_column(Text)
    owner: Mapped[Owner | None] = relationship(lazy="raise")
    environment: Mapped[Environment | None] = relationship(lazy="raise")
    keeper: Mapped[User | None] = relationship(lazy="raise")


class WebhookDelivery(Base):
    """An event on its way to a webhook."""

    __tablename__ = "webhook_deliveries"
    __table_args__ = (
        Index("ix_webhook_deliveries_listing", "webhook_id", "id"),
        Index("ix_webhook_deliveries_unsent", "id", sqlite_where=UNSENT, postgresql_where=UNSENT),
    )

    id: Mapped[int] = mapped_column(primary_key=True)
    webhook_id: Mapped[int] = mapped_column(ForeignKey("webhooks.id"))
    message_id: Mapped[str] = mapped_column(String(40))
    event: Mapped[EventName] = mapped_column(String(24))
    body: Mapped[str] = mapped_column(Text, deferred=True)
    """What is sent, byte by byte."""
    state: Mapped[str] = mapped_column(String(12), default="new")
    attempts: Mapped[int] = mapped_column(default=0)
    """How many were made; asking for a delivery anew counts as one, so that no job of before is of use."""
    failures: Mapped[int] = mapped_column(default=0)
    """Of the attempts since it was asked for last: how long the next pause is."""
    created_at: Mapped[datetime] = mapped_column(index=True)
    attempted_at: Mapped[datetime | None]
    next_at: Mapped[datetime | None]
    status: Mapped[int | None]
    answer: Mapped[str | None] = mapped_column(Text)
    error: Mapped[str | None] = mapped_column(Text)
    seconds: Mapped[float | None] = mapped_column(Float)
    webhook: Mapped[Webhook] = relationship(lazy="raise")
