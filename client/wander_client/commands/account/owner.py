"""`wander env owner`: who may do what with an owner's environments, and whose they are."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, get_args

from wander_client.context import current
from wander_client.names import parse_name, target_path
from wander_client.terminal.command import Argument, CommandGroup, Option, Yes
from wander_client.terminal.suggestions import choose

if TYPE_CHECKING:
    from wander.wire.changes import Member

    from wander_client.hub.api import HubApi

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
    from wander.wire.changes import MemberList

    with current().hub(login=True) as hub:
        _show(hub.read(target_path(target, "members"), MemberList).data)


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
    from wander.wire.changes import MemberList, NewRole

    wanted = NewRole(role=choose("--role", role, get_args(Role)))
    with current().hub(login=True) as hub:
        found = hub.change("PUT", target_path(target, "members", user), MemberList, wanted).data
    _show(found)
    through = "environment" if "/" in target else "owner"
    asked = (user.lower(), through)
    if any((one.user, one.through) == asked and one.pending_until for one in found):
        here = current().output
        here.note(f"{user} has the role after `wander auth invitation accept {target}`")


@app.command()
def leave(target: Target, yes: Yes = False) -> None:
    """Give your own role up; the last owner stays.

    \b
    wander env owner leave acme
    """
    here = current()
    here.output.confirm(target, f"leave {target}", yes=yes)
    with here.hub(login=True) as hub:
        _remove(hub, target, hub.whoami().user)
    here.output.answer({"target": target, "left": True}, f"you left {target}")


@app.command()
def remove(target: Target, user: Annotated[str, Argument(help="user name")]) -> None:
    """Remove somebody's role, or withdraw an invitation.

    \b
    wander env owner remove acme ada
    """
    with current().hub(login=True) as hub:
        _show(_remove(hub, target, user))


@app.command()
def transfer(
    environment: Environment,
    owner: Annotated[str, Argument(help="new owner, for whom you may publish")],
    yes: Yes = False,
) -> None:
    """Give an environment to another owner. The old address leads to the new one.

    \b
    wander env owner transfer ada/wordle acme

    Roles on the environment and tokens for it end with the transfer.
    """
    current().output.confirm(owner, f"give {environment} to {owner}", yes=yes)
    _move(environment, owner=owner, name=None)


@app.command()
def rename(
    environment: Environment,
    name: Annotated[str, Argument(help="the new name")],
    yes: Yes = False,
) -> None:
    """Give an environment another name. The old address leads to the new one.

    \b
    wander env owner rename acme/wordle wordle-classic

    What was published keeps its file names; the next version has to carry the new name in pyproject.toml.
    """
    current().output.confirm(name, f"rename {environment} to {name}", yes=yes)
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
    from wander.wire import EnvironmentDetail
    from wander.wire.changes import NewVisibility, OwnerSettings
    from wander.wire.environments import Visibility, marks_of

    here, wanted = current(), choose("visibility", choice, get_args(Visibility))
    private, internal = marks_of(wanted)
    with here.hub(login=True) as hub:
        if "/" not in target:
            body = OwnerSettings(private_by_default=private, internal_by_default=internal)
            settings = hub.change("PUT", target_path(target, "settings"), OwnerSettings, body)
            here.output.answer(settings, f"new environments of {target} are {wanted}")
            return
        marks = NewVisibility(private=private, internal=internal)
        detail = hub.change("PUT", target_path(target, "visibility"), EnvironmentDetail, marks)
    here.output.answer(detail, f"{detail.owner}/{detail.name} is {wanted}")


@app.command()
def quota(owner: Annotated[str, Argument(help="owner")]) -> None:
    """Show how much an owner has and may have on the hub.

    \b
    wander env owner quota acme
    """
    from wander.wire.people import OwnerQuota

    with current().hub(login=True) as hub:
        found = hub.read(target_path(owner, "quota"), OwnerQuota)
    output = current().output
    kinds = {"stored bytes": found.stored_bytes, "versions": found.versions, "runs": found.runs}
    rows = [
        [kind, f"{one.used:,}", "no limit" if one.allowed is None else f"{one.allowed:,}"]
        for kind, one in kinds.items()
    ]
    output.answer(found, lambda: output.table(["of", "used", "allowed"], rows))


def _move(environment: str, *, owner: str | None, name: str | None) -> None:
    from wander.wire import EnvironmentDetail
    from wander.wire.changes import NewPlace

    here = current()
    old = parse_name(environment)
    place = NewPlace(owner=(owner or old.owner).lower(), name=name)
    with here.hub(login=True) as hub:
        detail = hub.change("POST", target_path(environment, "transfer"), EnvironmentDetail, place)
    here.output.answer(detail, f"{old} is {detail.owner}/{detail.name} now")


def _remove(hub: HubApi, target: str, user: str) -> list[Member]:
    from wander.wire.changes import MemberList

    return hub.change("DELETE", target_path(target, "members", user), MemberList).data


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
