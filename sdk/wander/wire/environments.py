"""The hub's JSON answers, and what requests carry that change something."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from datetime import date, datetime
from typing import Literal, Self

from pydantic import Field, model_validator

from wander.types import Record
from wander.wire.fields import (
    Address,
    Count,
    FileName,
    Line,
    LongText,
    OwnerName,
    ProjectName,
    Release,
    RunId,
    RunName,
    Sha256,
    Target,
    Text,
    Values,
    Word,
)
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

    filename: FileName
    kind: Literal["wheel", "sdist"]
    size: Count
    """Bytes."""
    sha256: Sha256
    url: Address
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
    """Something in a file that its hub accepts and does not like; docs/package-index.md has the rules."""

    code: str = Field(pattern=r"^[a-z0-9_]{1,64}$")
    detail: str = Field(default="", max_length=2000)
    hint: Text | None = None
    filename: FileName | None = None
    """The file that it is about, of a version with several."""


class LockInfo(Record):
    """The lock of a version: the files of every package that it was published with (PEP 751)."""

    sha256: Sha256
    size: Count
    """Bytes."""
    url: Address
    """Of the `pylock.toml`, which pip and uv install from."""
    attached_at: datetime


class VersionDetail(Record):
    """One immutable version; all metadata was read from its files."""

    owner: OwnerName
    name: ProjectName
    version: Release
    summary: Text = ""
    requires_python: Line | None = None
    requires_dist: list[Line] = Field(default_factory=list)
    license: Line | None = None
    tags: list[Line] = Field(default_factory=list)
    entry_point: Line | None = None
    """`module:function` of the `wander.environments` entry point, or None (module-level fallback)."""
    uploaded_at: datetime
    uploaded_by: Line
    yanked: bool = False
    yanked_reason: Text | None = None
    deleted_at: datetime | None = None
    """Set for a tombstone: its files are gone, and its number is never given again."""
    deleted_reason: Text | None = None
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

    owner: OwnerName
    name: ProjectName
    latest_version: Release
    summary: Text = ""
    tags: list[Line] = Field(default_factory=list)
    updated_at: datetime
    versions: Count
    runs: Count
    best_reward: float | None = None
    best_model: Line | None = None
    private: bool = False
    """Strangers do not see it."""
    internal: bool = Field(default=False, exclude_if=lambda internal: not internal)
    """And everybody who is signed in does: `private` too is true then."""
    status: ProjectStatus = "active"
    downloads: Count = 0
    """Files of it that were sent, all versions together."""
    stars: Count = 0
    """Users who marked it."""


class EnvironmentDetail(EnvironmentSummary):
    """One environment with its newest version and the names of all."""

    created_at: datetime
    readme: LongText = ""
    """Markdown or plain text, as published."""
    latest: VersionDetail
    all_versions: list[Release]
    """Newest first, without deleted ones."""
    yanked_versions: list[Release] = Field(default_factory=list)
    """Those of them that installers pass over."""
    status_reason: Text | None = None
    successor: Line | None = None
    """`owner/name` to use instead of a deprecated environment."""
    parent: Line | None = None
    """`owner/name@version` that this one was forked from; None also where the reader may not see it."""


class ArtifactInfo(Record):
    """A file that was posted with a run: metrics, plots, configuration."""

    name: FileName
    media_type: Line
    size: Count
    """Bytes."""
    sha256: Sha256
    url: Address


class RunDetail(Record):
    """A posted run as the hub knows it."""

    run_id: RunId
    name: RunName | None = None
    """The name that its submitter gave it, if any; not part of its record or digest."""
    manifest: RunManifest = Field(repr=False)
    summary: RunSummary
    level: VerificationLevel
    level_reason: Text = ""
    sha256: Sha256
    """Digest of what was posted: manifest and rollouts."""
    posted_by: Line
    posted_at: datetime
    url: Address
    """The run's page."""
    looks_like: list[Line] = Field(default_factory=list)
    """Other model names that this run's looks like, in lists of runs: ASCII, or names in its environment."""
    version_deleted: bool = False
    """The environment version was deleted since: the numbers stand, but nobody can install it any more."""
    artifacts: list[ArtifactInfo] = Field(default_factory=list)
    rollouts_sha256: Sha256 | None = None
    """Digest over those of the rollouts' lines (`wander.wire.postings`); None without rollouts."""
    private: bool = False
    withdrawn: Withdrawal | None = None
    """Set when its rollouts were removed by who posted them; numbers and digests stay."""
    signature: SignatureInfo | None = None


class RolloutRow(Record):
    """What a list shows of one rollout; `GET .../rollouts/{number}` gives the whole."""

    number: Count
    """From 0, in the manifest's order of examples."""
    example_id: Text
    index: Count
    reward: float | None
    stop_reason: Text | None
    failure: Text | None
    """Boundary that broke, None for a scored rollout."""
    truncated: bool
    turns: Count
    completion_tokens: Count
    seconds: float
    preview: Text
    """Beginning of the last assistant message."""
    step: Count | None = None
    """Of a training run: the steps that the policy had learnt."""


class TokenInfo(Record):
    """An API token without its secret."""

    name: Line
    prefix: Word
    created_at: datetime
    last_used_at: datetime | None = None
    scopes: list[TokenScope] = Field(default_factory=lambda: list(TOKEN_SCOPES))
    target: Target | None = None
    """`owner` or `owner/name` that the token is good for; None for everything its user may touch."""
    expires_at: datetime | None = None
    revoked: bool = False


class Problem(Record):
    """RFC 9457 problem details: every error answer of the hub."""

    type: Line = "about:blank"
    title: Text
    status: Count
    detail: Text = ""
    code: Word
    """Stable snake_case code; the client maps it to an exception and an exit status."""
    hint: Text | None = None
    request_id: Line | None = None
    errors: list[Values] | None = None


class Page(Record):
    """Base of list answers: `data` beside `next`, an opaque cursor or null."""

    next: Address | None = None


class EnvironmentPage(Page):
    """A page of environments."""

    data: list[EnvironmentSummary]


class StarInfo(Record):
    """Whether the caller marked an environment, and how many users did."""

    starred: bool
    stars: Count


class DayOfDownloads(Record):
    """The files of one version that were sent on one day."""

    day: date
    """In UTC."""
    version: Release
    downloads: Count


class DownloadHistory(Record):
    """Downloads of an environment; what came in the last seconds may still be missing."""

    total: Count
    """Of all time."""
    days: list[DayOfDownloads] = Field(default_factory=list)
    """The newest day first; days without downloads are left out."""


class ModelUse(Record):
    """A model, and in how many runs it played."""

    model: Line
    runs: Count


class UsedBy(Record):
    """Who uses an environment, as far as the caller may see it."""

    required_by: list[EnvironmentSummary] = Field(default_factory=list)
    """Environments whose newest version requires its distribution."""
    forks: list[EnvironmentSummary] = Field(default_factory=list)
    runs: Count = 0
    """All public runs."""
    models: list[ModelUse] = Field(default_factory=list)
    """Models of the last 500 of them, the most used first."""
    authors: list[Text] = Field(default_factory=list)
    """Who posted these, most of them first."""


class RunPage(Page):
    """A page of runs, whose manifests have no `example_ids` and `strata`: `summary.expected` counts what they
    play, and each run by itself has them."""

    data: list[RunDetail]


class RolloutPage(Record):
    """A page of a run's rollouts, by offset."""

    data: list[RolloutRow]
    total: Count
    offset: Count


class HealthStatus(Record):
    """What `/health` answers."""

    status: Literal["ok", "degraded"]
    version: Word
    database: bool
    storage: bool
    room: bool = True
    """Whether the disk has room for uploads."""
