"""The hub's JSON answers, and what requests carry that change something."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from datetime import date, datetime
from typing import Any, Literal, Self

from pydantic import Field, model_validator

from wander.types import Record
from wander.wire.postings import SignatureInfo, Withdrawal
from wander.wire.run_record import RunManifest, RunSummary
from wander.wire.source_tree import SourceInfo

VerificationLevel = Literal["claimed", "unverifiable", "complete", "rescored", "replayed"]
Role = Literal["reader", "maintainer", "owner"]
"""What somebody may do: read and post results; also publish, yank and deprecate; also everything else."""
TokenScope = Literal["read", "results", "publish", "manage"]
"""What a token may be used for; each one also reads. A token never does more than its user may."""
TOKEN_SCOPES: tuple[TokenScope, ...] = ("read", "results", "publish", "manage")
ProjectStatus = Literal["active", "deprecated", "archived", "quarantined"]
"""As PEP 792 has it: an archived environment takes no uploads, a quarantined one also offers no files."""


class FileInfo(Record):
    """One distribution file of a version."""

    filename: str
    kind: Literal["wheel", "sdist"]
    size: int
    """Bytes."""
    sha256: str
    url: str
    uploaded_at: datetime


MESSAGE_LENGTH = 500
"""Characters of a check's message that a hub keeps."""
CheckStatus = Literal["pass", "warn", "fail", "skip"]


class CheckFinding(Record):
    """One check that did not pass."""

    id: str = Field(pattern=r"^[a-z0-9.-]{1,64}$")
    """Stable id, as in `CHECKS` of `wander.checks`."""
    status: Literal["warn", "fail", "skip"]
    message: str = Field(default="", max_length=MESSAGE_LENGTH)


class CheckSummary(Record):
    """What `wander check` found on the publisher's machine; the hub did not repeat it."""

    wander: str = Field(pattern=r"^[0-9A-Za-z.+!-]{1,50}$")
    """Version of the SDK whose checks these were."""
    passed: int = Field(ge=0, le=1000)
    warned: int = Field(ge=0, le=1000)
    failed: int = Field(ge=0, le=1000)
    skipped: int = Field(ge=0, le=1000)
    """Checks that could not be looked at, or do not apply."""
    findings: list[CheckFinding] = Field(default_factory=list, max_length=200)
    """Every check that did not pass, in the order of the report."""

    @model_validator(mode="after")
    def _counts_agree(self) -> Self:
        stated = {"warn": self.warned, "fail": self.failed, "skip": self.skipped}
        for status, number in stated.items():
            if sum(each.status == status for each in self.findings) != number:
                raise ValueError(f"the findings are not those that `{status}` counts")
        return self

    @classmethod
    def of(cls, wander: str, checks: Sequence[tuple[str, CheckStatus, str]]) -> Self:
        """Return the summary of checks by the SDK of version `wander`: the id, status and message of each."""
        count = Counter(status for _, status, _ in checks)
        return cls(
            wander=wander,
            passed=count["pass"],
            warned=count["warn"],
            failed=count["fail"],
            skipped=count["skip"],
            findings=[
                # A message may hold anything that an environment said, at any length.
                CheckFinding(
                    id=check,
                    status=status,
                    message=message[:MESSAGE_LENGTH].encode(errors="replace").decode(),
                )
                for check, status, message in checks
                if status != "pass"
            ],
        )

    @property
    def counts(self) -> str:
        """The counts in words: `27 passed, 1 warning`."""
        parts = [f"{self.passed} passed"]
        if self.failed:
            parts.append(f"{self.failed} failed")
        if self.warned:
            parts.append(f"{self.warned} warning{'s' if self.warned > 1 else ''}")
        if self.skipped:
            parts.append(f"{self.skipped} skipped")
        return ", ".join(parts)


class UploadWarning(Record):
    """Something in a file that its hub accepts and does not like; docs/upload-rules.md has the rules."""

    code: str = Field(pattern=r"^[a-z0-9_]{1,64}$")
    detail: str = Field(default="", max_length=2000)
    hint: str | None = None
    filename: str | None = None
    """The file that it is about, of a version with several."""


class LockInfo(Record):
    """The lock of a version: the files of every package that it was published with (PEP 751)."""

    sha256: str
    size: int
    """Bytes."""
    url: str
    """Of the `pylock.toml`, which pip and uv install from."""
    attached_at: datetime


class VersionDetail(Record):
    """One immutable version; all metadata was read from its files."""

    owner: str
    name: str
    version: str
    summary: str = ""
    requires_python: str | None = None
    requires_dist: list[str] = Field(default_factory=list)
    license: str | None = None
    tags: list[str] = Field(default_factory=list)
    entry_point: str | None = None
    """`module:function` of the `wander.environments` entry point, or None (module-level fallback)."""
    uploaded_at: datetime
    uploaded_by: str
    yanked: bool = False
    yanked_reason: str | None = None
    deleted_at: datetime | None = None
    """Set for a tombstone: its files are gone, and its number is never given again."""
    deleted_reason: str | None = None
    files: list[FileInfo] = Field(default_factory=list)
    lock: LockInfo | None = None
    """None when none was attached, so after `wander publish --no-lock` and plain uploads."""
    check: CheckSummary | None = None
    """Stated by the publisher; None when nothing was stated, so when `wander publish` was not to check."""
    warnings: list[UploadWarning] = Field(default_factory=list)
    """What the hub flagged in the files; in the answer to an upload of one file, in that one."""
    source: SourceInfo | None = None
    """Digest of its source archive's files, and which wheels are of these; None without an archive."""


Visibility = Literal["public", "internal", "private"]
"""Who sees an environment or a model: everybody, who is signed in, or who has a role on it or its owner."""


def visibility_of(private: bool, *, internal: bool = False) -> Visibility:
    """Return the word for what two marks say; what is internal is private too."""
    if internal:
        return "internal"
    return "private" if private else "public"


def marks_of(wanted: Visibility) -> tuple[bool, bool]:
    """Return the marks `private` and `internal` that say it, which `visibility_of` reads."""
    return wanted != "public", wanted == "internal"


def wanted_visibility(private: bool | None, *, internal: bool) -> Visibility | None:
    """Return what is asked for, None where that is left open; `internal` says it all."""
    return None if private is None and not internal else visibility_of(bool(private), internal=internal)


class EnvironmentSummary(Record):
    """One row of a listing or a search."""

    owner: str
    name: str
    latest_version: str
    summary: str = ""
    tags: list[str] = Field(default_factory=list)
    updated_at: datetime
    versions: int
    runs: int
    best_reward: float | None = None
    best_model: str | None = None
    private: bool = False
    """Strangers do not see it."""
    internal: bool = Field(default=False, exclude_if=lambda internal: not internal)
    """And everybody who is signed in does: `private` too is true then."""
    status: ProjectStatus = "active"
    downloads: int = 0
    """Files of it that were sent, all versions together."""
    stars: int = 0
    """Users who marked it."""


class EnvironmentDetail(EnvironmentSummary):
    """One environment with its newest version and the names of all."""

    created_at: datetime
    readme: str = ""
    """Markdown or plain text, as published."""
    latest: VersionDetail
    all_versions: list[str]
    """Newest first, without deleted ones."""
    yanked_versions: list[str] = Field(default_factory=list)
    """Those of them that installers pass over."""
    status_reason: str | None = None
    successor: str | None = None
    """`owner/name` to use instead of a deprecated environment."""
    parent: str | None = None
    """`owner/name@version` that this one was forked from; None also where the reader may not see it."""


class ArtifactInfo(Record):
    """A file that was posted with a run: metrics, plots, configuration."""

    name: str
    media_type: str
    size: int
    """Bytes."""
    sha256: str
    url: str


class RunDetail(Record):
    """A posted run as the hub knows it."""

    run_id: str
    manifest: RunManifest = Field(repr=False)
    summary: RunSummary
    level: VerificationLevel
    level_reason: str = ""
    sha256: str
    """Digest of what was posted: manifest and rollouts."""
    posted_by: str
    posted_at: datetime
    url: str
    """The run's page."""
    version_deleted: bool = False
    """The environment version was deleted since: the numbers stand, but nobody can install it any more."""
    artifacts: list[ArtifactInfo] = Field(default_factory=list)
    rollouts_sha256: str | None = None
    """Digest over those of the rollouts' lines (`wander.wire.postings`); None without rollouts."""
    private: bool = False
    withdrawn: Withdrawal | None = None
    """Set when its rollouts were removed by who posted them; numbers and digests stay."""
    signature: SignatureInfo | None = None


class RolloutRow(Record):
    """What a list shows of one rollout; `GET .../rollouts/{number}` gives the whole."""

    number: int
    """From 0, in the manifest's order of examples."""
    example_id: str
    index: int
    reward: float | None
    stop_reason: str | None
    failure: str | None
    """Boundary that broke, None for a scored rollout."""
    truncated: bool
    turns: int
    completion_tokens: int
    seconds: float
    preview: str
    """Beginning of the last assistant message."""
    step: int | None = None
    """Of a training run: the steps that the policy had learnt."""


class TokenInfo(Record):
    """An API token without its secret."""

    name: str
    prefix: str
    created_at: datetime
    last_used_at: datetime | None = None
    scopes: list[TokenScope] = Field(default_factory=lambda: list(TOKEN_SCOPES))
    target: str | None = None
    """`owner` or `owner/name` that the token is good for; None for everything its user may touch."""
    expires_at: datetime | None = None
    revoked: bool = False


class Problem(Record):
    """RFC 9457 problem details: every error answer of the hub."""

    type: str = "about:blank"
    title: str
    status: int
    detail: str = ""
    code: str
    """Stable snake_case code; the client maps it to an exception and an exit status."""
    hint: str | None = None
    request_id: str | None = None
    errors: list[dict[str, Any]] | None = None


class Page(Record):
    """Base of list answers: `data` beside `next`, an opaque cursor or null."""

    next: str | None = None


class EnvironmentPage(Page):
    """A page of environments."""

    data: list[EnvironmentSummary]


class StarInfo(Record):
    """Whether the caller marked an environment, and how many users did."""

    starred: bool
    stars: int


class DayOfDownloads(Record):
    """The files of one version that were sent on one day."""

    day: date
    """In UTC."""
    version: str
    downloads: int


class DownloadHistory(Record):
    """Downloads of an environment; what came in the last seconds may still be missing."""

    total: int
    """Of all time."""
    days: list[DayOfDownloads] = Field(default_factory=list)
    """The newest day first; days without downloads are left out."""


class ModelUse(Record):
    """A model, and in how many runs it played."""

    model: str
    runs: int


class UsedBy(Record):
    """Who uses an environment, as far as the caller may see it."""

    required_by: list[EnvironmentSummary] = Field(default_factory=list)
    """Environments whose newest version requires its distribution."""
    forks: list[EnvironmentSummary] = Field(default_factory=list)
    runs: int = 0
    """All public runs."""
    models: list[ModelUse] = Field(default_factory=list)
    """Models of the last 500 of them, the most used first."""
    authors: list[str] = Field(default_factory=list)
    """Who posted these, most of them first."""


class RunPage(Page):
    """A page of runs, whose manifests have no `example_ids` and `strata`: `summary.expected` counts what they
    play, and each run by itself has them."""

    data: list[RunDetail]


class RolloutPage(Record):
    """A page of a run's rollouts, by offset."""

    data: list[RolloutRow]
    total: int
    offset: int


class HealthStatus(Record):
    """What `/health` answers."""

    status: Literal["ok", "degraded"]
    version: str
    database: bool
    storage: bool
    room: bool = True
    """Whether the disk has room for uploads."""
