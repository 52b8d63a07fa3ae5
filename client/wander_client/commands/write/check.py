"""`wander check`: test an environment for common faults."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from wander_client.context import current
from wander_client.environments.sandbox import SandboxFlag, SandboxLimits, choose_policy, confines, hide_own
from wander_client.errors import FAILED, OK, UsageError
from wander_client.names import source_spec
from wander_client.terminal.command import Argument, EnvironmentArguments, EnvironmentArgumentsJSON, Option
from wander_client.terminal.output import counted

if TYPE_CHECKING:
    from wander.checks import CheckResult
    from wander.sandbox import SandboxPolicy
    from wander.wire.verification import CheckedWith

    from wander_client.environments.location import Location

SIGNS = {"pass": ("ok", None), "warn": ("warn", "warning"), "fail": ("FAULT", "error"), "skip": ("-", None)}


def check(
    environment: Annotated[str, Argument(help="./folder, or owner/name[@version]")] = ".",
    argument: EnvironmentArguments = None,
    args: EnvironmentArgumentsJSON = None,
    strict: Annotated[bool, Option("--strict", help="treat warnings as faults")] = False,
    sandbox: SandboxFlag = None,
    sandbox_limit: SandboxLimits = None,
) -> int:
    """Test an environment for common faults. This does not need a model.

    \b
    wander check .
    wander check admin/tictactoe --json
    wander check someone/new-env --sandbox

    The environment is loaded in two processes with different hash seeds and time zones. Scripted players play
    it: some answer correctly, some give no answer, and some cheat. Each process replays the games of the
    other, to find differences. Exit status 1 means that a check failed.
    """
    from wander.checks import check_environment
    from wander.checks.report import NOT_LOOKED_AT

    from wander_client.environments.location import locate, parse_arguments

    output = current().output
    policy = choose_policy(
        sandbox, sandbox_limit, default=confines(current().settings, source_spec(environment))
    )
    location = locate(current(), source_spec(environment))
    arguments = parse_arguments(argument or [], args)
    report = check_environment(
        location.folder or location.target,
        arguments,
        python=location.python,
        sandbox=None if policy is None else hide_own(policy, current().settings),
        runtime=location.runtime,
    )
    if arguments and (error := report.unfit_arguments):  # a mistake of the caller, not of the environment
        raise UsageError(error.message, hint=error.hint, code="bad_arguments")
    skipped = [result for result in report.checks if result.message == NOT_LOOKED_AT]
    for result in report.checks:
        if result not in skipped:
            _show(result)
    if skipped:
        output.line(f"{'-':<6} {counted(len(skipped), 'check')} {NOT_LOOKED_AT}")
    bad = {"fail", "warn"} if strict else {"fail"}
    failed = [result for result in report.checks if result.status in bad]
    completed = [result for result in report.checks if result.status != "skip"]
    warned = sum(result.status == "warn" for result in completed)
    warnings = f", {warned} warning{'s'[: warned != 1]}" if warned else ""
    text = f"{len(completed) - warned} checks passed{warnings}"
    if failed:
        text = f"{len(failed)} of {len(completed)} checks failed"
    data = {**report.model_dump(mode="json", by_alias=True), "passed": not failed}
    data["kind"] = report.info.kind if report.info else None
    made_with = _checked_with(location, policy)
    output.answer({**data, "made_with": made_with.model_dump(mode="json")}, text)
    return FAILED if failed else OK


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


def _show(check: CheckResult) -> None:
    output = current().output
    sign, style = SIGNS[check.status]
    text = check.message or check.title
    if check.example_id is not None:
        text += f" (example `{check.example_id}`)"
    output.line(f"{sign:<6} {check.id:<20} {text}", style=style)
    if check.status in ("warn", "fail"):
        output.line(f"{'':<6} {'':<20} {check.doc}", style="hint")
