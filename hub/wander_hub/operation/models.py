"""The table of what came out of archives."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import String
from sqlalchemy.orm import Mapped, mapped_column

from wander_hub.database import Base


class Import(Base):
    """Something that an archive brought; the same archive finds it again."""

    __tablename__ = "imports"

    archive: Mapped[str] = mapped_column(String(64), primary_key=True)
    """SHA-256 of its rows."""
    kind: Mapped[str] = mapped_column(String(16), primary_key=True)
    """owner, user, environment or model."""
    name: Mapped[str] = mapped_column(String(300), primary_key=True)
    """As the archive has it; of an environment and a model after its owner's and a `/`."""
    key: Mapped[int]
    """Its number here."""
    at: Mapped[datetime]
