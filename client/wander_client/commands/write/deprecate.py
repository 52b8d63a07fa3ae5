"""`wander deprecate`: say that an environment should no longer be used, or take nothing more for it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from wander_client.context import current
from wander_client.errors import UsageError
from wander_client.terminal.command import command_app

if TYPE_CHECKING:
    from wander.wire import ProjectStatus

app = command_app()


@app.command()
def deprecate(
    environment: Annotated[str, typer.Argument(help="owner/name")],
    reason: Annotated[str | None, typer.Option(help="reason, shown to everybody")] = None,
    successor: Annotated[str | None, typer.Option(help="owner/name to use instead")] = None,
    archive: Annotated[bool, typer.Option("--archive", help="archive it: accept no more uploads")] = False,
    quarantine: Annotated[
        bool, typer.Option("--quarantine", help="serve no files either (administrators only)")
    ] = False,
    undo: Annotated[bool, typer.Option("--undo", help="make it active again")] = False,
) -> None:
    """Mark an environment as deprecated, archived or quarantined; installers and pages tell so.

    \b
    wander deprecate acme/wordle --reason "scores are biased" --successor acme/wordle2
    wander deprecate acme/wordle --archive
    wander deprecate acme/wordle --undo
    """
    from wander.wire.changes import NewStatus

    from wander_client.hub import administration
    from wander_client.names import parse_name

    here = current()
    name = parse_name(environment)
    if name.version is not None:
        hint = f"`wander yank {name}` marks one version"
        raise UsageError("a status is that of the whole environment", hint=hint)
    chosen: dict[ProjectStatus, bool] = {"archived": archive, "quarantined": quarantine, "active": undo}
    given = [status for status, wanted in chosen.items() if wanted]
    if len(given) > 1:
        raise UsageError("`--archive`, `--quarantine` and `--undo` exclude each other", hint="give one")
    status: ProjectStatus = given[0] if given else "deprecated"
    if successor is not None and status != "deprecated":
        raise UsageError("only a deprecated environment has a successor", hint="leave `--successor` out")
    wanted = NewStatus(status=status, reason=reason, successor=successor)
    with here.hub(login=True) as hub:
        detail = administration.set_status(hub, name, wanted)
    here.output.answer(detail, f"{detail.owner}/{detail.name} is {detail.status}")
