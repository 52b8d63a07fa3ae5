"""Tables of environments, versions and files."""

from __future__ import annotations

from datetime import date, datetime
from typing import Any

from sqlalchemy import JSON, BigInteger, ForeignKey, Index, String, Text, UniqueConstraint
from sqlalchemy import text as sql
from sqlalchemy.engine.default import DefaultExecutionContext
from sqlalchemy.orm import Mapped, mapped_column, relationship

from wander_hub.accounts.models import Owner, User
from wander_hub.database import Base
from wander_hub.names import release_of
from wander_hub.visibility import HasVisibility

SORT_KEYS = {
    "updated": "updated_at",
    "newest": "created_at",
    "runs": "run_count",
    "downloads": "download_count",
}
"""Column for each order of a listing; the largest value comes first."""


UNMARKED = sql("listed AND marks = ''")
"""Condition for restored environments that are not in the search index yet, which have an index of their
own."""


class Environment(HasVisibility, Base):
    """A named environment of an owner, with the columns that listings show."""

    __tablename__ = "environments"
    __table_args__ = (
        UniqueConstraint("owner_id", "name"),
        Index("ix_environments_listing", "listed", "updated_at", "id"),
        Index("ix_environments_listing_of_owner", "owner_id", "listed", "updated_at", "id"),
        *(Index(f"ix_environments_by_{key}", "listed", "private", key, "id") for key in SORT_KEYS.values()),
        Index("ix_environments_unmarked", "id", sqlite_where=UNMARKED, postgresql_where=UNMARKED),
        Index("ix_environments_name", "name"),
        Index("ix_environments_owner_id_private", "owner_id", "private"),
    )

    id: Mapped[int] = mapped_column(primary_key=True)
    owner_id: Mapped[int] = mapped_column(ForeignKey("owners.id"))
    name: Mapped[str] = mapped_column(String(200))
    """Name, normalized as in PEP 503."""
    listed: Mapped[bool]
    """Whether listings show it; False for plain packages such as the SDK and the client."""
    latest_version: Mapped[str] = mapped_column(String(100))
    summary: Mapped[str] = mapped_column(Text)
    tags: Mapped[list[str]] = mapped_column(JSON)
    marks: Mapped[str] = mapped_column(Text, default="", server_default="")
    """Marks for filters (`search.marks_of`), surrounded by spaces."""
    version_count: Mapped[int]
    run_count: Mapped[int]
    download_count: Mapped[int] = mapped_column(BigInteger, default=0, server_default="0")
    best_reward: Mapped[float | None]
    best_model: Mapped[str | None] = mapped_column(Text)
    created_at: Mapped[datetime]
    updated_at: Mapped[datetime]
    """Upload time of the newest version."""
    status: Mapped[str] = mapped_column(String(12), default="active")
    """Status: active, deprecated or archived. A quarantine by an administrator is stored separately."""
    status_reason: Mapped[str | None] = mapped_column(Text)
    successor: Mapped[str | None] = mapped_column(Text)
    """Replacement of a deprecated environment, as `owner/name`."""
    quarantine_reason: Mapped[str | None] = mapped_column(Text)
    """Reason of an administrator's quarantine, during which nothing can be installed or published."""
    deleted_at: Mapped[datetime | None]
    """Time of the deletion. The row remains permanently, so that nobody else can take the name."""
    owner: Mapped[Owner] = relationship(lazy="raise")

    @property
    def label(self) -> str:
        """Full name, as `OWNER/NAME`."""
        return f"{self.owner.name}/{self.name}"


class FormerName(Base):
    """A name that an environment had before it was renamed or transferred. It permanently redirects to the
    new name."""

    __tablename__ = "former_names"

    owner_id: Mapped[int] = mapped_column(ForeignKey("owners.id"), primary_key=True)
    name: Mapped[str] = mapped_column(String(200), primary_key=True)
    environment_id: Mapped[int] = mapped_column(ForeignKey("environments.id"))
    moved_at: Mapped[datetime]


def _release(context: DefaultExecutionContext) -> str | None:
    values: dict[str, Any] = context.get_current_parameters()  # type: ignore[no-untyped-call]
    return release_of(values["version"])


class Version(Base):
    """An immutable version. Everything except the publisher's check comes from its files."""

    __tablename__ = "versions"
    __table_args__ = (UniqueConstraint("environment_id", "release"),)

    id: Mapped[int] = mapped_column(primary_key=True)
    environment_id: Mapped[int] = mapped_column(ForeignKey("environments.id"))
    version: Mapped[str] = mapped_column(String(100))
    """Version in the normal form of PEP 440, as it was first published."""
    release: Mapped[str] = mapped_column(String(100), default=_release)
    """Form that all spellings share, because pip and uv treat `1.0` and `1.0.0` as equal."""
    summary: Mapped[str] = mapped_column(Text)
    requires_python: Mapped[str | None] = mapped_column(Text)
    requires_dist: Mapped[list[str]] = mapped_column(JSON)
    license: Mapped[str | None] = mapped_column(Text)
    tags: Mapped[list[str]] = mapped_column(JSON)
    entry_point: Mapped[str | None] = mapped_column(Text)
    readme: Mapped[str] = mapped_column(Text)
    readme_html: Mapped[str] = mapped_column(Text)
    """README as HTML, rendered and sanitized at upload."""
    check_summary: Mapped[dict[str, Any] | None] = mapped_column(JSON(none_as_null=True))
    """`CheckSummary` that the publisher sent with the first wheel."""
    environment_kind: Mapped[str | None] = mapped_column(String(40))
    """Kind that the environment reported in the hub's check, such as single_turn or tool."""
    deterministic: Mapped[bool | None]
    """Determinism that the environment declared in the hub's check; None if the hub has not checked it."""
    checked: Mapped[bool | None]
    """Whether all of the hub's checks passed; None if the hub has not checked it."""
    source: Mapped[dict[str, Any] | None] = mapped_column(JSON(none_as_null=True))
    """`SourceInfo` of the source archive; None without one."""
    yanked: Mapped[bool]
    yanked_reason: Mapped[str | None] = mapped_column(Text)
    deleted_at: Mapped[datetime | None]
    """Time of the deletion. The rows of version and files remain, so that neither number nor file names are
    reused."""
    deleted_reason: Mapped[str | None] = mapped_column(Text)
    uploaded_at: Mapped[datetime]
    uploaded_by_id: Mapped[int | None] = mapped_column(ForeignKey("users.id"))
    """User who uploaded it; None for the hub's own packages."""
    environment: Mapped[Environment] = relationship(lazy="raise")
    uploaded_by: Mapped[User | None] = relationship(lazy="raise")
    files: Mapped[list[File]] = relationship(
        back_populates="version", lazy="raise", order_by="File.filename.desc()"
    )
    documents: Mapped[list[VersionDocument]] = relationship(lazy="raise", viewonly=True)


class Downloads(Base):
    """Number of downloads of a version's files on a day (UTC)."""

    __tablename__ = "downloads"

    version_id: Mapped[int] = mapped_column(ForeignKey("versions.id"), primary_key=True)
    day: Mapped[date] = mapped_column(primary_key=True)
    count: Mapped[int]


class File(Base):
    """A distribution file of a version."""

    __tablename__ = "files"
    __table_args__ = (UniqueConstraint("environment_id", "filename"),)

    id: Mapped[int] = mapped_column(primary_key=True)
    environment_id: Mapped[int] = mapped_column(ForeignKey("environments.id"))
    version_id: Mapped[int] = mapped_column(ForeignKey("versions.id"), index=True)
    filename: Mapped[str] = mapped_column(String(255))
    kind: Mapped[str] = mapped_column(String(8))
    size: Mapped[int] = mapped_column(BigInteger)
    sha256: Mapped[str] = mapped_column(String(64), index=True)
    core_metadata: Mapped[str | None] = mapped_column(Text)
    """Content of the wheel's METADATA; None for a source archive."""
    core_metadata_sha256: Mapped[str | None] = mapped_column(String(64))
    warnings: Mapped[list[dict[str, Any]] | None] = mapped_column(JSON(none_as_null=True))
    """Warnings of the upload checks, each an `UploadWarning`."""
    uploaded_at: Mapped[datetime]
    version: Mapped[Version] = relationship(back_populates="files", lazy="raise")


class VersionDocument(Base):
    """A document of a version, at most one of each kind. It is attached once and never changed."""

    __tablename__ = "version_documents"

    version_id: Mapped[int] = mapped_column(ForeignKey("versions.id"), primary_key=True)
    kind: Mapped[str] = mapped_column(String(16), primary_key=True)
    """Kind; `lock` is a `pylock.toml` (PEP 751)."""
    sha256: Mapped[str] = mapped_column(String(64), index=True)
    """Digest of its bytes in the storage."""
    size: Mapped[int] = mapped_column(BigInteger)
    created_at: Mapped[datetime]


class FileProvenance(Base):
    """Provenance of a file (PEP 740)."""

    __tablename__ = "file_provenances"

    file_id: Mapped[int] = mapped_column(ForeignKey("files.id"), primary_key=True)
    document: Mapped[str] = mapped_column(Text)
    """Provenance object as JSON, verified at upload."""
    created_at: Mapped[datetime]
