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
    "stars": "star_count",
}
"""The column by which each order of a listing goes, the largest first."""


UNMARKED = sql("listed AND marks = ''")
"""Holds for environments that were restored and are not in the search yet; an index has just these."""


class Environment(HasVisibility, Base):
    """A named environment of an owner, with what listings show kept beside it."""

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
    """Normalised as PEP 503 says."""
    listed: Mapped[bool]
    """False for a plain package that the index serves and no listing shows (the SDK, the client)."""
    latest_version: Mapped[str] = mapped_column(String(100))
    summary: Mapped[str] = mapped_column(Text)
    tags: Mapped[list[str]] = mapped_column(JSON)
    marks: Mapped[str] = mapped_column(Text, default="", server_default="")
    """What filters look for (`search.marks_of`), each between spaces."""
    version_count: Mapped[int]
    run_count: Mapped[int]
    download_count: Mapped[int] = mapped_column(BigInteger, default=0, server_default="0")
    star_count: Mapped[int] = mapped_column(default=0, server_default="0")
    best_reward: Mapped[float | None]
    best_model: Mapped[str | None] = mapped_column(Text)
    created_at: Mapped[datetime]
    updated_at: Mapped[datetime]
    """When the newest version was uploaded."""
    status: Mapped[str] = mapped_column(String(12), default="active")
    """active, deprecated or archived; what the hub's administrator imposes stands beside it."""
    status_reason: Mapped[str | None] = mapped_column(Text)
    successor: Mapped[str | None] = mapped_column(Text)
    """`owner/name` of what to use instead of a deprecated environment."""
    quarantine_reason: Mapped[str | None] = mapped_column(Text)
    """Set by an administrator: nothing of it can be installed, and nothing published."""
    deleted_at: Mapped[datetime | None]
    """The row stays for ever, so that nobody else can take the name."""
    parent_id: Mapped[int | None] = mapped_column(ForeignKey("environments.id"), index=True)
    """The environment that this one was forked from."""
    parent_version: Mapped[str | None] = mapped_column(String(100))
    owner: Mapped[Owner] = relationship(lazy="raise")

    @property
    def label(self) -> str:
        """Its name with that of its owner: `OWNER/NAME`."""
        return f"{self.owner.name}/{self.name}"


class FormerName(Base):
    """A name that an environment had before it was renamed or handed over; it leads there for ever."""

    __tablename__ = "former_names"

    owner_id: Mapped[int] = mapped_column(ForeignKey("owners.id"), primary_key=True)
    name: Mapped[str] = mapped_column(String(200), primary_key=True)
    environment_id: Mapped[int] = mapped_column(ForeignKey("environments.id"))
    moved_at: Mapped[datetime]


def _release(context: DefaultExecutionContext) -> str | None:
    values: dict[str, Any] = context.get_current_parameters()  # type: ignore[no-untyped-call]
    return release_of(values["version"])


class Version(Base):
    """One immutable version; everything but the publisher's check was read from its files."""

    __tablename__ = "versions"
    __table_args__ = (UniqueConstraint("environment_id", "release"),)

    id: Mapped[int] = mapped_column(primary_key=True)
    environment_id: Mapped[int] = mapped_column(ForeignKey("environments.id"))
    version: Mapped[str] = mapped_column(String(100))
    """The version in PEP 440's normal form, as it was published first."""
    release: Mapped[str] = mapped_column(String(100), default=_release)
    """What all spellings of it share: pip and uv take `1.0` and `1.0.0` for the same."""
    summary: Mapped[str] = mapped_column(Text)
    requires_python: Mapped[str | None] = mapped_column(Text)
    requires_dist: Mapped[list[str]] = mapped_column(JSON)
    license: Mapped[str | None] = mapped_column(Text)
    tags: Mapped[list[str]] = mapped_column(JSON)
    entry_point: Mapped[str | None] = mapped_column(Text)
    readme: Mapped[str] = mapped_column(Text)
    readme_html: Mapped[str] = mapped_column(Text)
    """Rendered and sanitised at upload."""
    check_summary: Mapped[dict[str, Any] | None] = mapped_column(JSON(none_as_null=True))
    """A `CheckSummary` that the publisher stated with the first wheel."""
    environment_kind: Mapped[str | None] = mapped_column(String(40))
    """single_turn, tool and the like, as the hub's own check of the version heard it say."""
    deterministic: Mapped[bool | None]
    """What it declared there; None while the hub did not check it."""
    checked: Mapped[bool | None]
    """No check by the hub failed; None while it did not check it."""
    source: Mapped[dict[str, Any] | None] = mapped_column(JSON(none_as_null=True))
    """A `SourceInfo`; None without a source archive."""
    yanked: Mapped[bool]
    yanked_reason: Mapped[str | None] = mapped_column(Text)
    deleted_at: Mapped[datetime | None]
    """Its files are gone; the row and theirs stay, so that neither number nor file names come back."""
    deleted_reason: Mapped[str | None] = mapped_column(Text)
    uploaded_at: Mapped[datetime]
    uploaded_by_id: Mapped[int | None] = mapped_column(ForeignKey("users.id"))
    """The uploader; None for what the hub itself published."""
    environment: Mapped[Environment] = relationship(lazy="raise")
    uploaded_by: Mapped[User | None] = relationship(lazy="raise")
    files: Mapped[list[File]] = relationship(
        back_populates="version", lazy="raise", order_by="File.filename.desc()"
    )
    documents: Mapped[list[VersionDocument]] = relationship(lazy="raise", viewonly=True)


class Star(Base):
    """A user marked an environment."""

    __tablename__ = "stars"

    user_id: Mapped[int] = mapped_column(ForeignKey("users.id"), primary_key=True)
    environment_id: Mapped[int] = mapped_column(ForeignKey("environments.id"), primary_key=True, index=True)
    created_at: Mapped[datetime]


class Downloads(Base):
    """How often the files of a version were sent on a day (UTC)."""

    __tablename__ = "downloads"

    version_id: Mapped[int] = mapped_column(ForeignKey("versions.id"), primary_key=True)
    day: Mapped[date] = mapped_column(primary_key=True)
    count: Mapped[int]


class File(Base):
    """One distribution file of a version."""

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
    """The wheel's METADATA as text (it is valid UTF-8); None for a source archive."""
    core_metadata_sha256: Mapped[str | None] = mapped_column(String(64))
    warnings: Mapped[list[dict[str, Any]] | None] = mapped_column(JSON(none_as_null=True))
    """What the gate flagged when it came, each an `UploadWarning`."""
    uploaded_at: Mapped[datetime]
    version: Mapped[Version] = relationship(back_populates="files", lazy="raise")


class VersionDocument(Base):
    """A document that stands beside a version's files: one of a kind, attached once, never changed."""

    __tablename__ = "version_documents"

    version_id: Mapped[int] = mapped_column(ForeignKey("versions.id"), primary_key=True)
    kind: Mapped[str] = mapped_column(String(16), primary_key=True)
    """`lock` for a `pylock.toml` (PEP 751)."""
    sha256: Mapped[str] = mapped_column(String(64), index=True)
    """Of its bytes, which lie in the storage."""
    size: Mapped[int] = mapped_column(BigInteger)
    created_at: Mapped[datetime]


class FileProvenance(Base):
    """Who attested a file (PEP 740)."""

    __tablename__ = "file_provenances"

    file_id: Mapped[int] = mapped_column(ForeignKey("files.id"), primary_key=True)
    document: Mapped[str] = mapped_column(Text)
    """The provenance object as JSON, checked when the file was uploaded."""
    created_at: Mapped[datetime]
