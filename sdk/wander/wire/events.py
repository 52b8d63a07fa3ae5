"""Webhooks and their events, the audit log, and the hub's jobs, backups and health checks."""

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
    """A version was published, received more files, was yanked, or is no longer yanked."""

    environment: Line
    """`owner/name`."""
    version: Release
    private: bool
    files: dict[FileName, Text] = Field(default_factory=dict)
    """SHA-256 of each new file by name, for `version.published`; at most 40 files."""
    yanked: bool = False
    reason: Text | None = None
    url: Address


class RunEvent(Record):
    """A run was posted, or a private run was made public."""

    environment: Line
    version: Release
    run_id: RunId
    sha256: Sha256
    """Digest of the whole run."""
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
    """Whether it ended with a report. Failed and canceled verifications do not."""


class LevelEvent(RunEvent):
    """The verification level of a run changed."""

    before: VerificationLevel


class BoardEvent(Record):
    """A board has a new leading run, or an owner hid a run from it or showed the run again."""

    environment: Line
    version: Release
    board: Word
    """Name that identifies the board within its version."""
    change: Literal["best", "hidden", "shown"]
    run_id: RunId | None
    """Run that now leads, or that was hidden or shown; None if the board no longer has a leading run."""
    model: Line | None = None
    reward_mean: float | None = None
    reason: Text | None = None
    private: bool
    url: Address


class NothingHappened(Record):
    """The empty data of `webhook.test`, which a user sends to test a webhook."""


class WebhookPayload(Record):
    """The body of every request to a webhook, at most 20 kB."""

    schema_: Literal["wander.webhook/1"] = Field(default=WEBHOOK_SCHEMA, alias="schema")
    type: EventName
    timestamp: datetime
    """Time of the event."""
    data: VersionEvent | VerificationEvent | LevelEvent | RunEvent | BoardEvent | NothingHappened


class WebhookSettings(Record, defer_build=False):
    """The address of a webhook and the events that it receives."""

    url: str = Field(max_length=1000)
    events: list[EventName] = Field(default_factory=list, max_length=len(EVENTS))
    """Events to send; an empty list means all events."""


class NewWebhook(WebhookSettings, defer_build=False):
    """Request to create a webhook."""

    owner: str | None = Field(default=None, max_length=80)
    """Owner whose environments send events. None means all public environments of the hub, which only an
    administrator may choose."""
    environment: str | None = Field(default=None, max_length=200)
    """Name of the owner's only environment that sends events; None means all of the owner's environments."""


class WebhookInfo(WebhookSettings):
    """A webhook, without its secret."""

    id: Count
    owner: Line | None
    environment: Line | None
    keeper: Text | None
    """User whose rights decide which events are sent; None for the hub's operator."""
    created_at: datetime
    failing_since: datetime | None = None
    """Time of the first failed delivery since the last successful delivery."""
    disabled_at: datetime | None = None
    disabled_reason: Text | None = None
    former_secret_until: datetime | None = None
    """Time until which deliveries are also signed with the previous secret."""


class WebhookSecret(Record):
    """A webhook with its secret, which the hub shows only once."""

    webhook: WebhookInfo
    secret: Word


class WebhookList(Record):
    """Webhooks, oldest first."""

    data: list[WebhookInfo]


class DeliveryInfo(Record):
    """The delivery of an event to a webhook, with the outcome of the last attempt."""

    id: Count
    message_id: Text
    """`webhook-id` header of every attempt."""
    event: EventName
    state: Literal["new", "waiting", "delivered", "failed"]
    created_at: datetime
    attempts: Count
    attempted_at: datetime | None = None
    next_at: datetime | None = None
    status: Count | None = None
    """HTTP status of the answer; None without an answer."""
    answer: Text | None = None
    """First 1,000 bytes of the answer."""
    error: Text | None = None
    seconds: float | None = None
    """Duration of the last attempt."""


class DeliveryDetail(DeliveryInfo):
    """A delivery with the body of its request."""

    body: LongText
    """JSON body, exactly as it is signed and sent."""


class DeliveryPage(Record):
    """A page of deliveries, newest first."""

    data: list[DeliveryInfo]
    next: Count | None = None
    """Value of the parameter `before` for the next page."""


class AuditEntry(Record):
    """An action by a user or by the hub itself."""

    id: Count
    at: datetime
    actor: Text
    """Name of the user, `the hub`, or `wander-hub` for the hub's command line."""
    token: Word | None = None
    """Prefix of the token that was used, as shown in lists of tokens."""
    action: Text
    """Name of the action, such as `version.yank`."""
    owner: Line | None = None
    """Owner of the object that was changed; the owner may read this entry."""
    target: Line
    detail: Values
    address: Text | None = None
    """Address of the caller, as seen by the hub or by the proxy that it trusts."""
    request_id: Line | None = None


class AuditPage(Record):
    """A page of the audit log, newest entries first."""

    data: list[AuditEntry]
    next: Count | None = None
    """Value of the parameter `before` for the next page."""


class DoctorFinding(Record):
    """The result of a health check of the hub."""

    check: Text
    state: Literal["ok", "warning", "failed"]
    told: Text


class DoctorReport(Record):
    """The results of checking the hub's settings, database, clock, storage, disk, proxy and sandbox."""

    well: bool
    """Whether no check failed; warnings are allowed."""
    data: list[DoctorFinding]


class JobInfo(Record):
    """A background job of the hub, such as a replay, a check or a webhook delivery."""

    id: Count
    kind: Line
    state: JobState
    payload: Values
    """Input of the job, as its worker reads it."""
    about: Text = ""
    """Description of the job's target in words, with current names."""
    page: Text | None = None
    """Path of a page that shows the target, if there is such a page."""
    priority: Integer
    attempt: Count
    max_attempts: Count
    lease_owner: Text | None = None
    """Worker that runs the job or last ran it."""
    lease_until: datetime | None = None
    """Time when another worker may take over the job, unless the current worker renews its lease."""
    progress: Values = Field(default_factory=dict)
    cancel_requested: bool = False
    error: Text | None = None
    """Error of the last attempt."""
    created_at: datetime
    run_after: datetime
    """Earliest start of the job."""
    finished_at: datetime | None = None


class RetriedJobs(Record):
    """The number of failed or waiting jobs that were queued again."""

    retried: Count


class JobPage(Record):
    """A page of jobs, newest first."""

    data: list[JobInfo]
    next: Count | None = None
    """Value of the parameter `before` for the next page."""
