"""Commands on users: `wander-hub user`."""

from __future__ import annotations

import sys
from pathlib import Path

import click
from sqlalchemy.orm import Session

from wander_hub import audit
from wander_hub.accounts.models import User
from wander_hub.accounts.repository import user_named
from wander_hub.cli.command_line import Group, refuse_unless
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


@click.group(cls=Group)
def user() -> None:
    """Add and manage users, and how they sign in."""


@user.command("add")
@click.argument("name")
@click.option("--admin", is_flag=True, help="make the user an administrator")
@click.option("--owner", multiple=True, help="also let the user publish under this owner; repeatable")
@data_option
@json_option
def add_user(name: str, admin: bool, owner: tuple[str, ...], data: Path | None, as_json: bool) -> None:
    """Add a user, who can publish under their own name."""
    from wander_hub.accounts import service

    with open_database(read_settings(data=data)) as database, database.write() as session:
        user = service.add_user(session, name, admin=admin)
        owners = [user.name, *(service.add_member(session, member_of, user).name for member_of in owner)]
        audit.record(session, by_command("user.add"), target=user.name, admin=admin, owners=owners)
        row = {"name": user.name, "admin": user.admin, "owners": owners}
    print_row(row, as_json, f"added `{row['name']}`, owners: {', '.join(owners)}")


@user.command("list")
@data_option
@json_option
def list_users(data: Path | None, as_json: bool) -> None:
    """List the users. `owners` are the names that a user can publish under."""
    from wander_hub.accounts import repository

    with reading(data) as session:
        rows = [
            {
                "name": user.name,
                "admin": user.admin,
                "owners": sorted(membership.owner.name for membership in user.memberships),
                "state": "removed" if user.removed_at else "disabled" if user.disabled_at else "active",
                "created_at": user.created_at.isoformat(),
            }
            for user in repository.users(session)
        ]
    print_rows(rows, as_json, "there are no users")


@user.command("password")
@click.argument("name")
@click.option("--link", is_flag=True, help="print a link for choosing a password; valid once, for a week")
@data_option
@json_option
def set_password(name: str, link: bool, data: Path | None, as_json: bool) -> None:
    """Set a user's password, typed or read from standard input, or print a link for choosing one.

    A new password signs the user out of all browsers.

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
            password = click.prompt("password", hide_input=True, confirmation_prompt=True, err=True)
        else:
            password = sys.stdin.readline().rstrip("\r\n")
        hashed = passwords.hash_password(password, name)

        def keep(session: Session) -> None:
            audit.record(session, by_command("user.password"), target=name)
            sign_in.set_hash(session, session.get_one(User, user_id), hashed)

        database.commit(keep)
    print_row({"name": name}, as_json, f"`{name}` has a new password")


@user.command("second-factor")
@click.argument("name")
@click.option("--remove", is_flag=True, help="remove the second factor, for example if the user lost it")
@data_option
@json_option
def second_factor(name: str, remove: bool, data: Path | None, as_json: bool) -> None:
    """Show whether a user has a second factor, or remove it.

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
@click.option("--link", metavar="SUBJECT", help="let the user sign in with this identity")
@click.option("--unlink", metavar="SUBJECT", help="no longer let the user sign in with this identity")
@click.option("--issuer", help="issuer of the identity  [default: the configured provider]")
@data_option
@json_option
def identities_of(
    name: str, link: str | None, unlink: str | None, issuer: str | None, data: Path | None, as_json: bool
) -> None:
    """List a user's identities at an identity provider. Link a new one, or unlink one.

    \b
    wander-hub user identity ada
    wander-hub user identity ada --link 248289761001 --issuer https://id.example.org
    """
    from wander_hub.people import identities

    refuse_unless(bool(link or unlink), "issuer", needs="`--link` or `--unlink`")
    if link and unlink:
        raise click.UsageError("--link and --unlink cannot be used together")
    provider = read_settings(data=data).sign_in_provider
    issuer_url = issuer or (provider.issuer if provider is not None else None)
    if issuer_url is None and (link or unlink):
        raise click.UsageError(
            "no identity provider is configured: set `WANDER_HUB_SIGN_IN_PROVIDER`, or pass `--issuer`"
        )

    def change(session: Session, _: object) -> None:
        user = find_user(session, name)
        if link is not None:
            identities.link_identity(session, str(issuer_url), link, user.id)
        if unlink is not None:
            identities.unlink_identity(session, str(issuer_url), unlink, user)

    if link is not None or unlink is not None:
        commit("user.identity.link" if link is not None else "user.identity.unlink", change, data)
    with reading(data) as session:
        linked = identities.list_identities(session, find_user(session, name).id)
    rows = [{"issuer": identity.issuer, "subject": identity.subject} for identity in linked]
    print_rows(rows, as_json, f"`{name}` has no identity at an identity provider")


@user.command("disable")
@click.argument("name")
@data_option
@json_option
def disable_user(name: str, data: Path | None, as_json: bool) -> None:
    """Disable a user and revoke all their tokens, sessions and codes. Roles are kept for `enable`.

    \b
    wander-hub user disable ada
    """
    _change("user.disable", "disabled", name, data, as_json)


@user.command("enable")
@click.argument("name")
@data_option
@json_option
def enable_user(name: str, data: Path | None, as_json: bool) -> None:
    """Enable a disabled user again, with their previous roles. They need new tokens.

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
    """Remove a user permanently. What they published remains, and their name is never available again.

    \b
    wander-hub user remove ada --yes
    """
    confirm(name, f"remove `{name}` permanently", yes=yes)
    _change("user.remove", "removed", name, data, as_json)


def _change(action: str, done: str, name: str, data: Path | None, as_json: bool) -> None:
    from wander_hub.people import departures

    changes = {
        "user.disable": departures.disable_user,
        "user.enable": departures.enable_user,
        "user.remove": departures.remove_user,
    }
    changed = commit(action, lambda session, _: changes[action](session, name), data)
    text = f"{done} `{changed.user.name}`, revoked {changed.ended_tokens} tokens"
    if changed.ownerless:
        text += f"; administrators now control: {', '.join(changed.ownerless)}"
    print_row(changed.model_dump(mode="json"), as_json, text)


def find_user(session: Session, name: str) -> User:
    """Return the user of that name. Raises a problem with a hint if there is no such user."""
    user = user_named(session, name)
    if user is None:
        hint = f"run `wander-hub user add {name}`"
        raise HubProblem(404, "user_not_found", f"there is no user `{name}`", hint=hint)
    return user
