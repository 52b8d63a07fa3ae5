"""`wander auth org`: organizations, and the owners that gave you a role."""

from __future__ import annotations

from typing import Annotated

from wander_client.context import current
from wander_client.names import quote_part
from wander_client.terminal.command import Argument, CommandGroup, Yes

app = CommandGroup(
    help="""Create and delete organizations, and list the owners in which you have a role.

    \b
    wander env owner add acme ada        invite somebody
    wander env owner leave acme          leave an organization""",
)

_OWNERS = "/api/v1/owners"


@app.command()
def new(name: Annotated[str, Argument(help="1 to 39 of a-z, 0-9 and `-`")]) -> None:
    """Create an organization. You are its first owner.

    \b
    wander auth org new acme
    """
    from wander.wire.people import NewOwner, OwnerInfo

    from wander_client.failures import validate

    here = current()
    wanted = validate(NewOwner, {"name": name.lower()}, "run `wander auth org new --help` for an example")
    with here.hub(login=True) as hub:
        created = hub.change("POST", _OWNERS, OwnerInfo, wanted)
    here.output.answer(created, f"created {created.name}; you are its {created.role}")


@app.command()
def remove(
    name: Annotated[str, Argument(help="an organization that you own")],
    yes: Yes = False,
) -> None:
    """Delete an organization with all its roles, invitations, tokens and trusted publishers.

    \b
    wander auth org remove acme

    Its environments, runs and models stay on the hub, managed by the hub's administrators. The name cannot be
    used again.
    """
    here = current()
    here.output.confirm(name, f"delete {name} permanently", yes=yes)
    with here.hub(login=True) as hub:
        hub.change("DELETE", f"/api/v1/organizations/{quote_part(name)}", None)
    here.output.answer({"name": name, "removed": True}, f"deleted {name}")


@app.command("list")
def list_owners() -> None:
    """List the owners in which you have a role.

    \b
    wander auth org list
    """
    from wander.wire.people import OwnerList

    here = current()
    with here.hub(login=True) as hub:
        owners = hub.read(_OWNERS, OwnerList).data
    rows = [[owner.name, owner.kind, owner.role] for owner in owners]
    here.output.answer(owners, lambda: here.output.table(["owner", "kind", "role"], rows))
