"""`wander auth invitation`: the roles that others offer you."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from wander_client.context import current
from wander_client.terminal.command import Argument, CommandGroup

if TYPE_CHECKING:
    from wander.wire.people import InvitationInfo

    from wander_client.hub.api import HubApi

_INVITATIONS = "/api/v1/account/invitations"

app = CommandGroup(help="List, accept and decline the roles that others offer you.")

Target = Annotated[str, Argument(help="owner, or owner/name for one environment")]


@app.command("list")
def list_invitations() -> None:
    """List what you are invited to.

    \b
    wander auth invitation list
    """
    here = current()
    with here.hub(login=True) as hub:
        found = _read(hub)
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


def _read(hub: HubApi) -> list[InvitationInfo]:
    from wander.wire.people import InvitationList

    return hub.read(_INVITATIONS, InvitationList).data


def _answer(target: str, *, accept: bool) -> None:
    from wander.wire.people import InvitationInfo

    from wander_client.errors import NotFound
    from wander_client.names import parse_name

    here = current()
    wanted = str(parse_name(target)) if "/" in target else target.lower()
    with here.hub(login=True) as hub:
        found = next((one for one in _read(hub) if one.target == wanted), None)
        if found is None:
            raise NotFound(
                f"no invitation to `{target}` waits for you",
                hint="run `wander auth invitation list`",
                code="invitation_not_found",
            )
        method, below = ("POST", "/accept") if accept else ("DELETE", "")
        told = hub.change(method, f"{_INVITATIONS}/{found.id}{below}", InvitationInfo)
    text = f"you are {told.role} of {told.target} now" if accept else f"declined {told.target}"
    here.output.answer(told, text)
