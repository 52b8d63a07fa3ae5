"""Commands on people: `wander-hub user`."""

from __future__ import annotations

import sys
from pathlib import Path

import click
from sqlalchemy.orm import Session

from wander_hub import audit
from wander_hub.accounts.models import User
from wander_hub.accounts.repository import user_named
from wander_hub.cli.options import (
    by_command,
    commit,
    confirm,
    data_option,
    json_option,
    open_database,
    print_row,
    print_rows,
    read_settings,
    reading,
)
from wander_hub.http.problems import HubProblem
from wander_hub.server.data_folder import address_of


@click.group()
def user() -> None:
    """Add and list users, and let them sign in."""


@user.command("add")
@click.argument("name")
@click.option("--admin", is_flag=True, help="may do everything")
@click.option("--owner", multiple=True, help="also publish under this owner; may repeat")
@data_option
@json_option
def add_user(name: str, admin: bool, owner: tuple[str, ...], data: Path | None, as_json: bool) -> None:
    """Add a user, who may publish under the own name and the owners given."""
    from wander_hub.accounts import service

    with open_database(read_settings(data=data)) as database, database.write() as session:
        user = service.add_user(session, name, admin=admin)
        owners = [user.name, *(service.add_member(session, one, user).name for one in owner)]
        audit.record(session, by_command("user.add"), target=user.name, admin=admin, owners=owners)
        row = {"name": user.name, "admin": user.admin, "owners": owners}
    print_row(row, as_json, f"added `{row['name']}`, owners: {', '.join(owners)}")


@user.command("list")
@data_option
@json_option
def list_users(data: Path | None, as_json: bool) -> None:
    """List users and what they may publish under."""
    from wander_hub.accounts import repository

    with reading(data) as session:
        rows = [
            {
                "name": user.name,
                "admin": user.admin,
                "owners": sorted(one.owner.name for one in user.memberships),
                "state": "removed" if user.removed_at else "disabled" if user.disabled_at else "active",
                "created_at": user.created_at.isoformat(),
            }
            for user in repository.users(session)
        ]
    print_rows(rows, as_json)


@user.command("password")
@click.argument("name")
@click.option("--link", is_flag=True, help="print a link with which the user chooses it, once, within a week")
@data_option
@json_option
def set_password(name: str, link: bool, data: Path | None, as_json: bool) -> None:
    """Give a user a password, typed or read from standard input, or a link to choose one.

    Whoever is signed in with the present one is signed out.

    \b
    wander-hub user password ada --link
    """
    from wander_hub.people import passwords, sign_in

    settings = read_settings(data=data)
    with open_database(settings) as database:
        with database.read() as session:
            user_id = find_user(session, name).id
        if link:

            def make(session: Session) -> str:
                audit.record(session, by_command("user.link"), target=name)
                return sign_in.make_code(session, session.get_one(User, user_id))

            code = database.commit(make)
            base_url = settings.public_url or address_of(settings) or "http://127.0.0.1:8600"
            address = sign_in.link_of(code, base_url.rstrip("/"))
            print_row({"name": name, "link": address}, as_json, address)
            return
        if sys.stdin.isatty():
            word = click.prompt("password", hide_input=True, confirmation_prompt=True, err=True)
        else:
            word = sys.stdin.readline().rstrip("\r\n")
        kept = passwords.hash_password(word, name)

        def keep(session: Session) -> None:
            audit.record(session, by_command("user.password"), target=name)
            sign_in.set_hash(session, session.get_one(User, user_id), kept)

        database.commit(keep)
    print_row({"name": name}, as_json, f"`{name}` has a new password")


@user.command("second-factor")
@click.argument("name")
@click.option("--remove", is_flag=True, help="of who lost phone and recovery codes")
@data_option
@json_option
def second_factor(name: str, remove: bool, data: Path | None, as_json: bool) -> None:
    """Tell whether a user signs in with a second factor, or have them sign in without one.

    \b
    wander-hub user second-factor ada --remove
    """
    from wander_hub.people import second_factor

    with open_database(read_settings(data=data)) as database:

        def change(session: Session) -> bool:
            user = find_user(session, name)
            if not remove:
                return second_factor.second_factor_of(session, user.id).on
            audit.record(session, by_command("user.second_factor.remove"), target=user.name)
            second_factor.remove_second_factor(session, user.id)
            return False

        on = database.commit(change)
    print_row({"name": name, "on": on}, as_json, f"the second factor of `{name}` is {'on' if on else 'off'}")


@user.command("identity")
@click.argument("name")
@click.option("--link", metavar="SUBJECT", help="let them sign in as this one")
@click.option("--unlink", metavar="SUBJECT", help="and no more as this one")
@click.option("--issuer", help="[default: that of the setting]")
@data_option
@json_option
def identities_of(
    name: str, link: str | None, unlink: str | None, issuer: str | None, data: Path | None, as_json: bool
) -> None:
    """List as whom a user signs in at the provider; link somebody there, or end that.

    \b
    wander-hub user identity ada
    wander-hub user identity ada --link 248289761001 --issuer https://id.example.org
    """
    from wander_hub.people import identities

    provider = read_settings(data=data).sign_in_provider
    place = issuer or (provider.issuer if provider is not None else None)
    if place is None and (link or unlink):
        raise click.BadParameter("set `WANDER_HUB_SIGN_IN_PROVIDER`, or pass --issuer")

    def change(session: Session, _: object) -> None:
        user = find_user(session, name)
        if link is not None:
            identities.link_identity(session, str(place), link, user.id)
        if unlink is not None:
            identities.unlink_identity(session, str(place), unlink, user)

    if link is not None or unlink is not None:
        commit("user.identity.link" if link is not None else "user.identity.unlink", change, data)
    with reading(data) as session:
        found = identities.list_identities(session, find_user(session, name).id)
    print_rows([{"issuer": one.issuer, "subject": one.subject} for one in found], as_json)


@user.command("disable")
@click.argument("name")
@data_option
@json_option
def disable_user(name: str, data: Path | None, as_json: bool) -> None:
    """Let a user in no more: tokens, sessions and codes end at once; roles wait.

    \b
    wander-hub user disable ada
    """
    _change("user.disable", "disabled", name, data, as_json)


@user.command("enable")
@click.argument("name")
@data_option
@json_option
def enable_user(name: str, data: Path | None, as_json: bool) -> None:
    """Let a disabled user in again, with the roles of before and new tokens.

    \b
    wander-hub user enable ada
    """
    _change("user.enable", "enabled", name, data, as_json)


@user.command("remove")
@click.argument("name")
@click.option("--yes", "-y", is_flag=True, help="do not ask for confirmation")
@data_option
@json_option
def remove_user(name: str, yes: bool, data: Path | None, as_json: bool) -> None:
    """Remove a user for good. What they published stays, and nobody is given the name again.

    \b
    wander-hub user remove ada --yes
    """
    confirm(name, f"remove {name} for good", yes=yes)
    _change("user.remove", "removed", name, data, as_json)


def _change(action: str, done: str, name: str, data: Path | None, as_json: bool) -> None:
    from wander_hub.people import departures

    changes = {
        "user.disable": departures.disable_user,
        "user.enable": departures.enable_user,
        "user.remove": departures.remove_user,
    }
    changed = commit(action, lambda session, _: changes[action](session, name), data)
    text = f"{done} `{changed.user.name}`, {changed.ended_tokens} tokens ended"
    if changed.ownerless:
        text += f"; left to administrators: {', '.join(changed.ownerless)}"
    print_row(changed.model_dump(mode="json"), as_json, text)


def find_user(session: Session, name: str) -> User:
    """Return the user of that name, or say how to add one."""
    found = user_named(session, name)
    if found is None:
        hint = f"run `wander-hub user add {name}`"
        raise HubProblem(404, "user_not_found", f"there is no user `{name}`", hint=hint)
    return found
