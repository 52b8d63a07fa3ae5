"""What a hub tells of what happens: to webhooks at once, in its audit log, and to its administrators."""

from __future__ import annotations

from datetime import datetime
from typing import Literal, get_args

from pydantic import Field

from wander.types import Record
from wander.wire.environments import VerificationLevel
from wander.wire.fields import (
    Address,
    Count,
    FileName,
    Integer,
    Line,
    LongText,
    Release,
    RunId,
    Sha256,
    Text,
    Values,
    Word,
)
from wander.wire.verification import JobState

EventName = Literal[
    "version.published",
    "version.yanked",
    "run.posted",
    "run.verified",
    "run.level",
    "board.changed",
    "webhook.test",
]
EVENTS: tuple[EventName, ...] = get_args(EventName)
WEBHOOK_SCHEMA: Literal["wander.webhook/1"] = "wander.webhook/1"


class VersionEvent(Record):
    """A version was made, took further files, was yanked, or is offered again."""

    environment: Line
    """`owner/name`."""
    version: Release
    private: bool
    files: dict[FileName, Text] = Field(default_factory=dict)
    """Of `version.published`: the SHA-256 of each file that came, by its name; the first forty."""
    yanked: bool = False
    reason: Text | None = None
    url: Address


class RunEvent(Record):
    """A run was posted, or shown that had been private."""

    environment: Line
    version: Release
    run_id: RunId
    sha256: Sha256
    """The digest of the whole run."""
    kind: Line
    model: Line
    level: VerificationLevel
    level_reason: Text
    reward_mean: float | None
    private: bool
    url: Address


class VerificationEvent(RunEvent):
    """A verification of a run ended."""

    verification: Count
    reported: bool
    """Whether it ended with a report; one that failed or was called off has none."""


class LevelEvent(RunEvent):
    """A run has another level, whoever found out what."""

    before: VerificationLevel


class BoardEvent(Record):
    """Another run leads a board, or an owner keeps a run off it, or lets it rank again."""

    environment: Line
    version: Release
    board: Word
    """Its name among the boards of the version."""
    change: Literal["best", "hidden", "shown"]
    run_id: RunId | None
    """The run that leads now, or that was hidden or shown; None where none leads any more."""
    model: Line | None = None
    reward_mean: float | None = None
    reason: Text | None = None
    private: bool
    url: Address


class NothingHappened(Record):
    """Somebody tries whether the webhook works."""


class WebhookPayload(Record):
    """The body of every request to a webhook, at most 20 kB."""

    schema_: Literal["wander.webhook/1"] = Field(default=WEBHOOK_SCHEMA, alias="schema")
    type: EventName
    timestamp: datetime
    """When it happened."""
    data: VersionEvent | VerificationEvent | LevelEvent | RunEvent | BoardEvent | NothingHappened


class WebhookSettings(Record, defer_build=False):
    """Where a webhook leads, and what it is told."""

    url: str = Field(max_length=1000)
    events: list[EventName] = Field(default_factory=list, max_length=len(EVENTS))
    """Empty for all."""


class NewWebhook(WebhookSettings, defer_build=False):
    """A webhook to make."""

    owner: str | None = Field(default=None, max_length=80)
    """Whose environments it tells of; None for all public ones of the hub, which takes an administrator."""
    environment: str | None = Field(default=None, max_length=200)
    """The name of the one environment of the owner that it tells of; None for all."""


class WebhookInfo(WebhookSettings):
    """A webhook, without its secret."""

    id: Count
    owner: Line | None
    environment: Line | None
    keeper: Text | None
    """The user by whose rights it is told; None for the hub's operator."""
    created_at: datetime
    failing_since: datetime | None = None
    """Since when every delivery failed."""
    disabled_at: datetime | None = None
    disabled_reason: Text | None = None
    former_secret_until: datetime | None = None
    """Until when deliveries are signed with the secret of before too."""


class WebhookSecret(Record):
    """A webhook with its secret, which is shown this once."""

    webhook: WebhookInfo
    secret: Word


class WebhookList(Record):
    """Webhooks, oldest first."""

    data: list[WebhookInfo]


class DeliveryInfo(Record):
    """One event on its way to one webhook, and how the last attempt ended."""

    id: Count
    message_id: Text
    """The `webhook-id` of every attempt."""
    event: EventName
    state: Literal["new", "waiting", "delivered", "failed"]
    created_at: datetime
    attempts: Count
    attempted_at: datetime | None = None
    next_at: datetime | None = None
    status: Count | None = None
    """Of the answer; None where none came."""
    answer: Text | None = None
    """Its first 1,000 bytes."""
    error: Text | None = None
    seconds: float | None = None
    """How long the attempt took."""


class DeliveryDetail(DeliveryInfo):
    """One delivery with what is sent."""

    body: LongText
    """The JSON that is signed, byte by byte."""


class DeliveryPage(Record):
    """Deliveries, the newest first."""

    data: list[DeliveryInfo]
    next: Count | None = None
    """The `before` of the next page."""


class AuditEntry(Record):
    """One thing that somebody, or the hub itself, did."""

    id: Count
    at: datetime
    actor: Text
    """A user, `the hub`, or `wander-hub` for its command line."""
    token: Word | None = None
    """The prefix of the token that was used, as listings show it."""
    action: Text
    """What was done, such as `version.yank`."""
    owner: Line | None = None
    """The owner whose it was done to, who may read this."""
    target: Line
    detail: Values
    address: Text | None = None
    """From where, as the hub or the proxy that it trusts saw it."""
    request_id: Line | None = None


class AuditPage(Record):
    """Entries, the newest first."""

    data: list[AuditEntry]
    next: Count | None = None
    """The `before` of the next page."""


class DoctorFinding(Record):
    """What came of one look at what a hub needs."""

    check: Text
    state: Literal["ok", "warning", "failed"]
    told: Text


class DoctorReport(Record):
    """What the hub finds of settings, database, clock, storage, disk, proxy and sandbox."""

    well: bool
    """Whether all works that it needs, warnings or not."""
    data: list[DoctorFinding]


class JobInfo(Record):
    """A piece of work of the hub: a replay, a check, a delivery, a look at another hub."""

    id: Count
    kind: Line
    state: JobState
    payload: Values
    """What it is about, for its worker."""
    about: Text = ""
    """The same in words, with the names of now."""
    page: Text | None = None
    """The path of a page that shows it, where there is one."""
    priority: Integer
    attempt: Count
    max_attempts: Count
    lease_owner: Text | None = None
    """The worker that has it, or had it last."""
    lease_until: datetime | None = None
    """When another worker takes it up, unless this one is heard of before."""
    progress: Values = Field(default_factory=dict)
    cancel_requested: bool = False
    error: Text | None = None
    """Of the last attempt."""
    created_at: datetime
    run_after: datetime
    """Before which no worker takes it."""
    finished_at: datetime | None = None


class RetriedJobs(Record):
    """How many jobs are tried again that waited for the hub, or failed."""

    retried: Count


class JobPage(Record):
    """Jobs, the newest first."""

    data: list[JobInfo]
    next: Count | None = None
    """The `before` of the next page."""


class BackupInfo(Record):
    """One copy of the whole hub into its backup folder: each brings the folder up to date."""

    id: Count
    state: JobState
    asked_at: datetime
    finished_at: datetime | None = None
    rows: Count | None = None
    objects: Count | None = None
    """What the folder holds, of one that is done."""
    error: Text | None = None


class BackupList(Record):
    """Backups that were asked for over the API, the newest first."""

    data: list[BackupInfo]
