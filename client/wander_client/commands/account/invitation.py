"""`wander auth invitation`: roles that owners offered you."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from wander_client.context import current
from wander_client.terminal.command import Argument, CommandGroup

if TYPE_CHECKING:
    from wander.wire.people import InvitationInfo

    from wander_client.hub.api import HubApi

_INVITATIONS = "/api/v1/account/invitations"

app = CommandGroup(help="List, accept and decline roles that owners offered you.")

Target = Annotated[str, Argument(help="owner, or owner/name for one environment")]


@app.command("list")
def list_invitations() -> None:
    """List your pending invitations.

    \b
    wander auth invitation list
    """
    here = current()
    with here.hub(login=True) as hub:
        invitations = _read(hub)
    rows = [[item.target, item.role, item.invited_by, f"{item.expires_at:%Y-%m-%d}"] for item in invitations]
    here.output.answer(invitations, lambda: here.output.table(["to", "role", "by", "until"], rows))


@app.command()
def accept(target: Target) -> None:
    """Accept a role that you were offered.

    \b
    wander auth invitation accept acme
    wander auth invitation accept acme/wordle
    """
    _answer(target, accept=True)


@app.command()
def decline(target: Target) -> None:
    """Decline a role that you were offered.

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
        invitation = next((item for item in _read(hub) if item.target == wanted), None)
        if invitation is None:
            raise NotFound(
                f"you have no invitation to `{target}`",
                hint="run `wander auth invitation list`",
                code="invitation_not_found",
            )
        method, below = ("POST", "/accept") if accept else ("DELETE", "")
        answered = hub.change(method, f"{_INVITATIONS}/{invitation.id}{below}", InvitationInfo)
    text = f"you are now {answered.role} of {answered.target}" if accept else f"declined {answered.target}"
    here.output.answer(answered, text)
