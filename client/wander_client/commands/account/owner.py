"""`wander env owner`: who may do what with an owner's environments, and whose they are."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, get_args

from wander_client.context import current
from wander_client.names import parse_name
from wander_client.terminal.command import Argument, CommandGroup, Option
from wander_client.terminal.suggestions import choose

if TYPE_CHECKING:
    from wander.wire.changes import Member

app = CommandGroup(
    help="""Roles, transfer, renaming and visibility.

    \b
    reader       sees private environments and posts results
    maintainer   also publishes, yanks and deprecates
    owner        also does everything else: roles, visibility, transfer, deletion""",
)

Target = Annotated[str, Argument(help="owner, or owner/name for one environment")]
Environment = Annotated[str, Argument(help="owner/name")]


@app.command("list")
def list_members(target: Target) -> None:
    """List who has a role.

    \b
    wander env owner list acme
    wander env owner list acme/wordle
    """
    from wander_client.hub import administration

    with current().hub(login=True) as hub:
        _show(administration.members(hub, target))


@app.command()
def add(
    target: Target,
    user: Annotated[str, Argument(help="user name")],
    role: Annotated[str, Option(help="reader, maintainer or owner")] = "maintainer",
) -> None:
    """Invite somebody to a role, or change that of a member.

    \b
    wander env owner add acme ada --role owner
    wander env owner add acme/wordle bob --role reader

    An invitation waits 14 days; administrators of the hub give a role at once.
    """
    from wander.wire import Role

    from wander_client.hub import administration

    given = choose("--role", role, get_args(Role))
    with current().hub(login=True) as hub:
        found = administration.set_role(hub, target, user, given)
    _show(found)
    through = "environment" if "/" in target else "owner"
    asked = (user.lower(), through)
    if any((one.user, one.through) == asked and one.pending_until for one in found):
        here = current().output
        here.note(f"{user} has the role after `wander auth invitation accept {target}`")


@app.command()
def leave(
    target: Target, yes: Annotated[bool, Option("--yes", "-y", help="do not ask for confirmation")] = False
) -> None:
    """Give your own role up; the last owner stays.

    \b
    wander env owner leave acme
    """
    from wander_client.hub import administration

    here = current()
    if not yes:
        here.output.confirm(target, f"leave {target}")
    with here.hub(login=True) as hub:
        administration.leave(hub, target)
    here.output.answer({"target": target, "left": True}, f"you left {target}")


@app.command()
def remove(target: Target, user: Annotated[str, Argument(help="user name")]) -> None:
    """Remove somebody's role, or withdraw an invitation.

    \b
    wander env owner remove acme ada
    """
    from wander_client.hub import administration

    with current().hub(login=True) as hub:
        _show(administration.remove_role(hub, target, user))


@app.command()
def transfer(
    environment: Environment,
    owner: Annotated[str, Argument(help="new owner, for whom you may publish")],
    yes: Annotated[bool, Option("--yes", "-y", help="do not ask for confirmation")] = False,
) -> None:
    """Give an environment to another owner. The old address leads to the new one.

    \b
    wander env owner transfer ada/wordle acme

    Roles on the environment and tokens for it end with the transfer.
    """
    if not yes:
        current().output.confirm(owner, f"give {environment} to {owner}")
    _move(environment, owner=owner, name=None)


@app.command()
def rename(
    environment: Environment,
    name: Annotated[str, Argument(help="the new name")],
    yes: Annotated[bool, Option("--yes", "-y", help="do not ask for confirmation")] = False,
) -> None:
    """Give an environment another name. The old address leads to the new one.

    \b
    wander env owner rename acme/wordle wordle-classic

    What was published keeps its file names; the next version has to carry the new name in pyproject.toml.
    """
    if not yes:
        current().output.confirm(name, f"rename {environment} to {name}")
    _move(environment, owner=None, name=name)


@app.command()
def visibility(
    target: Target,
    choice: Annotated[str, Argument(help="public, internal or private")],
) -> None:
    """Make an environment public, internal or private; for an owner, choose what its new environments are.

    \b
    wander env owner visibility acme/wordle private
    wander env owner visibility acme internal

    Everybody who is signed in sees an internal one, and strangers do not.
    """
    from wander.wire.environments import Visibility

    from wander_client.hub import administration

    here, wanted = current(), choose("visibility", choice, get_args(Visibility))
    with here.hub(login=True) as hub:
        if "/" not in target:
            settings = administration.set_default_visibility(hub, target, wanted)
            here.output.answer(settings, f"new environments of {target} are {wanted}")
            return
        detail = administration.set_visibility(hub, parse_name(target), wanted)
    here.output.answer(detail, f"{detail.owner}/{detail.name} is {wanted}")


@app.command()
def quota(owner: Annotated[str, Argument(help="owner")]) -> None:
    """Show how much an owner has and may have on the hub.

    \b
    wander env owner quota acme
    """
    from wander_client.hub import administration

    with current().hub(login=True) as hub:
        found = administration.quota(hub, owner)
    output = current().output
    kinds = {"stored bytes": found.stored_bytes, "versions": found.versions, "runs": found.runs}
    rows = [
        [kind, f"{one.used:,}", "no limit" if one.allowed is None else f"{one.allowed:,}"]
        for kind, one in kinds.items()
    ]
    output.answer(found, lambda: output.table(["of", "used", "allowed"], rows))


def _move(environment: str, *, owner: str | None, name: str | None) -> None:
    from wander.wire.changes import NewPlace

    from wander_client.hub import administration

    here = current()
    old = parse_name(environment)
    place = NewPlace(owner=(owner or old.owner).lower(), name=name)
    with here.hub(login=True) as hub:
        detail = administration.transfer(hub, old, place)
    here.output.answer(detail, f"{old} is {detail.owner}/{detail.name} now")


def _show(found: list[Member]) -> None:
    output = current().output
    rows = [
        [
            one.user,
            one.role,
            one.through,
            f"invited until {one.pending_until:%Y-%m-%d}" if one.pending_until else "member",
        ]
        for one in found
    ]
    output.answer(found, lambda: output.table(["user", "role", "through", "state"], rows))
