"""Settings of one hub, from arguments or `WANDER_HUB_*` variables."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field
from pydantic_settings import BaseSettings, SettingsConfigDict

MIB = 1024 * 1024


class Settings(BaseSettings):
    """Everything an operator may set; the defaults run a hub from one folder."""

    model_config = SettingsConfigDict(env_prefix="WANDER_HUB_", frozen=True)

    data: Path = Path("wander-hub-data")
    """Folder of the embedded database and storage."""
    database_url: str | None = None
    """SQLAlchemy URL; unset means SQLite in the data folder. PostgreSQL: `postgresql+psycopg://...`."""
    storage_url: str | None = None
    """Object store URL such as `s3://bucket/prefix` (credentials from the usual AWS variables); unset means
    the data folder, `memory://` keeps objects in this process."""
    public_url: str | None = None
    """Address under which users reach the hub; unset means that of each request."""
    bundled_packages: bool = True
    """Publish the SDK and client this hub runs with under the owner `wander` at start."""
    max_upload_bytes: int = Field(default=100 * MIB, gt=0)
    """Limit of one distribution file, and of the request that carries it."""
    max_unpacked_bytes: int = Field(default=1024 * MIB, gt=0)
    """Limit of the sum of the members of one distribution file."""
    max_members: int = Field(default=20_000, gt=0)
    """Limit of the number of members of one distribution file."""
    max_run_bytes: int = Field(default=1024 * MIB, gt=0)
    """Limit of one posted run: of the request, and of its rollouts once decompressed."""
    max_manifest_bytes: int = Field(default=32 * MIB, gt=0)
    max_artifact_bytes: int = Field(default=32 * MIB, gt=0)
    max_artifacts: int = Field(default=32, ge=0)

    @property
    def resolved_database_url(self) -> str:
        """The database URL with the default filled in."""
        return self.database_url or f"sqlite:///{self.data.absolute() / 'hub.db'}"
