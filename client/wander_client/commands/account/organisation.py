"""`wander auth org`: the owners you belong to, and organisations of your own."""

from __future__ import annotations

from typing import Annotated

from wander_client.context import current
from wander_client.names import quote_part
from wander_client.terminal.command import Argument, CommandGroup, Yes

app = CommandGroup(
    help="""Make and remove organisations, and list the owners on which you have a role.

    \b
    wander env owner add acme ada        invite somebody
    wander env owner leave acme          give your own role up""",
)

_OWNERS = "/api/v1/owners"


@app.command()
def new(name: Annotated[str, Argument(help="1 to 39 of a-z, 0-9 and `-`")]) -> None:
    """Make an organisation; you are its first owner.

    \b
    wander auth org new acme
    """
    from wander.wire.people import NewOwner, OwnerInfo

    from wander_client.failures import validate

    here = current()
    wanted = validate(NewOwner, {"name": name.lower()}, "`wander auth org new --help` has an example")
    with here.hub(login=True) as hub:
        made = hub.change("POST", _OWNERS, OwnerInfo, wanted)
    here.output.answer(made, f"made {made.name}; you are its {made.role}")


@app.command()
def remove(
    name: Annotated[str, Argument(help="an organisation that you own")],
    yes: Yes = False,
) -> None:
    """Remove an organisation: all roles, invitations, tokens and trusted publishers of it end.

    \b
    wander auth org remove acme

    What it published stays, for the hub's administrators to look after, and nobody gets its name again.
    """
    here = current()
    here.output.confirm(name, f"remove {name} for good", yes=yes)
    with here.hub(login=True) as hub:
        hub.change("DELETE", f"/api/v1/organisations/{quote_part(name)}", None)
    here.output.answer({"name": name, "removed": True}, f"removed {name}")


@app.command("list")
def list_owners() -> None:
    """List the owners on which you have a role.

    \b
    wander auth org list
    """
    from wander.wire.people import OwnerList

    here = current()
    with here.hub(login=True) as hub:
        found = hub.read(_OWNERS, OwnerList).data
    rows = [[one.name, one.kind, one.role] for one in found]
    here.output.answer(found, lambda: here.output.table(["owner", "kind", "role"], rows))
