"""`wander check`: test an environment for common faults."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

from wander_client.context import current
from wander_client.environments.sandbox import SandboxFlag, SandboxLimits, choose_policy, confines, hide_own
from wander_client.errors import FAILED, OK, UsageError
from wander_client.names import source_spec
from wander_client.terminal.command import (
    Argument,
    EnvironmentArguments,
    EnvironmentArgumentsJSON,
    Option,
    refuse_options,
)
from wander_client.terminal.output import counted

if TYPE_CHECKING:
    from wander.checks import CheckReport, CheckResult
    from wander.sandbox import SandboxPolicy
    from wander.wire.verification import CheckedWith, LearningReport

    from wander_client.environments.location import Location

SIGNS = {"pass": ("ok", None), "warn": ("warn", "warning"), "fail": ("FAULT", "error"), "skip": ("-", None)}


def check(
    environment: Annotated[str, Argument(help="./folder, or owner/name[@version]")] = ".",
    argument: EnvironmentArguments = None,
    args: EnvironmentArgumentsJSON = None,
    strict: Annotated[bool, Option("--strict", help="treat warnings as faults")] = False,
    learn: Annotated[bool, Option("--learn", help="also train a tiny policy on it, for minutes")] = False,
    sandbox: SandboxFlag = None,
    sandbox_limit: SandboxLimits = None,
    report_format: Annotated[
        Literal["openenv"] | None, Option("--report", help="print a JSON report in this format")
    ] = None,
) -> int:
    """Test an environment for common faults. This does not need a model.

    \b
    wander check .
    wander check admin/tictactoe --json
    wander check . --report openenv > report.json
    wander check someone/new-env --sandbox
    wander check . --learn

    The environment is loaded in two processes with different hash seeds and time zones. Scripted players play
    it: some answer correctly, some give no answer, and some cheat. Each process replays the rollouts of the
    other, to find differences. Exit status 1 means that a check failed.

    `--report openenv` prints a validation report of OpenEnv's RFC 008 instead. It skips the checks
    that Wander does not make.

    With `--learn`, a fixed recipe then trains a tiny policy on one core, in at most 10 minutes of processor
    time, and reports its reward before and after. On the same platform, the numbers are always the same. If
    the policy does not learn, the result is "not shown". That does not count as a failed check.
    """
    from wander.checks import check_environment

    from wander_client.environments.location import locate, parse_arguments

    output = current().output
    if report_format is not None:
        refuse_options("learn", because="is not part of OpenEnv's report")
    policy = choose_policy(
        sandbox, sandbox_limit, default=confines(current().settings, source_spec(environment))
    )
    location = locate(current(), source_spec(environment))
    arguments = parse_arguments(argument or [], args)
    confined = None if policy is None else hide_own(policy, current().settings)
    report = check_environment(
        location.folder or location.target,
        arguments,
        python=location.python,
        sandbox=confined,
        runtime=location.runtime,
    )
    if arguments and (error := report.unfit_arguments):  # a mistake of the caller, not of the environment
        raise UsageError(error.message, hint=error.hint, code="bad_arguments")
    bad = {"fail", "warn"} if strict else {"fail"}
    failed = [result for result in report.checks if result.status in bad]
    if report_format is not None:
        output.document(_openenv_report(report, location, policy))
        return FAILED if failed else OK
    _show_all(report)
    completed = [result for result in report.checks if result.status != "skip"]
    warned = sum(result.status == "warn" for result in completed)
    warnings = f", {warned} warning{'s'[: warned != 1]}" if warned else ""
    text = f"{len(completed) - warned} checks passed{warnings}"
    if failed:
        text = f"{len(failed)} of {len(completed)} checks failed"
    data = {**report.model_dump(mode="json", by_alias=True), "passed": not failed}
    data["kind"] = report.info.kind if report.info else None
    data["made_with"] = _checked_with(location, policy).model_dump(mode="json")
    if learn:
        learned = _prove_learning(location, arguments, confined)
        text += f"\n{learned.describe()}"
        data["learning"] = {**learned.model_dump(mode="json", by_alias=True), "digest": learned.digest}
    output.answer(data, text)
    return FAILED if failed else OK


def _openenv_report(report: CheckReport, location: Location, policy: SandboxPolicy | None) -> dict[str, Any]:
    """Return the report in the format of OpenEnv's RFC 008."""
    from wander.sandbox import SandboxPolicy

    from wander_client.environments.location import project_version
    from wander_client.packages.origins.source import folder_digest
    from wander_client.packages.origins.task_folders import load_format

    made_with = _checked_with(location, policy)
    digest = made_with.wheel_sha256
    if digest is None:
        digest = "" if location.folder is None else folder_digest(location.folder)
    document: dict[str, Any] = load_format("openenv").openenv_report(
        report,
        version=project_version(location),
        source_digest=digest,
        limits=policy or SandboxPolicy(),
        is_locked=made_with.lock_sha256 is not None,
        is_confined=policy is not None,
    )
    return document


def _prove_learning(
    location: Location, arguments: dict[str, Any], sandbox: SandboxPolicy | None
) -> LearningReport:
    """Train a tiny policy on an environment, and show the progress."""
    from wander.learning import prove_learning

    with current().output.progress("learning", None) as bar:

        def show(stage: str, done: int, total: int) -> None:
            bar.total = total
            bar.update(done, stage)

        return prove_learning(
            location.folder or location.target,
            arguments,
            python=location.python,
            sandbox=sandbox,
            runtime=location.runtime,
            progress=show,
        )


def _checked_with(location: Location, policy: SandboxPolicy | None) -> CheckedWith:
    """Return the versions and digests that were checked, and the sandbox that was used."""
    import platform

    from wander.version import __version__
    from wander.wire.verification import CheckedWith

    pin = None
    if policy is not None:
        from wander.sandbox.bubblewrap import sandbox_pin

        pin = sandbox_pin(policy)
    record = location.installed.record if location.installed else None
    return CheckedWith(
        wander=__version__,
        python=platform.python_version(),
        wheel_sha256=record.wheel_sha256 if record else None,
        lock_sha256=record.lock_sha256 if record else None,
        sandbox=pin,
    )


def _show_all(report: CheckReport) -> None:
    from wander.checks.report import NOT_LOOKED_AT

    skipped = [result for result in report.checks if result.message == NOT_LOOKED_AT]
    for result in report.checks:
        if result not in skipped:
            _show(result)
    if skipped:
        current().output.line(f"{'-':<6} {counted(len(skipped), 'check')} {NOT_LOOKED_AT}")


def _show(check: CheckResult) -> None:
    output = current().output
    sign, style = SIGNS[check.status]
    text = check.message or check.title
    if check.example_id is not None:
        text += f" (example `{check.example_id}`)"
    output.line(f"{sign:<6} {check.id:<20} {text}", style=style)
    if check.status in ("warn", "fail"):
        output.line(f"{'':<6} {'':<20} {check.doc}", style="hint")
