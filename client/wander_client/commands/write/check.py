"""`wander check`: find faults in an environment before others do."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from wander_client.context import current
from wander_client.environments.sandbox import SandboxFlag, SandboxLimits, choose_policy, confines, hide_own
from wander_client.errors import FAILED, OK, UsageError
from wander_client.names import source_spec
from wander_client.terminal.command import Argument, Option
from wander_client.terminal.output import counted

if TYPE_CHECKING:
    from wander.checks import CheckResult
    from wander.sandbox import SandboxPolicy
    from wander.wire.verification import CheckedWith

    from wander_client.environments.location import Location

SIGNS = {"pass": ("ok", None), "warn": ("warn", "warning"), "fail": ("FAULT", "error"), "skip": ("-", None)}


def check(
    environment: Annotated[str, Argument(help="folder, or owner/name[@version]")] = ".",
    argument: Annotated[list[str] | None, Option("-a", "--arg", help="environment: KEY=VALUE")] = None,
    args: Annotated[str | None, Option("--args", help="environment arguments, a JSON object")] = None,
    strict: Annotated[bool, Option("--strict", help="treat warnings as faults")] = False,
    sandbox: SandboxFlag = None,
    sandbox_limit: SandboxLimits = None,
) -> int:
    """Find faults in an environment before others do; no model is needed.

    \b
    wander check .
    wander check admin/tictactoe --json
    wander check someone/new-env --sandbox

    It is loaded twice, in processes that differ in hash seed and time zone, and played by scripted players:
    right ones, silent ones, cheating ones. What one process played, the other plays again and compares. Exit
    status 1 means that a fault was found.
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
    if arguments and (refused := report.unfit_arguments):  # which is no fault of the environment
        raise UsageError(refused.message, hint=refused.hint, code="bad_arguments")
    left_out = [each for each in report.checks if each.message == NOT_LOOKED_AT]
    for each in report.checks:
        if each not in left_out:
            _show(each)
    if left_out:
        output.line(f"{'-':<6} {counted(len(left_out), 'check')} {NOT_LOOKED_AT}")
    bad = {"fail", "warn"} if strict else {"fail"}
    faults = [each for each in report.checks if each.status in bad]
    looked = [each for each in report.checks if each.status != "skip"]
    warned = sum(each.status == "warn" for each in looked)
    warnings = f", {warned} warning{'s'[: warned != 1]}" if warned else ""
    said = f"{len(looked) - warned} checks passed{warnings}"
    if faults:
        said = f"{len(faults)} of {len(looked)} checks failed"
    data = {**report.model_dump(mode="json", by_alias=True), "passed": not faults}
    data["kind"] = report.info.kind if report.info else None
    made_with = _construct(location, policy)
    output.answer({**data, "made_with": made_with.model_dump(mode="json")}, said)
    return FAILED if faults else OK


def _construct(location: Location, policy: SandboxPolicy | None) -> CheckedWith:
    """Return what says which files were checked, and how they were confined."""
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
    said = check.message or check.title
    if check.example_id is not None:
        said += f" (example `{check.example_id}`)"
    output.line(f"{sign:<6} {check.id:<20} {said}", style=style)
    if check.status in ("warn", "fail"):
        output.line(f"{'':<6} {'':<20} {check.doc}", style="hint")
