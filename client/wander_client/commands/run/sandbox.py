"""`wander sandbox`: test the sandbox on this machine, and remove what killed processes left."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

from wander_client.context import current
from wander_client.errors import FAILED, OK
from wander_client.terminal.command import CommandGroup, Option

if TYPE_CHECKING:
    from wander.worker.process.sandbox_check import SandboxReport

app = CommandGroup("Test the sandbox on this machine.")


@app.command()
def check(
    everything: Annotated[bool, Option("--all", help="also list the attempts that were blocked")] = False,
) -> int:
    """Start a sandbox and try to escape from it in about 150 ways.

    \b
    wander sandbox check
    wander sandbox check --all
    wander sandbox check --json

    Exit status 0 means that every attempt was blocked. Exit status 1 means that an attempt escaped, or that
    the sandbox is not available here.
    """
    from wander.worker.process.sandbox_check import check_sandbox

    output = current().output
    with output.progress("trying to escape", None, unit="attempts"):
        report = check_sandbox()
    for warning in report.warnings:
        output.warn(warning)
    output.answer(
        {**asdict(report), "held": not report.escaped}, lambda: _show(report, everything=everything)
    )
    return FAILED if report.escaped else OK


@app.command()
def sweep() -> None:
    """Remove the containers and control groups of boxes that were left behind by a killed process.

    \b
    wander sandbox sweep
    wander sandbox sweep --json

    Boxes in use are kept. You rarely need this command: Wander does the same when it next starts a box.
    """
    from wander.boxes.sweep import PROGRAMS, remove_left_groups, remove_orphans

    output = current().output
    removed = [name for program in PROGRAMS for name in remove_orphans(program)]
    remove_left_groups()

    def show() -> None:
        for name in removed:
            output.line(f"removed {name}")
        if not removed:
            output.note("no container was left")

    output.answer({"removed": removed}, show)


def _show(report: SandboxReport, *, everything: bool) -> None:
    output = current().output
    scope = "all processes together" if report.memory_bound == "cgroup" else "each process separately"
    output.table(
        ["property", "value"],
        [
            ["bubblewrap", f"{report.version} ({report.bwrap})"],
            ["system call filter", f"for {report.machine}"],
            ["runs as", report.user],
            ["memory limit", f"for {scope}"],
            ["profile", f"sha256:{report.profile_sha256[:12]}"],
            ["attempts", f"{len(report.outcomes)} in {report.seconds:.1f} s"],
            ["escaped", str(len(report.escaped))],
        ],
    )
    shown = report.outcomes if everything else report.escaped
    if shown:
        rows = [[outcome.name, "blocked" if outcome.held else "ESCAPED", outcome.how] for outcome in shown]
        output.line()
        output.table(["attempt", "outcome", "by"], rows, shrink=["by"])
