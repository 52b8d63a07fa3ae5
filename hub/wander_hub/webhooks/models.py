"""Tables of webhooks and their deliveries."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import JSON, Float, ForeignKey, Index, String, Text, text
from sqlalchemy.orm import Mapped, mapped_column, relationship
from wander.wire.events import EventName

from wander_hub.accounts.models import Owner, User
from wander_hub.database import Base
from wander_hub.environments.models import Environment

UNSENT = text("state = 'new'")
"""Condition for deliveries without a job, which have their own index."""


class Webhook(Base):
    """An address that receives events."""

    __tablename__ = "webhooks"

    id: Mapped[int] = mapped_column(primary_key=True)
    owner_id: Mapped[int | None] = mapped_column(ForeignKey("owners.id"), index=True)
    """Owner whose environments it covers; None for all public environments."""
    environment_id: Mapped[int | None] = mapped_column(ForeignKey("environments.id"))
    """Only environment that it covers; None for all environments of the owner."""
    url: Mapped[str] = mapped_column(Text)
    events: Mapped[list[EventName]] = mapped_column(JSON)
    """Names of the wanted events; empty for all events."""
    secret: Mapped[str] = mapped_column(String(80))
    """Signing secret. It has to be stored as it is, so only `signing` may read it."""
    former_secret: Mapped[str | None] = mapped_column(String(80))
    former_secret_until: Mapped[datetime | None]
    keeper_id: Mapped[int | None] = mapped_column(ForeignKey("users.id"))
    """User whose permissions it depends on; None for a webhook of the command line."""
    created_at: Mapped[datetime]
    failing_since: Mapped[datetime | None]
    slow: Mapped[bool] = mapped_column(default=False)
    """Whether the last attempt was slow. Deliveries to other webhooks then go first."""
    disabled_at: Mapped[datetime | None]
    disabled_reason: Mapped[str | None] = mapped_column(Text)
    owner: Mapped[Owner | None] = relationship(lazy="raise")
    environment: Mapped[Environment | None] = relationship(lazy="raise")
    keeper: Mapped[User | None] = relationship(lazy="raise")


class WebhookDelivery(Base):
    """An event to deliver to a webhook."""

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
    """Exact bytes of the message."""
    state: Mapped[str] = mapped_column(String(12), default="new")
    attempts: Mapped[int] = mapped_column(default=0)
    """Number of attempts. Requesting a delivery again adds one, so that older jobs of the delivery do
    nothing."""
    failures: Mapped[int] = mapped_column(default=0)
    """Number of failed attempts since it was last requested, which determines the next pause."""
    created_at: Mapped[datetime] = mapped_column(index=True)
    attempted_at: Mapped[datetime | None]
    next_at: Mapped[datetime | None]
    status: Mapped[int | None]
    answer: Mapped[str | None] = mapped_column(Text)
    error: Mapped[str | None] = mapped_column(Text)
    seconds: Mapped[float | None] = mapped_column(Float)
    webhook: Mapped[Webhook] = relationship(lazy="raise")
