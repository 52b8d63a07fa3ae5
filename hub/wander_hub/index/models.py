"""Tables of rendered index pages, and of names that are or were private."""

from __future__ import annotations

from sqlalchemy import ForeignKey, Index, LargeBinary, String, text
from sqlalchemy.orm import Mapped, mapped_column

from wander_hub.database import Base


class IndexPage(Base):
    """The bytes of one index page in both formats, written in the same transaction as the change they show.

    The compressed bodies are None for a page too small to benefit.
    """

    __tablename__ = "index_pages"
    __table_args__ = (
        Index(
            "ix_index_pages_in_namespace",
            "project",
            sqlite_where=text("in_namespace = 1"),
            postgresql_where=text("in_namespace"),
        ),
    )

    owner_id: Mapped[int] = mapped_column(ForeignKey("owners.id"), primary_key=True)
    project: Mapped[str] = mapped_column(String(200), primary_key=True)
    """Normalized name; empty for the owner's project list."""
    environment_id: Mapped[int | None] = mapped_column(ForeignKey("environments.id"), index=True)
    """Environment whose page this is, which decides who may read it; None for the owner's project list."""
    in_namespace: Mapped[bool]
    """Whether the name is in its owner's namespace."""
    html: Mapped[bytes] = mapped_column(LargeBinary)
    html_etag: Mapped[str] = mapped_column(String(64))
    html_gzip: Mapped[bytes | None] = mapped_column(LargeBinary)
    html_zstd: Mapped[bytes | None] = mapped_column(LargeBinary)
    json: Mapped[bytes] = mapped_column(LargeBinary)
    json_etag: Mapped[str] = mapped_column(String(64))
    json_gzip: Mapped[bytes | None] = mapped_column(LargeBinary)
    json_zstd: Mapped[bytes | None] = mapped_column(LargeBinary)


class PrivateName(Base):
    """A name in an owner's index that is or was private: anyone who may not read it never gets a 404."""

    __tablename__ = "private_names"

    owner_id: Mapped[int] = mapped_column(ForeignKey("owners.id"), primary_key=True)
    project: Mapped[str] = mapped_column(String(200), primary_key=True)
