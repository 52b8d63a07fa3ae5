"""`wander auth token`: create, list and revoke your tokens."""

from __future__ import annotations

from typing import Annotated, Literal

from wander_client.context import current
from wander_client.failures import validate
from wander_client.names import quote_part
from wander_client.terminal.command import Argument, CommandGroup, Option, refuse_options

app = CommandGroup(
    help="""Create, list and revoke your tokens.

    \b
    read      read private environments; included in every other scope
    results   post runs
    publish   upload environments
    manage    everything else: yank, deprecate, roles, tokens

    A token with the scope `manage` can create other tokens, with the same or fewer scopes. If you revoke it,
    the tokens that it created are revoked, too.""",
)

DEFAULT_DAYS = 90
_TOKENS = "/api/v1/tokens"


@app.command()
def new(
    name: Annotated[str, Argument(help="name of the token, such as its purpose")],
    scope: Annotated[
        list[Literal["read", "results", "publish", "manage"]] | None,
        Option(help="permission of the token; repeatable  [default: read]"),
    ] = None,
    target: Annotated[
        str | None,
        Option(
            "--for", help="restrict the token to this owner or environment  [default: everything you own]"
        ),
    ] = None,
    days: Annotated[int, Option(min=1, max=3650, help="days until it expires")] = DEFAULT_DAYS,
    never_expires: Annotated[bool, Option("--never-expires", help="valid until it is revoked")] = False,
) -> None:
    """Create a token and print it. It cannot be shown again.

    \b
    wander auth token new ci --scope publish --for acme/wordle
    wander auth token new laptop --scope read --scope results --days 365

    Use it as the password of pip and uv: https://__token__:TOKEN@HUB/OWNER/index/
    """
    from wander.wire import TOKEN_SCOPES
    from wander.wire.changes import CreatedToken, NewToken

    here = current()
    if never_expires:
        refuse_options("days", because="cannot be used with `--never-expires`")
    scopes = [known for known in TOKEN_SCOPES if known in (scope or ["read"])]
    body = {"name": name, "scopes": scopes, "target": target, "days": None if never_expires else days}
    new_token = validate(NewToken, body, "run `wander auth token new --help` for examples")
    with here.hub(login=True) as hub:
        created = hub.change("POST", _TOKENS, CreatedToken, new_token)
    here.output.answer(created, created.token)
    until = f"until {created.expires_at:%Y-%m-%d}" if created.expires_at else "until it is revoked"
    here.output.note(
        f"{', '.join(created.scopes)} for {created.target or 'everything you own'}, valid {until}; this "
        "token is not shown again"
    )


@app.command("list")
def list_tokens() -> None:
    """List your tokens. Each is shown by its first characters, because the hub does not store whole tokens.

    \b
    wander auth token list
    wander auth token list --json
    """
    from wander.wire.changes import TokenList

    here = current()
    with here.hub(login=True) as hub:
        tokens = hub.read(_TOKENS, TokenList).data
    columns = ["prefix", "name", "scopes", "for", "expires", "last used", "status"]
    rows = [
        [
            token.prefix,
            token.name,
            " ".join(token.scopes),
            token.target or "all",
            f"{token.expires_at:%Y-%m-%d}" if token.expires_at else "never",
            f"{token.last_used_at:%Y-%m-%d}" if token.last_used_at else "never",
            "revoked" if token.revoked else "active",
        ]
        for token in tokens
    ]
    here.output.answer(tokens, lambda: here.output.table(columns, rows, shrink=["name", "scopes", "for"]))


@app.command()
def revoke(
    prefix: Annotated[str, Argument(help="first characters of the token (see `wander auth token list`)")],
) -> None:
    """Revoke a token immediately.

    \b
    wander auth token revoke wnd_Ab12Cd
    """
    from wander.wire import TokenInfo

    here = current()
    with here.hub(login=True) as hub:
        revoked = hub.change("DELETE", f"{_TOKENS}/{quote_part(prefix)}", TokenInfo)
    here.output.answer(revoked, f"revoked {revoked.prefix} ({revoked.name})")
