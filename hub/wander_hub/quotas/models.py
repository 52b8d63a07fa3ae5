"""The table of quotas that are set for single owners."""

from __future__ import annotations

from sqlalchemy import BigInteger, ForeignKey
from sqlalchemy.orm import Mapped, mapped_column

from wander_hub.database import Base


class Quota(Base):
    """Limits of one owner. None means the limit of the hub's settings, and `UNLIMITED` means no limit."""

    __tablename__ = "quotas"

    owner_id: Mapped[int] = mapped_column(ForeignKey("owners.id"), primary_key=True)
    stored_bytes: Mapped[int | None] = mapped_column(BigInteger)
    versions: Mapped[int | None] = mapped_column(BigInteger)
    runs: Mapped[int | None] = mapped_column(BigInteger)
