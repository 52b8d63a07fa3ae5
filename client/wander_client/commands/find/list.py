"""`wander list`: what is installed on this machine."""

from __future__ import annotations

from wander_client.context import current
from wander_client.terminal.command import command_app

app = command_app()


@app.command(name="list")
def list_installed() -> None:
    """List installed environments, of all hubs.

    \b
    wander list
    wander list --json
    """
    from wander_client.commands.find.install import record_of
    from wander_client.packages.store import EnvironmentStore

    here = current()
    found = EnvironmentStore(here.settings.data_dir, here.output.warn).all()
    rows = [
        [
            f"{one.record.owner}/{one.record.name}",
            one.record.version,
            one.record.wheel_sha256[:12],
            one.record.lock_sha256[:12] if one.record.lock_sha256 else "none",
            f"{one.record.installed_at:%Y-%m-%d}",
            one.record.hub,
        ]
        for one in found
    ]
    if not found and here.output.human:
        here.output.note("no environment is installed")
        here.output.next("wander search")
        return
    columns = ["environment", "version", "sha256", "lock", "installed", "hub"]
    here.output.answer(
        [record_of(one) for one in found],
        lambda: here.output.table(columns, rows, shrink=["hub"], drop=["sha256", "installed", "lock"]),
    )
