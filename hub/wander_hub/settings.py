"""Settings of one hub, from arguments or `WANDER_HUB_*` variables."""

from __future__ import annotations

import os
from importlib.util import find_spec
from ipaddress import ip_network
from pathlib import Path
from typing import Literal, Self
from urllib.parse import urlsplit

from pydantic import BaseModel, ByteSize, ConfigDict, Field, field_validator, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict
from wander.wire.people import PublisherKind

from wander_hub.names import acceptable_address
from wander_hub.upload_rules import OPTIONAL, Action

MIB = 1024 * 1024
DATABASE = "hub.db"
"""The file of the embedded database, in the data folder."""


class ProviderSettings(BaseModel):
    """An OpenID Connect provider where people sign in."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    issuer: str = Field(max_length=300)
    client_id: str
    secret_variable: str | None = None
    """The variable of the hub's process that holds the client's secret."""
    secret_file: Path | None = None
    """A file that holds it instead; a client without a secret has PKCE alone."""
    label: str = ""
    """What the page calls the provider; its host without one."""
    scopes: str = "openid profile email"
    name_claim: str = "preferred_username"
    """Names users who are added."""
    add_users: bool = False
    """Add a user for somebody whom nobody has linked."""
    domains: tuple[str, ...] = ()
    """Of addresses, verified by the provider, whose people alone sign in."""
    groups_claim: str = "groups"
    groups: tuple[str, ...] = ()
    """Of which somebody must be in one to sign in."""

    @field_validator("issuer")
    @classmethod
    def _is_https(cls, issuer: str) -> str:
        if not acceptable_address(issuer):
            raise ValueError(f"the issuer `{issuer}` must be an https address")
        return issuer

    @property
    def name(self) -> str:
        """What the page calls it."""
        return self.label or urlsplit(self.issuer).netloc

    def secret(self) -> str | None:
        """Return the client's secret, None for a client without; raise where it cannot be read."""
        if self.secret_file is not None:
            return self.secret_file.read_text().strip()
        return os.environ[self.secret_variable] if self.secret_variable else None


class Settings(BaseSettings):
    """Everything an operator may set; the defaults run a hub from one folder."""

    model_config = SettingsConfigDict(env_prefix="WANDER_HUB_", frozen=True)

    data: Path = Path("wander-hub-data")
    """Folder of the embedded database and storage."""
    database_url: str | None = None
    """SQLAlchemy URL; unset means SQLite in the data folder. PostgreSQL: `postgresql+psycopg://...`."""
    database_connections: int = Field(default=50, ge=5)
    """Most connections to PostgreSQL of one process; what all processes may have together has to fit into its
    `max_connections`."""
    storage_url: str | None = None
    """Object store URL such as `s3://bucket/prefix` (credentials from the usual AWS variables); unset means
    the data folder, `memory://` keeps objects in this process."""
    public_url: str | None = None
    """Address under which users reach the hub; unset means that of each request."""
    hosts: tuple[str, ...] = ()
    """Further names by which requests may call the hub, beside those of `public_url` and the bind address."""
    upstream_index: str | None = "https://pypi.org/simple/"
    """Package index behind the hub: the sole index of an owner, `/OWNER/index/`, passes on from there every
    name that the hub does not hold. Empty means none."""
    accel_prefix: str | None = None
    """Path of an nginx location that is `internal` and holds the folder of the files (`DATA/objects`): nginx
    then sends them itself. Only where every request comes through that nginx."""
    public_files: bool = False
    """Keep links to what anybody may download in `DATA/public`, for nginx to send without asking the hub."""
    presigned_seconds: int = Field(default=0, ge=0, le=7 * 24 * 3600)
    """With an object store: answer downloads with a redirect to it that is good for so long; 0 sends every
    byte through the hub."""
    bundled_packages: bool = True
    """Publish the SDK and client this hub runs with under the owner `wander` at start."""
    max_upload_bytes: int = Field(default=100 * MIB, gt=0, lt=4096 * MIB)
    """Limit of one distribution file, and of the request that carries it."""
    transfer_part_bytes: int = Field(default=8 * MIB, ge=MIB, le=256 * MIB)
    """Longest part of a file of a version or a model; parts of rollouts may have 64 MiB."""
    max_model_bytes: int = Field(default=8 * 1024 * MIB, gt=0)
    """Limit of the files of one revision of a model together."""
    transfer_hours: float = Field(default=72, gt=0)
    """How long the hub keeps what was sent of a version, a model or a run, counted from the last part."""
    max_open_transfers: int = Field(default=50, ge=1)
    """How many one user may have unfinished."""
    quota_stored_bytes: ByteSize | None = Field(default=None, ge=0)
    """How much each owner may store, such as `10GiB`; unset is no limit. Some may have their own."""
    quota_versions: int | None = Field(default=None, ge=0)
    """How many versions of environments and models each owner may have."""
    quota_runs: int | None = Field(default=None, ge=0)
    """How many posted runs."""
    version_open_days: int = Field(default=14, ge=0)
    """After so many days a version takes no further files: who steals a token cannot add to an old one."""
    max_unpacked_bytes: int = Field(default=1024 * MIB, gt=0, lt=4096 * MIB)
    """Limit of the sum of the members of one distribution file."""
    max_members: int = Field(default=20_000, gt=0, le=65_534)
    """Limit of the number of members of one distribution file; more would need ZIP64."""
    max_compression_ratio: int = Field(default=50, gt=0)
    """How many times its own size a distribution file may unpack to."""
    compression_ratio_from_bytes: int = Field(default=16 * MIB, ge=0)
    """Below this sum of its members a file may be compressed at any ratio."""
    max_metadata_bytes: int = Field(default=8 * MIB, gt=0)
    """Limit of each of METADATA, RECORD and PKG-INFO; the other metadata files may have 256 KiB."""
    max_readme_bytes: int = Field(default=2 * MIB, gt=0)
    max_summary_chars: int = Field(default=512, gt=0)
    max_field_chars: int = Field(default=4096, gt=0)
    """Limit of each other value in the metadata; a licence's text may have sixteen times as much."""
    max_field_values: int = Field(default=1000, gt=0)
    """Limit of the values of one repeated field, such as requirements."""
    max_path_chars: int = Field(default=512, gt=0, le=4096)
    """Limit of a member's path."""
    upload_policy: dict[str, Action] = Field(default_factory=dict)
    """Actions of optional rules: `{"startup_file": "refuse"}`. The rules: docs/package-index.md."""
    max_run_bytes: int = Field(default=16 * 1024 * MIB, gt=0)
    """Limit of the rollouts of one posted run, decompressed; in a single request at most 1 GiB."""
    max_artifact_bytes: int = Field(default=32 * MIB, gt=0)
    max_artifacts: int = Field(default=32, ge=0)

    reads_per_minute: int = Field(default=20_000, ge=0)
    """Requests that read, of one token, or of one address without a token; 0 is no limit. An installation
    makes a few hundred."""
    writes_per_minute: int = Field(default=2_000, ge=0)
    """Likewise, requests that change something."""
    uploads_per_minute: int = Field(default=6_000, ge=0)
    """Likewise, parts of what is published and posted."""
    failures_per_minute: int = Field(default=120, ge=0)
    """Requests of one address with tokens that are not good; then none with a token is answered."""
    min_free_bytes: int = Field(default=256 * MIB, ge=0)
    """With less room where the data folder is, `/ready?uploads=true` says that the hub is not."""
    drain_seconds: float = Field(default=0, ge=0, le=300)
    """After SIGTERM the hub answers for so long, and sends clients elsewhere with their next request."""
    log_format: Literal["text", "json"] = "text"
    """How lines of the log look on standard error."""
    featured: tuple[str, ...] = ()
    """Environments, `owner/name`, that the first page shows first; unset means those with most runs whose
    newest version this hub has checked."""
    traces: bool = False
    """Send a span for every request by OpenTelemetry, to where its own `OTEL_*` variables say."""

    organisations: Literal["anybody", "administrators"] = "anybody"
    """Who may make organisations: owners without a user of their name."""
    max_organisations: int = Field(default=20, ge=0)
    """How many organisations one user may own and make another one."""
    session_hours: float = Field(default=14 * 24, gt=0)
    """How long somebody who signed in with a browser stays so at most."""
    session_idle_hours: float = Field(default=48, gt=0)
    """How long a browser may do nothing and stay signed in."""
    sign_in_provider: ProviderSettings | None = None
    """Where people sign in beside their passwords."""
    oidc_issuers: dict[str, PublisherKind] = Field(
        default={
            "https://token.actions.githubusercontent.com": "github",
            "https://gitlab.com": "gitlab",
        }
    )
    """Whose identity tokens trusted publishers may trade, and whose claims they are: `github`, `gitlab` or
    `oidc` for any other, where `sub` alone tells publishers apart. Setting it replaces these two."""
    oidc_audience: str | None = None
    """Whom identity tokens must be made for; unset means the host of `public_url`, and without that no
    trusted publishing: a token made for another hub must not be good here."""

    webhook_http: bool = False
    """Whether webhooks may lead to addresses that begin with `http:`."""
    webhook_networks: tuple[str, ...] = ()
    """Networks into which webhooks may lead, such as `10.0.0.0/8`; without any, to public addresses alone."""
    backup_folder: Path | None = None
    """Where backups lie that administrators ask for over the API; processes that do jobs write them."""

    verification: Literal["sandbox", "unconfined", "off"] = "sandbox"
    """How the hub plays posted runs again: in a sandbox, or not where that cannot be had; `unconfined` runs
    environments' code as the hub's own user, for operators who trust every publisher; or never."""
    verify_posts: bool = True
    """Play every run again that is posted, where that can raise its level."""
    check_versions: bool = True
    """Check every version that is published, as `wander check` does; not where `verification` is off."""
    verification_seconds: float = Field(default=3600, gt=0)
    """Longest time for one run or one check."""
    tokenizers: Path | None = None
    """Folder of `ORG/NAME/tokenizer.json` files, named as runs name their models: the completion tokens of
    their runs are counted."""
    verification_folder: Path | None = None
    """Where runs and environments are kept that jobs fetch; unset means `home` in the data folder."""
    serve_jobs: bool = True
    """Work on jobs beside the requests; not where `wander-hub work` does it."""
    job_concurrency: int = Field(default=1, ge=1, le=64)
    """How many jobs one process works on at once."""
    job_lease_seconds: float = Field(default=30, ge=1)
    """How long a job stays with a process of the hub that says nothing of it; then another takes it up."""
    max_waiting_verifications: int = Field(default=20, ge=1)
    """How many one user may have waiting."""

    @field_validator("upload_policy")
    @classmethod
    def _names_optional_rules(cls, policy: dict[str, Action]) -> dict[str, Action]:
        for code in policy:
            if code not in OPTIONAL:
                raise ValueError(f"`{code}` is no optional rule; these are: {', '.join(OPTIONAL)}")
        return policy

    @field_validator("webhook_networks")
    @classmethod
    def _are_networks(cls, networks: tuple[str, ...]) -> tuple[str, ...]:
        for one in networks:
            ip_network(one, strict=False)  # says itself what is wrong
        return networks

    @field_validator("upstream_index")
    @classmethod
    def _is_an_address(cls, url: str | None) -> str | None:
        parts = urlsplit(url or "")
        if url and (parts.scheme not in ("https", "http") or not parts.hostname or parts.username):
            raise ValueError(f"`{url}` must be an http or https address without a user")
        return url or None

    @field_validator("tokenizers")
    @classmethod
    def _can_be_read(cls, folder: Path | None) -> Path | None:
        if folder is not None:
            if find_spec("tokenizers") is None:
                raise ValueError("it needs `pip install 'wander-hub[tokenizers]'`")
            if not folder.is_dir():
                raise ValueError(f"`{folder}` is no folder")
        return folder

    @field_validator("traces")
    @classmethod
    def _can_be_sent(cls, traces: bool) -> bool:
        if traces and find_spec("opentelemetry.sdk") is None:
            raise ValueError("it needs `pip install 'wander-hub[traces]'`")
        return traces

    @field_validator("oidc_issuers")
    @classmethod
    def _names_addresses(cls, issuers: dict[str, PublisherKind]) -> dict[str, PublisherKind]:
        for issuer in issuers:
            if not acceptable_address(issuer):
                raise ValueError(f"the issuer `{issuer}` must be an https address")
        return issuers

    @model_validator(mode="after")
    def _links_lead_to_a_folder(self) -> Self:
        if self.public_files and self.storage_url is not None:
            raise ValueError("`public_files` needs the files in the data folder, not under `storage_url`")
        return self

    @property
    def resolved_database_url(self) -> str:
        """The database URL with the default filled in."""
        return self.database_url or f"sqlite:///{self.data.absolute() / DATABASE}"

    @property
    def audience(self) -> str | None:
        """Whom identity tokens must be made for; None where the hub does not know its own name."""
        return self.oidc_audience or (urlsplit(self.public_url).netloc if self.public_url else None)
