"""The hub's JSON answers about environments, versions, runs and rollouts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from datetime import datetime
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
"""Role of a user. A `reader` may read and post results. A `maintainer` may also publish, yank and deprecate.
An `owner` may do everything."""
TokenScope = Literal["read", "results", "publish", "manage"]
"""Permission of a token. Every scope includes reading. A token never exceeds the rights of its user."""
TOKEN_SCOPES: tuple[TokenScope, ...] = ("read", "results", "publish", "manage")
ProjectStatus = Literal["active", "deprecated", "archived", "quarantined"]
"""Status as defined by PEP 792. An archived environment rejects uploads. A quarantined environment also does
not offer its files."""


class FileInfo(Record):
    """A distribution file of a version."""

    filename: FileName
    kind: Literal["wheel", "sdist"]
    size: Count
    """Size in bytes."""
    sha256: Sha256
    url: Address
    uploaded_at: datetime


MESSAGE_LENGTH = 500
"""Maximum number of characters of a check's message that a hub stores."""
CheckStatus = Literal["pass", "warn", "fail", "skip"]


class CheckFinding(Record):
    """A check that did not pass."""

    id: str = Field(pattern=r"^[a-z0-9.-]{1,64}$")
    """Stable id of the check, as in `CHECKS` of `wander.checks`."""
    status: Literal["warn", "fail", "skip"]
    message: str = Field(default="", max_length=MESSAGE_LENGTH)


class CheckSummary(Record):
    """The results of `wander check` on the publisher's machine. The hub did not repeat the checks."""

    wander: str = Field(pattern=r"^[0-9A-Za-z.+!-]{1,50}$")
    """Version of the SDK that ran the checks."""
    passed: int = Field(ge=0, le=1000)
    warned: int = Field(ge=0, le=1000)
    failed: int = Field(ge=0, le=1000)
    skipped: int = Field(ge=0, le=1000)
    """Number of checks that could not run or do not apply."""
    findings: list[CheckFinding] = Field(default_factory=list, max_length=200)
    """Every check that did not pass, in the order of the report."""

    @model_validator(mode="after")
    def _counts_agree(self) -> Self:
        stated = {"warn": self.warned, "fail": self.failed, "skip": self.skipped}
        for status, number in stated.items():
            if sum(finding.status == status for finding in self.findings) != number:
                raise ValueError(f"the number of findings with status `{status}` differs from its count")
        return self

    @classmethod
    def of(cls, wander: str, checks: Sequence[tuple[str, CheckStatus, str]]) -> Self:
        """Summarize checks that version `wander` of the SDK ran, given as (id, status, message)."""
        count = Counter(status for _, status, _ in checks)
        return cls(
            wander=wander,
            passed=count["pass"],
            warned=count["warn"],
            failed=count["fail"],
            skipped=count["skip"],
            findings=[
                # A message may contain output of the environment: text of any length, even invalid Unicode.
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
        """Counts in words, such as `27 passed, 1 warning`."""
        parts = [f"{self.passed} passed"]
        if self.failed:
            parts.append(f"{self.failed} failed")
        if self.warned:
            parts.append(f"{self.warned} warning{'s' if self.warned > 1 else ''}")
        if self.skipped:
            parts.append(f"{self.skipped} skipped")
        return ", ".join(parts)


class UploadWarning(Record):
    """A fault in a file that the hub accepts nevertheless. docs/package-index.md lists the rules."""

    code: str = Field(pattern=r"^[a-z0-9_]{1,64}$")
    detail: str = Field(default="", max_length=2000)
    hint: Text | None = None
    filename: FileName | None = None
    """File with the fault, if the version has several files."""


class LockInfo(Record):
    """The lock of a version (PEP 751), which pins the files of every package that it was published with."""

    sha256: Sha256
    size: Count
    """Size in bytes."""
    url: Address
    """Address of the `pylock.toml`, which pip and uv can install."""
    attached_at: datetime


class VersionDetail(Record):
    """An immutable version. The hub read all metadata from the version's files."""

    owner: OwnerName
    name: ProjectName
    version: Release
    summary: Text = ""
    requires_python: Line | None = None
    requires_dist: list[Line] = Field(default_factory=list)
    license: Line | None = None
    tags: list[Line] = Field(default_factory=list)
    entry_point: Line | None = None
    """`module:function` of the entry point in group `wander.environments`; None if the package declares none
    and its module is loaded instead."""
    uploaded_at: datetime
    uploaded_by: Line
    yanked: bool = False
    yanked_reason: Text | None = None
    deleted_at: datetime | None = None
    """Time of deletion. The files of a deleted version are gone, and its number cannot be used again."""
    deleted_reason: Text | None = None
    files: list[FileInfo] = Field(default_factory=list)
    lock: LockInfo | None = None
    """Lock of the version; None after `wander publish --no-lock` or an upload with another tool."""
    check: CheckSummary | None = None
    """Check results as the publisher states them; None if the publisher sent no results."""
    warnings: list[UploadWarning] = Field(default_factory=list)
    """Warnings of the hub about the version's files; after the upload of a single file, about that file
    only."""
    source: SourceInfo | None = None
    """Facts about the source archive; None without a source archive."""


Visibility = Literal["public", "internal", "private"]
"""Visibility of an environment or a model: everyone, all signed-in users, or only users who have a role on it
or on its owner."""


def visibility_of(private: bool, *, internal: bool = False) -> Visibility:
    """Return the visibility that the two flags encode. An internal environment is also marked private."""
    if internal:
        return "internal"
    return "private" if private else "public"


def marks_of(wanted: Visibility) -> tuple[bool, bool]:
    """Return the flags `private` and `internal` that encode a visibility; inverse of `visibility_of`."""
    return wanted != "public", wanted == "internal"


def wanted_visibility(private: bool | None, *, internal: bool) -> Visibility | None:
    """Return the requested visibility, or None if the owner's default applies."""
    return None if private is None and not internal else visibility_of(bool(private), internal=internal)


class EnvironmentSummary(Record):
    """An environment in a list or in search results."""

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
    """Whether the environment is hidden from anonymous visitors."""
    internal: bool = Field(default=False, exclude_if=lambda internal: not internal)
    """Whether every signed-in user sees the environment; `private` is then also true."""
    status: ProjectStatus = "active"
    downloads: Count = 0
    """Number of downloaded files, over all versions."""


class EnvironmentDetail(EnvironmentSummary):
    """An environment with its newest version and a list of all versions."""

    created_at: datetime
    readme: LongText = ""
    """README in Markdown or plain text, as published."""
    latest: VersionDetail
    all_versions: list[Release]
    """All versions that were not deleted, newest first."""
    yanked_versions: list[Release] = Field(default_factory=list)
    """Versions among them that are yanked, so installers skip them."""
    status_reason: Text | None = None
    successor: Line | None = None
    """`owner/name` to use instead of a deprecated environment."""


class ArtifactInfo(Record):
    """A file that was posted with a run, such as metrics, plots or configuration."""

    name: FileName
    media_type: Line
    size: Count
    """Size in bytes."""
    sha256: Sha256
    url: Address


class RunDetail(Record):
    """A posted run, with the facts that the hub recorded about it."""

    run_id: RunId
    name: RunName | None = None
    """Name that the submitter gave the run, if any. It is not part of the run's record or digest."""
    manifest: RunManifest = Field(repr=False)
    summary: RunSummary
    level: VerificationLevel
    level_reason: Text = ""
    sha256: Sha256
    """Digest of the posted manifest, rollouts and artifacts."""
    posted_by: Line
    posted_at: datetime
    url: Address
    """Address of the run's page."""
    looks_like: list[Line] = Field(default_factory=list)
    """Other model names that are easily confused with this run's model name, in lists of runs: its spelling
    in ASCII, and names in the same environment."""
    version_deleted: bool = False
    """Whether the environment version has been deleted. The results remain, but the version cannot be
    installed any more."""
    artifacts: list[ArtifactInfo] = Field(default_factory=list)
    rollouts_sha256: Sha256 | None = None
    """Digest of the rollouts (`wander.wire.postings.RolloutsDigest`); None without rollouts."""
    private: bool = False
    withdrawn: Withdrawal | None = None
    """Withdrawal of the rollouts by the submitter, if any. Aggregates and digests remain."""
    signature: SignatureInfo | None = None


class RolloutRow(Record):
    """A rollout in a list. `GET .../rollouts/{number}` returns the whole rollout."""

    number: Count
    """Index of the rollout, from 0, in the manifest's order of examples."""
    example_id: Text
    index: Count
    reward: float | None
    stop_reason: Text | None
    failure: Text | None
    """Boundary where the rollout failed; None for a scored rollout."""
    truncated: bool
    turns: Count
    completion_tokens: Count
    seconds: float
    preview: Text
    """Beginning of the last assistant message."""
    step: Count | None = None
    """Training step of the policy that played the rollout; None for other kinds of runs."""


class RunMatches(Record):
    """A run with rollouts that a search found."""

    run_id: Line
    environment: Line
    """`owner/name`."""
    model: Text
    posted_at: datetime
    matching: Count
    """Number of rollouts that match."""
    rollouts: list[RolloutRow]
    """The first of them."""
    searched: Literal["transcripts", "rows"] = "transcripts"
    """Parts that the text was searched in: whole transcripts, or, in a large run, in the example's id and the
    beginning of the last reply."""


class TokenInfo(Record):
    """An API token without its secret."""

    name: Line
    prefix: Word
    created_at: datetime
    last_used_at: datetime | None = None
    scopes: list[TokenScope] = Field(default_factory=lambda: list(TOKEN_SCOPES))
    target: Target | None = None
    """`owner` or `owner/name` that the token is limited to; None means everything that its user may
    access."""
    expires_at: datetime | None = None
    revoked: bool = False


class Problem(Record):
    """RFC 9457 problem details, which every error answer of the hub contains."""

    type: Line = "about:blank"
    title: Text
    status: Count
    detail: Text = ""
    code: Word
    """Stable code in snake case, which the client maps to an exception and an exit status."""
    hint: Text | None = None
    request_id: Line | None = None
    errors: list[Values] | None = None


class Page(Record):
    """Base of answers with a list, which subclasses declare as `data`."""

    next: Address | None = None
    """Opaque cursor of the next page; None on the last page."""


class EnvironmentPage(Page):
    """A page of environments."""

    data: list[EnvironmentSummary]


class RunPage(Page):
    """A page of runs. Their manifests omit `example_ids` and `strata`, which the answer for a single run has.

    `summary.expected` is the number of rollouts of the complete run.
    """

    data: list[RunDetail]


class RolloutSearchPage(Page):
    """Runs with matching rollouts, newest run first. A page may be empty although another one follows."""

    data: list[RunMatches]
    searched_runs: Count
    """Number of runs that this page covers."""
    too_large: list[Line] = Field(default_factory=list)
    """Runs on this page that were not searched, because they have too many rollouts."""
    missing: list[Line] = Field(default_factory=list)
    """Runs on this page that were not searched, because the hub's storage lacks a file of theirs."""


class RolloutPage(Record):
    """A page of a run's rollouts, by offset."""

    data: list[RolloutRow]
    total: Count
    offset: Count


class HealthStatus(Record):
    """The answer of `/health`."""

    status: Literal["ok", "degraded"]
    version: Word
    database: bool
    storage: bool
    room: bool = True
    """Whether the disk has enough free space for uploads."""
