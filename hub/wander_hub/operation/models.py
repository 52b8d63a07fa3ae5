"""The table of imported objects."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import String
from sqlalchemy.orm import Mapped, mapped_column

from wander_hub.database import Base


class Import(Base):
    """An object that an archive brought, so that importing the same archive again finds it."""

    __tablename__ = "imports"

    archive: Mapped[str] = mapped_column(String(64), primary_key=True)
    """SHA-256 of the archive's rows."""
    kind: Mapped[str] = mapped_column(String(16), primary_key=True)
    """Kind: owner, user, environment or model."""
    name: Mapped[str] = mapped_column(String(300), primary_key=True)
    """Name in the archive; for environments and models, `owner/name`."""
    key: Mapped[int]
    """Id in this hub."""
    at: Mapped[datetime]
