"""`wander sandbox`: test the sandbox on this machine, and remove what killed processes left."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

from wander_client.context import current
from wander_client.terminal.command import CommandGroup

if TYPE_CHECKING:
    from wander_client.terminal.output import Cell

app = CommandGroup("Test the sandbox on this machine, and clean up after it.")


@app.command()
def check() -> None:
    """Start a sandbox, and show what it offers on this machine.

    \b
    wander sandbox check
    wander sandbox check --json

    Exit status 1 means that the sandbox is not available here.
    """
    from wander.worker.process.sandbox_check import check_sandbox

    output = current().output
    report = check_sandbox()
    for warning in report.warnings:
        output.warn(warning)
    scope = "all processes together" if report.memory_bound == "cgroup" else "each process separately"
    rows: list[list[Cell]] = [
        ["bubblewrap", f"{report.version} ({report.bwrap})"],
        ["system call filter", f"for {report.machine}"],
        ["runs as", report.user],
        ["memory limit", f"for {scope}"],
        ["profile", f"sha256:{report.profile_sha256[:12]}"],
    ]
    output.answer(asdict(report), lambda: output.table(["property", "value"], rows))


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
