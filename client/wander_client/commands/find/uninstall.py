"""`wander uninstall`: remove an installed environment from this machine."""

from __future__ import annotations

from typing import Annotated

import typer

from wander_client.context import current
from wander_client.errors import NotFound
from wander_client.terminal.command import command_app

app = command_app()


@app.command()
def uninstall(
    environment: Annotated[str, typer.Argument(help="owner/name (all versions) or owner/name@version")],
) -> None:
    """Remove an installed environment from this machine; runs and the hub keep what they have.

    \b
    wander uninstall wander/tictactoe
    wander uninstall wander/tictactoe@0.1.0
    """
    from wander_client.commands.find.install import record_of
    from wander_client.names import parse_name
    from wander_client.packages.store import EnvironmentStore

    here = current()
    name = parse_name(environment)
    store = EnvironmentStore(here.settings.data_dir, here.output.warn)
    found = [
        one
        for one in store.all()
        if (one.record.owner, one.record.name) == (name.owner, name.name)
        and name.version in (None, one.record.version)
    ]
    if not found:
        raise NotFound(f"`{name}` is not installed", hint="`wander list` shows what is", code="not_installed")
    with store.locked(name):
        for one in found:
            store.remove(one)
    said = ", ".join(str(one.name) for one in found)
    here.output.answer([record_of(one) for one in found], f"uninstalled {said}")
