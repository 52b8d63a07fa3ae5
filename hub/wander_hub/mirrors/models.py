"""The table of what the hub follows on other hubs."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import JSON, String, Text, UniqueConstraint
from sqlalchemy.orm import Mapped, mapped_column

from wander_hub.database import Base


class Mirror(Base):
    """An owner or an environment of another hub that this hub follows."""

    __tablename__ = "mirrors"
    __table_args__ = (UniqueConstraint("url", "owner", "name"),)

    id: Mapped[int] = mapped_column(primary_key=True)
    url: Mapped[str] = mapped_column(String(300))
    """Of the other hub, without a slash at its end."""
    owner: Mapped[str] = mapped_column(String(39))
    """The owner's name, there and here."""
    name: Mapped[str] = mapped_column(String(200))
    """The environment's; empty for all that the owner has."""
    token_file: Mapped[str | None] = mapped_column(Text)
    """Where on the hub's machine the token lies that the other hub is asked with."""
    added_at: Mapped[datetime]
    due_at: Mapped[datetime]
    """When the next look is due."""
    looked_at: Mapped[datetime | None]
    """When the last look ended that reached the end."""
    failures: Mapped[int] = mapped_column(default=0)
    """How many looks in a row were cut short."""
    problems: Mapped[list[str]] = mapped_column(JSON, default=list)
    """What the last look could not bring, and why."""
    seen: Mapped[dict[str, str]] = mapped_column(JSON, default=dict)
    """By environment, the state of the other hub of which everything is here."""

    @property
    def target(self) -> str:
        """What is followed: `owner` or `owner/name`."""
        return f"{self.owner}/{self.name}" if self.name else self.owner
