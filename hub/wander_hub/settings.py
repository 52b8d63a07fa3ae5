"""Settings of one hub, from arguments or `WANDER_HUB_*` variables."""

from __future__ import annotations

import json
import os
import shlex
from importlib.util import find_spec
from ipaddress import ip_network
from pathlib import Path
from typing import Literal, Self
from urllib.parse import urlsplit

from pydantic import (
    BaseModel,
    ByteSize,
    ConfigDict,
    Field,
    ValidationInfo,
    field_validator,
    model_validator,
)
from pydantic_settings import BaseSettings, SettingsConfigDict
from wander.wire.people import PublisherKind

from wander_hub.names import acceptable_address
from wander_hub.upload_rules import OPTIONAL, Action

MIB = 1024 * 1024
PREFIX = "WANDER_HUB_"
"""Start of the name of every variable that sets something."""
_STORES = ("s3", "gs", "az", "abfss", "https", "memory")
"""Schemes of object store URLs."""
DATABASE = "hub.db"
"""File name of the embedded database in the data folder."""


class ProviderSettings(BaseModel):
    """An OpenID Connect provider for signing in."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    issuer: str = Field(max_length=300)
    client_id: str
    secret_variable: str | None = None
    """Name of the environment variable that holds the client's secret."""
    secret_file: Path | None = None
    """File that holds the client's secret instead. A client without a secret relies on PKCE."""
    label: str = ""
    """Name of the provider on the sign-in page; empty means its host name."""
    scopes: str = "openid profile email"
    name_claim: str = "preferred_username"
    """Claim that becomes the user name of an added user."""
    add_users: bool = False
    """Whether to add a user at the first sign-in of an identity that is not linked to a user."""
    domains: tuple[str, ...] = ()
    """Email domains whose addresses may sign in, if the provider verified the address; empty allows all."""
    groups_claim: str = "groups"
    groups: tuple[str, ...] = ()
    """Groups whose members may sign in; empty allows everyone."""

    @field_validator("issuer")
    @classmethod
    def _is_https(cls, issuer: str) -> str:
        if not acceptable_address(issuer):
            raise ValueError(f"the issuer `{issuer}` must be an https address")
        return issuer

    @property
    def name(self) -> str:
        """Name of the provider on the sign-in page."""
        return self.label or urlsplit(self.issuer).netloc

    def secret(self) -> str | None:
        """Return the client's secret, or None if it does not use a secret. Raises `OSError` or `KeyError` if
        it cannot be read."""
        if self.secret_file is not None:
            return self.secret_file.read_text().strip()
        return os.environ[self.secret_variable] if self.secret_variable else None


class Settings(BaseSettings):
    """Settings that an operator can change. With the defaults, the hub needs nothing but one folder."""

    model_config = SettingsConfigDict(env_prefix=PREFIX, frozen=True, enable_decoding=False)

    data: Path = Path("wander-hub-data")
    """Folder of the embedded database and the stored files."""
    database_url: str | None = None
    """SQLAlchemy URL of the database; unset means SQLite in the data folder. PostgreSQL:
    `postgresql+psycopg://...`."""
    database_connections: int = Field(default=50, ge=5)
    """Maximum number of PostgreSQL connections of one process. The sum over all processes must not exceed the
    server's `max_connections`."""
    storage_url: str | None = None
    """Object store URL such as `s3://bucket/prefix`, with credentials from the usual AWS variables; unset
    means the data folder. `memory://` keeps objects in the memory of this process."""
    public_url: str | None = None
    """Address under which users reach the hub; unset means the address of each request."""
    hosts: tuple[str, ...] = ()
    """Additional host names that requests may use, besides those of `public_url` and the bind address."""
    upstream_index: str | None = "https://pypi.org/simple/"
    """Package index to which `/OWNER/index/` forwards requests for names that the hub does not have, so that
    this address can be the only index of an installer. Empty disables forwarding."""
    accel_prefix: str | None = None
    """Path of an `internal` nginx location for the folder of the files (`DATA/objects`), from which nginx
    then sends them itself. Set it only if every request comes through that nginx."""
    presigned_seconds: int = Field(default=0, ge=0, le=7 * 24 * 3600)
    """With an object store: validity of a presigned download address in seconds. Downloads are redirected
    to it; with 0, the hub sends the files itself."""
    bundled_packages: bool = True
    """Whether to publish the hub's own versions of the SDK and client under the owner `wander` at startup."""
    max_upload_bytes: int = Field(default=100 * MIB, gt=0, lt=4096 * MIB)
    """Maximum size of one distribution file, and of the request that uploads it."""
    max_model_bytes: int = Field(default=8 * 1024 * MIB, gt=0)
    """Maximum total size of the files of one model revision."""
    max_open_transfers: int = Field(default=50, ge=1)
    """Maximum number of unfinished uploads per user."""
    quota_stored_bytes: ByteSize | None = Field(default=None, ge=0)
    """Storage that each owner may use, such as `10GiB`; unset means no limit. An owner can have a quota of
    its own."""
    quota_versions: int | None = Field(default=None, ge=0)
    """Number of versions of environments and models that each owner may have."""
    quota_runs: int | None = Field(default=None, ge=0)
    """Number of posted runs that each owner may have."""
    version_open_days: int = Field(default=14, ge=0)
    """Days after which a version accepts no more files, so that a stolen token cannot add files to an old
    version."""
    max_unpacked_bytes: int = Field(default=1024 * MIB, gt=0, lt=4096 * MIB)
    """Maximum total size of the unpacked members of one distribution file."""
    upload_policy: dict[str, Action] = Field(default_factory=dict)
    """Actions of optional rules, such as `{"startup_file": "refuse"}`. docs/package-index.md lists the
    rules."""
    max_run_bytes: int = Field(default=16 * 1024 * MIB, gt=0)
    """Maximum decompressed size of the rollouts of one run. A run posted in a single request may have at most
    1 GiB."""

    reads_per_minute: int = Field(default=20_000, ge=0)
    """Read requests per minute of one token, or of one address without a token; 0 means no limit. One
    installation makes a few hundred requests."""
    writes_per_minute: int = Field(default=2_000, ge=0)
    """Requests per minute that change something, counted in the same way."""
    uploads_per_minute: int = Field(default=6_000, ge=0)
    """Uploaded parts of versions, models and runs per minute, counted in the same way."""
    failures_per_minute: int = Field(default=120, ge=0)
    """Requests per minute of one address with an invalid token, after which its requests with tokens are
    rejected."""
    min_free_bytes: int = Field(default=256 * MIB, ge=0)
    """Free disk space of the data folder below which `/ready?uploads=true` reports that the hub is not
    ready."""
    drain_seconds: float = Field(default=0, ge=0, le=300)
    """Seconds after SIGTERM during which the hub serves requests, but asks clients to reconnect elsewhere."""
    log_format: Literal["text", "json"] = "text"
    """Format of the log on standard error."""
    featured: tuple[str, ...] = ()
    """Environments, as `owner/name`, that the home page shows first; unset means the environments with the
    most runs whose newest version passed this hub's checks."""

    organizations: Literal["anybody", "administrators"] = "anybody"
    """Users who may create organizations, which are owners without a user."""
    max_organizations: int = Field(default=20, ge=0)
    """Number of organizations that one user may own."""
    session_hours: float = Field(default=14 * 24, gt=0)
    """Maximum duration of a browser session."""
    sign_in_provider: ProviderSettings | None = None
    """OpenID Connect provider for signing in, in addition to passwords."""
    oidc_issuers: dict[str, PublisherKind] = Field(
        default={
            "https://token.actions.githubusercontent.com": "github",
            "https://gitlab.com": "gitlab",
        }
    )
    """Issuers of identity tokens that trusted publishers may exchange, with the kind of their claims:
    `github`, `gitlab`, or `oidc` for any other issuer, whose publishers are identified by `sub` only. A value
    replaces both defaults."""
    oidc_audience: str | None = None
    """Required audience of identity tokens; unset means the host of `public_url`. If that is unset as well,
    trusted publishing is disabled, because a token for another hub must not be valid here."""

    webhook_http: bool = False
    """Whether webhook addresses may start with `http:`."""
    webhook_networks: tuple[str, ...] = ()
    """Networks that webhooks may reach, such as `10.0.0.0/8`; empty allows only public addresses."""

    verification: Literal["sandbox", "unconfined", "off"] = "sandbox"
    """How the hub replays posted runs: `sandbox` requires a sandbox, `unconfined` runs the code of
    environments as the hub's own user, for operators who trust every publisher, and `off` disables
    replays."""
    verify_posts: bool = True
    """Whether to replay every posted run whose level a replay can raise."""
    check_versions: bool = True
    """Whether to check every published version as `wander check` does; ignored if `verification` is off."""
    learning: bool = False
    """Whether to train a tiny policy on every published version, as `wander check --learn` does. It takes up
    to 10 minutes of one core for a version, and needs `wander-sdk[train]` where jobs run."""
    seal_key_file: Path | None = None
    """File with the key that encrypts sealed task sets, outside of the data folder; it is created if it does
    not exist. Unset means that the hub keeps no sealed sets."""
    seal_networks: tuple[str, ...] = ()
    """Networks in which the hub may play sealed sets, such as `10.0.0.0/8`, also without TLS; empty allows
    only public https endpoints."""
    seal_memory_bytes: int = Field(default=8192 * MIB, ge=512 * MIB)
    """Maximum memory of a process that plays a sealed set. A model of the hub must fit into half of it."""
    verification_seconds: float = Field(default=3600, gt=0)
    """Maximum seconds for one replay or one check."""
    boxes: Literal["off", "auto", "bwrap", "podman", "docker"] = "off"
    """Whether the hub's workers start boxes for environments whose model works in a shell, and with which
    backend. `off` leaves the runs of these environments at the level `complete`."""
    box_limits: str = "memory_mb=2048,disk_mb=1024,processes=256,seconds=1800"
    """Upper bounds for the limits of these boxes."""
    box_images: tuple[str, ...] = ()
    """Prefixes of the images that these boxes may be started from, such as `ghcr.io/acme/`; empty refuses all
    images. Dockerfiles are never built."""
    tokenizers: Path | None = None
    """Folder of `ORG/NAME/tokenizer.json` files, named like the models of the runs. The hub then counts the
    completion tokens of these models' runs."""
    verification_folder: Path | None = None
    """Folder for the runs and environments that jobs download; unset means `home` in the data folder."""
    serve_jobs: bool = True
    """Whether the server runs jobs as well; disable it if `wander-hub work` runs them."""
    job_concurrency: int = Field(default=1, ge=1, le=64)
    """Number of jobs that one process runs at the same time."""
    job_lease_seconds: float = Field(default=30, ge=1)
    """Seconds without a heartbeat after which another process takes over a job."""

    @field_validator(
        *("hosts", "upload_policy", "featured", "sign_in_provider", "oidc_issuers", "webhook_networks"),
        *("seal_networks", "box_images"),
        mode="before",
    )
    @classmethod
    def _is_json(cls, value: object) -> object:
        """Read the text of a variable. With its own decoding, pydantic-settings would not report the name."""
        if not isinstance(value, str):
            return value
        try:
            return json.loads(value)
        except ValueError as error:
            raise ValueError(f"`{value}` is not valid JSON") from error

    @field_validator("upload_policy")
    @classmethod
    def _names_optional_rules(cls, policy: dict[str, Action]) -> dict[str, Action]:
        for code in policy:
            if code not in OPTIONAL:
                raise ValueError(
                    f"`{code}` is not an optional rule; the optional rules are: {', '.join(OPTIONAL)}"
                )
        return policy

    @field_validator("webhook_networks", "seal_networks")
    @classmethod
    def _are_networks(cls, networks: tuple[str, ...]) -> tuple[str, ...]:
        for network in networks:
            ip_network(network, strict=False)  # its error names the fault
        return networks

    @field_validator("database_url")
    @classmethod
    def _is_a_known_database(cls, url: str | None) -> str | None:
        scheme = (url or "").partition("://")[0]  # the rest may contain a password
        if url and scheme not in ("sqlite", "postgresql+psycopg"):
            raise ValueError(f"`{scheme}` must be `sqlite` or `postgresql+psycopg`")
        if scheme == "postgresql+psycopg" and find_spec("psycopg") is None:
            raise ValueError("it requires `pip install 'wander-hub[postgres]'`")
        return url or None

    @field_validator("storage_url")
    @classmethod
    def _is_an_object_store(cls, url: str | None) -> str | None:
        parts = urlsplit(url or "")
        if url and (parts.scheme not in _STORES or not (parts.netloc or parts.scheme == "memory")):
            raise ValueError("must be the URL of an object store, such as `s3://bucket/prefix`")
        return url or None

    @field_validator("upstream_index", "public_url")
    @classmethod
    def _is_an_address(cls, url: str | None, info: ValidationInfo) -> str | None:
        parts = urlsplit(url or "")
        if url and (parts.scheme not in ("https", "http") or not parts.hostname or parts.username):
            raise ValueError(f"`{url}` must be an http or https address without a user")
        if info.field_name == "public_url" and parts.path.strip("/"):
            raise ValueError(f"`{url}` must not have a path: give the hub a host name of its own")
        return url or None

    @field_validator("tokenizers")
    @classmethod
    def _can_be_read(cls, folder: Path | None) -> Path | None:
        if folder is not None:
            if find_spec("tokenizers") is None:
                raise ValueError("it requires `pip install 'wander-hub[tokenizers]'`")
            if not folder.is_dir():
                raise ValueError(f"`{folder}` is not a folder")
        return folder

    @field_validator("oidc_issuers")
    @classmethod
    def _names_addresses(cls, issuers: dict[str, PublisherKind]) -> dict[str, PublisherKind]:
        for issuer in issuers:
            if not acceptable_address(issuer):
                raise ValueError(f"the issuer `{issuer}` must be an https address")
        return issuers

    @model_validator(mode="after")
    def _key_is_apart(self) -> Self:
        path = self.seal_key_file
        if path is not None and path.resolve().is_relative_to(self.data.resolve()):
            raise ValueError(f"`{PREFIX}SEAL_KEY_FILE` must be outside of the data folder `{self.data}`")
        return self

    @property
    def resolved_database_url(self) -> str:
        """Database URL, with the default filled in."""
        return self.database_url or f"sqlite:///{self.data.absolute() / DATABASE}"

    @property
    def audience(self) -> str | None:
        """Required audience of identity tokens; None if neither it nor the hub's public address is set."""
        return self.oidc_audience or (urlsplit(self.public_url).netloc if self.public_url else None)


class NoHub(Exception):
    """No hub exists at the configured location; `hint` suggests what to do."""

    def __init__(self, settings: Settings) -> None:
        where = "the configured database" if settings.database_url else f"`{settings.data}`"
        super().__init__(f"there is no hub in {where}")
        at = "" if settings.database_url else f" --data {shlex.quote(str(settings.data))}"
        self.hint = (
            f"check `--data` and `WANDER_HUB_DATABASE_URL`, or start a hub there with `wander-hub serve{at}`"
        )
