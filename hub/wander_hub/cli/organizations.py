"""Commands on organizations: `wander-hub org`."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import click
from sqlalchemy.orm import Session
from wander.wire import Role

from wander_hub.cli.command_line import Group, refuse_unless
from wander_hub.cli.options import commit, confirm, data_option, json_option, print_row, print_rows, reading
from wander_hub.cli.people import find_user
from wander_hub.identity import HUB


@click.group(cls=Group)
def organization() -> None:
    """Create, list and remove organizations, and manage their members."""


@organization.command("add")
@click.argument("name")
@click.option("--owner", required=True, help="user who becomes the first owner")
@data_option
@json_option
def add_organization(name: str, owner: str, data: Path | None, as_json: bool) -> None:
    """Create an organization.

    \b
    wander-hub org add lab --owner ada
    """
    from wander_hub.people import organizations

    def make(session: Session, _: object) -> str:
        return organizations.add_organization(session, name, find_user(session, owner)).name

    row = {"name": commit("owner.create", make, data), "owner": owner}
    print_row(row, as_json, f"created `{row['name']}`, owner: {owner}")


@organization.command("list")
@data_option
@json_option
def list_organizations(data: Path | None, as_json: bool) -> None:
    """List the organizations and their owners. The hub's administrators manage those without an owner."""
    from wander_hub.people import organizations

    with reading(data) as session:
        rows = [
            {"name": owner.name, "owners": owners, "created_at": owner.created_at.isoformat()}
            for owner, owners in organizations.with_owners(session).items()
        ]
    print_rows(rows, as_json)


@organization.command("members")
@click.argument("name")
@click.option("--add", metavar="USER", help="give this user a role, without an invitation")
@click.option(
    "--role",
    type=click.Choice(["reader", "maintainer", "owner"]),
    default="maintainer",
    show_default=True,
    help="role of the added user",
)
@click.option("--remove", metavar="USER", help="remove this user's role")
@data_option
@json_option
def show_members(
    name: str,
    add: str | None,
    role: Literal["reader", "maintainer", "owner"],
    remove: str | None,
    data: Path | None,
    as_json: bool,
) -> None:
    """List the members and invitations of an organization, or change a user's role.

    \b
    wander-hub org members lab
    wander-hub org members lab --add bob
    wander-hub org members lab --remove bob
    """
    from wander_hub import audit
    from wander_hub.people import organizations
    from wander_hub.rights import members

    def change(action: str, user: str, new_role: Role | None) -> None:
        def work(session: Session, _: object) -> None:
            owner = organizations.find_organization(session, name).name
            audit.about(session, owner=owner, target=owner)
            members.change_owner_role(session, HUB, owner, user, new_role)

        commit(action, work, data)

    refuse_unless(add is not None, "role", needs="`--add`")
    if add is not None:
        change("member.set", add, role)
    if remove is not None:
        change("member.remove", remove, None)
    with reading(data) as session:
        listed = members.members_of_owner(session, HUB, organizations.find_organization(session, name).name)
    rows = [
        {"user": member.user, "role": member.role, "state": "invited" if member.pending_until else "member"}
        for member in listed
    ]
    print_rows(rows, as_json)


@organization.command("remove")
@click.argument("name")
@click.option("--yes", "-y", is_flag=True, help="do not ask for confirmation")
@data_option
@json_option
def remove_organization(name: str, yes: bool, data: Path | None, as_json: bool) -> None:
    """Delete an organization with all its roles, invitations, tokens and trusted publishers.

    Its environments, runs and models stay on the hub, managed by the hub's administrators. The name cannot be
    used again.

    \b
    wander-hub org remove lab --yes
    """
    from wander_hub.people import organizations

    confirm(name, f"remove `{name}` permanently", yes=yes)
    owner = commit(
        "owner.remove", lambda session, _: organizations.remove_organization(session, name).name, data
    )
    print_row({"name": owner}, as_json, f"removed `{owner}`; administrators now control what it published")
