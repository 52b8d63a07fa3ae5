"""The check that a package passes before it is published, and what the hub is told of it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from wander.version import __version__ as sdk_version
from wander.wire import CheckFinding, CheckSummary

from wander_client.errors import ClientError

if TYPE_CHECKING:
    from wander.checks import CheckReport, CheckResult

MESSAGE_LENGTH = 500
"""Characters of a message that the hub takes."""


def require_sound(folder: Path, given: Path) -> CheckReport:
    """Check an environment's folder; raises with a line for each fault.

    `given` is the folder as the user named it.
    """
    from wander.checks import check_environment

    report = check_environment(folder)
    if report.ok:
        return report
    looked = sum(each.status != "skip" for each in report.checks)
    raise ClientError(
        f"{len(report.failed)} of {looked} checks failed, so `{folder.name}` was not published",
        hint=f"`wander check {given}` says how to pass them; `--no-check` publishes anyway",
        code="check_failed",
        detail="\n".join(line_of(each) for each in report.failed),
    )


def line_of(check: CheckResult) -> str:
    """Return what a check found, in one line."""
    where = f" (example `{check.example_id}`)" if check.example_id is not None else ""
    return " ".join(f"{check.id}: {check.message or check.title}{where}".split())


def summary_of(report: CheckReport) -> CheckSummary:
    """Return what the hub is told: counts, and every check that did not pass."""
    findings = [
        CheckFinding(id=each.id, status=each.status, message=_short(each.message))
        for each in report.checks
        if each.status != "pass"
    ]
    statuses = [each.status for each in report.checks]
    return CheckSummary(
        wander=sdk_version,
        passed=statuses.count("pass"),
        warned=statuses.count("warn"),
        failed=statuses.count("fail"),
        skipped=statuses.count("skip"),
        findings=findings,
    )


def _short(message: str) -> str:
    """Cut a message to what the hub takes; it may hold anything that an environment said."""
    return message[:MESSAGE_LENGTH].encode(errors="replace").decode()
