"""Tables of rendered index pages, and of names that were private."""

from __future__ import annotations

from sqlalchemy import ForeignKey, Index, LargeBinary, String, text
from sqlalchemy.orm import Mapped, mapped_column

from wander_hub.database import Base


class IndexPage(Base):
    """The bytes of one index page in both formats, written with the change that they show.

    The compressed ones are None for a page that is too small to gain by it.
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
    """Normalised name; empty for the owner's list of projects."""
    environment_id: Mapped[int | None] = mapped_column(ForeignKey("environments.id"), index=True)
    """The environment on the page, which decides who may read it; None for the owner's list."""
    in_namespace: Mapped[bool]
    """Whether the name lies in its owner's namespace."""
    html: Mapped[bytes] = mapped_column(LargeBinary)
    html_etag: Mapped[str] = mapped_column(String(64))
    html_gzip: Mapped[bytes | None] = mapped_column(LargeBinary)
    html_zstd: Mapped[bytes | None] = mapped_column(LargeBinary)
    json: Mapped[bytes] = mapped_column(LargeBinary)
    json_etag: Mapped[str] = mapped_column(String(64))
    json_gzip: Mapped[bytes | None] = mapped_column(LargeBinary)
    json_zstd: Mapped[bytes | None] = mapped_column(LargeBinary)


class PrivateName(Base):
    """A name of an owner's index that is or once was private: for who may not read it, it never is a 404."""

    __tablename__ = "private_names"

    owner_id: Mapped[int] = mapped_column(ForeignKey("owners.id"), primary_key=True)
    project: Mapped[str] = mapped_column(String(200), primary_key=True)
