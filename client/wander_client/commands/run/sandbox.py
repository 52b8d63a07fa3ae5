"""`wander sandbox`: see whether the sandbox holds on this machine."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

from wander_client.context import current
from wander_client.errors import FAILED, OK
from wander_client.terminal.command import CommandGroup, Option

if TYPE_CHECKING:
    from wander.worker.process.sandbox_check import SandboxReport

app = CommandGroup("See whether the sandbox holds on this machine.")


@app.command()
def check(
    everything: Annotated[bool, Option("--all", help="also list the attempts that were blocked")] = False,
) -> int:
    """Make a sandbox and try to get out of it in some 150 ways.

    \b
    wander sandbox check
    wander sandbox check --all
    wander sandbox check --json

    Exit status 0 means that all were stopped, 1 that one was not or that there can be no sandbox here.
    """
    from wander.worker.process.sandbox_check import check_sandbox

    output = current().output
    with output.progress("trying to get out", None, unit="attempts"):
        report = check_sandbox()
    for warning in report.warnings:
        output.warn(warning)
    output.answer(
        {**asdict(report), "held": not report.escaped}, lambda: _show(report, everything=everything)
    )
    return FAILED if report.escaped else OK


def _show(report: SandboxReport, *, everything: bool) -> None:
    output = current().output
    bound = "all processes together" if report.memory_bound == "cgroup" else "each process by itself"
    output.table(
        ["what", "here"],
        [
            ["bubblewrap", f"{report.version} ({report.bwrap})"],
            ["system call filter", f"for {report.machine}"],
            ["runs as", report.user],
            ["memory limit", f"for {bound}"],
            ["profile", f"sha256:{report.profile_sha256[:12]}"],
            ["attempts", f"{len(report.outcomes)} in {report.seconds:.1f} s"],
            ["got out", str(len(report.escaped))],
        ],
    )
    shown = report.outcomes if everything else report.escaped
    if shown:
        rows = [[each.name, "stopped" if each.held else "OPEN", each.how] for each in shown]
        output.line()
        output.table(["attempt", "outcome", "by"], rows, shrink=["by"])
