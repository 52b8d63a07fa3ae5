"""`wander delete`: remove a version's files, or an environment, from the hub for good."""

from __future__ import annotations

from typing import Annotated

import typer

from wander_client.context import current
from wander_client.errors import UsageError
from wander_client.terminal.command import command_app

app = command_app()


@app.command()
def delete(
    environment: Annotated[str, typer.Argument(help="owner/name@version, or owner/name for all of it")],
    reason: Annotated[str | None, typer.Option(help="reason, shown to everybody")] = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="do not ask for confirmation")] = False,
) -> None:
    """Delete a version's files from the hub, or a whole environment; neither number nor name comes back.

    \b
    wander delete acme/wordle@0.2.0 --reason "held private data"
    wander delete acme/wordle --yes

    Posted runs keep their numbers and say that the version was deleted. What is merely wrong is better
    yanked: `wander yank acme/wordle@0.2.0`.
    """
    from wander_client.hub import administration
    from wander_client.names import parse_name

    here = current()
    name = parse_name(environment)
    if not yes:
        asked = f"Type `{name}` to delete it for good"
        if here.output.ask(asked, flag="--yes") != str(name):
            raise UsageError(f"`{name}` was not confirmed: nothing was deleted", hint="or pass `--yes`")
    with here.hub(login=True) as hub:
        if name.version is None:
            administration.delete_environment(hub, name, reason)
        else:
            administration.delete_version(hub, name, reason)
    here.output.answer({"deleted": str(name), "reason": reason}, f"deleted {name}")
