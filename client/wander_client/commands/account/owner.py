"""`wander env owner`: roles, transfers, names and visibility of an owner's environments."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal, get_args

from wander_client.context import current
from wander_client.names import parse_name, target_path
from wander_client.terminal.command import Argument, CommandGroup, Option, Yes
from wander_client.terminal.suggestions import choose

if TYPE_CHECKING:
    from wander.wire.changes import Member

    from wander_client.hub.api import HubApi

app = CommandGroup(
    help="""Manage roles and visibility, and transfer or rename environments.

    \b
    reader       reads private environments and posts results
    maintainer   also publishes, yanks and deprecates
    owner        also does everything else: roles, visibility, transfer, deletion""",
)

Target = Annotated[str, Argument(help="owner, or owner/name for one environment")]
Environment = Annotated[str, Argument(help="owner/name")]


@app.command("list")
def list_members(target: Target) -> None:
    """List the members and their roles.

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
    role: Annotated[Literal["reader", "maintainer", "owner"], Option(help="role of the user")] = "maintainer",
) -> None:
    """Offer a role to a user, or change the role of a member.

    \b
    wander env owner add acme ada --role owner
    wander env owner add acme/wordle bob --role reader

    The user has 14 days to accept the role. If you administer the hub, the user gets the role immediately.
    """
    from wander.wire.changes import MemberList, NewRole

    wanted = NewRole(role=role)
    with current().hub(login=True) as hub:
        members = hub.change("PUT", target_path(target, "members", user), MemberList, wanted).data
    _show(members)
    through = "environment" if "/" in target else "owner"
    invited = (user.lower(), through)
    if any((member.user, member.through) == invited and member.pending_until for member in members):
        here = current().output
        here.note(f"{user} gets the role after accepting it on the account page of the hub")


@app.command()
def leave(target: Target, yes: Yes = False) -> None:
    """Give up your own role. The last owner cannot leave.

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
    """Remove a user's role, or withdraw an invitation.

    \b
    wander env owner remove acme ada
    """
    with current().hub(login=True) as hub:
        _show(_remove(hub, target, user))


@app.command()
def transfer(
    environment: Environment,
    owner: Annotated[str, Argument(help="new owner; you need permission to publish for it")],
    yes: Yes = False,
) -> None:
    """Transfer an environment to another owner. The old address redirects to the new one.

    \b
    wander env owner transfer ada/wordle acme

    The transfer removes the roles on the environment and the tokens for it.
    """
    current().output.confirm(owner, f"transfer {environment} to {owner}", yes=yes)
    _move(environment, owner=owner, name=None)


@app.command()
def rename(
    environment: Environment,
    name: Annotated[str, Argument(help="new name")],
    yes: Yes = False,
) -> None:
    """Rename an environment. The old address redirects to the new one.

    \b
    wander env owner rename acme/wordle wordle-classic

    Published files keep their names. The next version must have the new name in its pyproject.toml.
    """
    current().output.confirm(name, f"rename {environment} to {name}", yes=yes)
    _move(environment, owner=None, name=name)


@app.command()
def visibility(
    target: Target,
    choice: Annotated[str, Argument(help="public, internal or private")],
) -> None:
    """Make an environment public, internal or private. For an owner, set the default for new environments.

    \b
    wander env owner visibility acme/wordle private
    wander env owner visibility acme internal

    Signed-in users see internal environments; everybody else does not.
    """
    from wander.wire import EnvironmentDetail
    from wander.wire.changes import NewVisibility, OwnerSettings
    from wander.wire.environments import Visibility, marks_of

    here, wanted = current(), choose("CHOICE", choice, get_args(Visibility))
    private, internal = marks_of(wanted)
    with here.hub(login=True) as hub:
        if "/" not in target:
            body = OwnerSettings(private_by_default=private, internal_by_default=internal)
            settings = hub.change("PUT", target_path(target, "settings"), OwnerSettings, body)
            here.output.answer(settings, f"new environments of {target} will be {wanted}")
            return
        marks = NewVisibility(private=private, internal=internal)
        detail = hub.change("PUT", target_path(target, "visibility"), EnvironmentDetail, marks)
    here.output.answer(detail, f"{detail.owner}/{detail.name} is now {wanted}")


@app.command()
def quota(owner: Annotated[str, Argument(help="user or organization")]) -> None:
    """Show how much of its quota an owner uses on the hub.

    \b
    wander env owner quota acme
    """
    from wander.wire.people import OwnerQuota

    with current().hub(login=True) as hub:
        quotas = hub.read(target_path(owner, "quota"), OwnerQuota)
    output = current().output
    kinds = {"stored bytes": quotas.stored_bytes, "versions": quotas.versions, "runs": quotas.runs}
    rows = [
        [kind, f"{quota.used:,}", "no limit" if quota.allowed is None else f"{quota.allowed:,}"]
        for kind, quota in kinds.items()
    ]
    output.answer(quotas, lambda: output.table(["quota", "used", "allowed"], rows))


def _move(environment: str, *, owner: str | None, name: str | None) -> None:
    from wander.wire import EnvironmentDetail
    from wander.wire.changes import TransferTarget

    here = current()
    old = parse_name(environment)
    new_address = TransferTarget(owner=(owner or old.owner).lower(), name=name)
    with here.hub(login=True) as hub:
        detail = hub.change("POST", target_path(environment, "transfer"), EnvironmentDetail, new_address)
    here.output.answer(detail, f"{old} is now {detail.owner}/{detail.name}")


def _remove(hub: HubApi, target: str, user: str) -> list[Member]:
    from wander.wire.changes import MemberList

    return hub.change("DELETE", target_path(target, "members", user), MemberList).data


def _show(members: list[Member]) -> None:
    output = current().output
    rows = [
        [
            member.user,
            member.role,
            member.through,
            f"invited until {member.pending_until:%Y-%m-%d}" if member.pending_until else "member",
        ]
        for member in members
    ]
    output.answer(members, lambda: output.table(["user", "role", "through", "status"], rows))
