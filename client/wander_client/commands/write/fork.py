"""`wander fork`: begin an environment of your own with a version of another's."""

from __future__ import annotations

from typing import Annotated

import typer

from wander_client.context import current


def fork(
    environment: Annotated[str, typer.Argument(help="owner/name, or owner/name@version")],
    owner: Annotated[str | None, typer.Option(help="owner of the copy  [default: you]")] = None,
) -> None:
    """Begin an environment of your own with a version of another's; its page names where it came from.

    \b
    wander fork acme/wordle
    wander fork acme/wordle@0.2.0 --owner lab
    """
    from wander.wire.changes import NewPlace

    from wander_client.hub import administration
    from wander_client.names import parse_name

    here = current()
    name = parse_name(environment)
    with here.hub(login=True) as hub:
        target = owner or hub.whoami().user
        detail = administration.fork(hub, name, NewPlace(owner=target.lower(), version=name.version))
    label = f"{detail.owner}/{detail.name}"
    here.output.answer(detail, f"forked {detail.parent or name} to {label}")
    here.output.next(f"wander install {label}")
