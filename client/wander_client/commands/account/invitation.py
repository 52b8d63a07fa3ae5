"""`wander auth invitation`: the roles that others offer you."""

from __future__ import annotations

from typing import Annotated

from wander_client.context import current
from wander_client.terminal.command import Argument, CommandGroup

app = CommandGroup(help="List, accept and decline the roles that others offer you.")

Target = Annotated[str, Argument(help="owner, or owner/name for one environment")]


@app.command("list")
def list_invitations() -> None:
    """List what you are invited to.

    \b
    wander auth invitation list
    """
    from wander_client.hub import administration

    here = current()
    with here.hub(login=True) as hub:
        found = administration.invitations(hub)
    rows = [[one.target, one.role, one.invited_by, f"{one.expires_at:%Y-%m-%d}"] for one in found]
    here.output.answer(found, lambda: here.output.table(["to", "role", "by", "until"], rows))


@app.command()
def accept(target: Target) -> None:
    """Take a role that waits for you.

    \b
    wander auth invitation accept acme
    wander auth invitation accept acme/wordle
    """
    _answer(target, accept=True)


@app.command()
def decline(target: Target) -> None:
    """Refuse a role that waits for you.

    \b
    wander auth invitation decline acme
    """
    _answer(target, accept=False)


def _answer(target: str, *, accept: bool) -> None:
    from wander_client.hub import administration

    here = current()
    with here.hub(login=True) as hub:
        told = administration.answer_invitation(hub, target, accept=accept)
    text = f"you are {told.role} of {told.target} now" if accept else f"declined {told.target}"
    here.output.answer(told, text)
