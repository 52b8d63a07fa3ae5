"""`wander yank`: have installers pass a version over."""

from __future__ import annotations

from typing import Annotated

import typer

from wander_client.context import current
from wander_client.errors import UsageError
from wander_client.terminal.command import command_app

app = command_app()


@app.command()
def yank(
    environment: Annotated[str, typer.Argument(help="owner/name@version")],
    reason: Annotated[str | None, typer.Option(help="reason, shown to everybody")] = None,
    undo: Annotated[bool, typer.Option("--undo", help="undo: offer the version again")] = False,
) -> None:
    """Have installers pass a version over unless its exact number is asked for.

    \b
    wander yank acme/wordle@0.2.0 --reason "rewards were wrong"
    wander yank acme/wordle@0.2.0 --undo

    Nothing is removed: what is pinned to the version goes on working. `wander delete` removes files.
    """
    from wander_client.hub import administration
    from wander_client.names import parse_name

    here = current()
    name = parse_name(environment)
    if name.version is None:
        raise UsageError(f"`{environment}` names no version", hint=f"write `{name}@VERSION`")
    if undo and reason is not None:
        raise UsageError("`--undo` takes no `--reason`", hint=f"run `wander yank {name} --undo`")
    with here.hub(login=True) as hub:
        version = administration.yank(hub, name, reason, undo=undo)
    label = f"{version.owner}/{version.name}@{version.version}"
    here.output.answer(version, f"{'yanked' if version.yanked else 'offered again'}: {label}")
