"""Commands on API tokens: `wander-hub token`."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import click
from wander.wire import TOKEN_SCOPES

from wander_hub import audit
from wander_hub.cli.command_line import Choice, Group, Integer
from wander_hub.cli.options import (
    by_command,
    data_option,
    json_option,
    open_database,
    print_row,
    print_rows,
    read_settings,
    reading,
)
from wander_hub.cli.people import find_user


@click.group(cls=Group)
def token() -> None:
    """Create, list and revoke API tokens."""


@token.command("create")
@click.argument("user")
@click.option("--name", default="command line", show_default=True, help="description of the token")
@click.option(
    "--scope",
    multiple=True,
    type=Choice(TOKEN_SCOPES),
    help="permission of the token; repeatable  [default: all]",
)
@click.option(
    "--days",
    type=Integer(min=1, max=3650),
    help="days until it expires  [default: never]",
)
@data_option
@json_option
def create_token(
    user: str, name: str, scope: tuple[str, ...], days: int | None, data: Path | None, as_json: bool
) -> None:
    """Create a token for a user and print it. It cannot be shown again.

    \b
    wander-hub token create ada --scope publish --days 30
    """
    from wander_hub.rights.tokens import make_token

    with open_database(read_settings(data=data)) as database, database.write() as session:
        owner = find_user(session, user)
        lifetime = timedelta(days=days) if days is not None else None
        scopes = scope or TOKEN_SCOPES
        secret, token = make_token(session, owner.id, name, scopes=scopes, lifetime=lifetime)
        details = {"user": user, "name": name, "scopes": sorted(scopes), "days": days}
        audit.record(session, by_command("token.create"), target=token.prefix, **details)
    print_row({"user": user, "name": name, "token": secret}, as_json, secret)


@token.command("list")
@click.option("--user", help="list only the tokens of this user")
@data_option
@json_option
def list_tokens(user: str | None, data: Path | None, as_json: bool) -> None:
    """List tokens. Each is shown by its first characters, because the hub does not store whole tokens."""
    from wander_hub.rights import repository

    with reading(data) as session:
        if user is not None:
            find_user(session, user)  # reports an unknown name
        rows = [
            {
                "prefix": token.prefix,
                "user": token.user.name,
                "name": token.name,
                "scopes": token.scope,
                "expires_at": token.expires_at.isoformat() if token.expires_at else None,
                "created_at": token.created_at.isoformat(),
                "last_used_at": token.last_used_at.isoformat() if token.last_used_at else None,
                "revoked": token.revoked_at is not None,
            }
            for token in repository.tokens_of(session, user)
        ]
    print_rows(rows, as_json, f"`{user}` has no tokens" if user else "there are no tokens")


@token.command("revoke")
@click.argument("prefix")
@data_option
@json_option
def revoke_token(prefix: str, data: Path | None, as_json: bool) -> None:
    """Revoke a token. PREFIX is its first characters, as in `wander-hub token list`."""
    from wander_hub.rights import tokens

    with open_database(read_settings(data=data)) as database, database.write() as session:
        token = tokens.revoke_token(session, prefix)
        row = {"prefix": token.prefix, "revoked": True}
        audit.record(session, by_command("token.revoke"), target=token.prefix, user=token.user.name)
    print_row(row, as_json, f"revoked `{row['prefix']}`")
