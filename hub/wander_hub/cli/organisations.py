"""Commands on organisations: `wander-hub org`."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import click
from sqlalchemy.orm import Session
from wander.wire import Role

from wander_hub.cli.options import commit, confirm, data_option, json_option, print_row, print_rows, reading
from wander_hub.cli.people import find_user
from wander_hub.identity import HUB


@click.group()
def organisation() -> None:
    """Make, list and remove organisations, and say who belongs to them."""


@organisation.command("add")
@click.argument("name")
@click.option("--owner", required=True, help="user who owns it first")
@data_option
@json_option
def add_organisation(name: str, owner: str, data: Path | None, as_json: bool) -> None:
    """Make an organisation.

    \b
    wander-hub org add lab --owner ada
    """
    from wander_hub.people import organisations

    def make(session: Session, _: object) -> str:
        return organisations.add_organisation(session, name, find_user(session, owner)).name

    row = {"name": commit("owner.create", make, data), "owner": owner}
    print_row(row, as_json, f"made `{row['name']}`, owner: {owner}")


@organisation.command("list")
@data_option
@json_option
def list_organisations(data: Path | None, as_json: bool) -> None:
    """List the organisations; one without owners is left to administrators."""
    from wander_hub.people import organisations

    with reading(data) as session:
        rows = [
            {"name": one.name, "owners": owners, "created_at": one.created_at.isoformat()}
            for one, owners in organisations.with_owners(session).items()
        ]
    print_rows(rows, as_json)


@organisation.command("members")
@click.argument("name")
@click.option("--add", metavar="USER", help="give this user the role at once")
@click.option(
    "--role",
    type=click.Choice(["reader", "maintainer", "owner"]),
    default="maintainer",
    show_default=True,
    help="of who is added",
)
@click.option("--remove", metavar="USER", help="take this user's role")
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
    """List who belongs to an organisation and who is invited; give somebody a role, or take it.

    \b
    wander-hub org members lab
    wander-hub org members lab --add bob
    wander-hub org members lab --remove bob
    """
    from wander_hub import audit
    from wander_hub.people import organisations
    from wander_hub.rights import members

    def change(action: str, user: str, given: Role | None) -> None:
        def work(session: Session, _: object) -> None:
            owner = organisations.find_organisation(session, name).name
            audit.about(session, owner=owner, target=owner)
            members.change_owner_role(session, HUB, owner, user, given)

        commit(action, work, data)

    if add is not None:
        change("member.set", add, role)
    if remove is not None:
        change("member.remove", remove, None)
    with reading(data) as session:
        found = members.members_of_owner(session, HUB, organisations.find_organisation(session, name).name)
    rows = [
        {"user": one.user, "role": one.role, "state": "invited" if one.pending_until else "member"}
        for one in found
    ]
    print_rows(rows, as_json)


@organisation.command("remove")
@click.argument("name")
@click.option("--yes", "-y", is_flag=True, help="do not ask for confirmation")
@data_option
@json_option
def remove_organisation(name: str, yes: bool, data: Path | None, as_json: bool) -> None:
    """End all roles, invitations, tokens and trust of an organisation. What it published stays, and its name.

    \b
    wander-hub org remove lab --yes
    """
    from wander_hub.people import organisations

    confirm(name, f"remove {name} for good", yes=yes)
    owner = commit(
        "owner.remove", lambda session, _: organisations.remove_organisation(session, name).name, data
    )
    print_row({"name": owner}, as_json, f"removed `{owner}`; what it published is left to administrators")
