"""`wander auth token`: make, list and revoke your tokens."""

from __future__ import annotations

from typing import Annotated

from wander_client.context import current
from wander_client.failures import validate
from wander_client.names import quote_part
from wander_client.terminal.command import Argument, CommandGroup, Option
from wander_client.terminal.suggestions import choose

app = CommandGroup(
    help="""Make, list and revoke your tokens.

    \b
    read      read private environments; every other scope does so too
    results   post runs
    publish   upload
    manage    everything else: yank, deprecate, fork, roles, tokens

    A token makes others of its own scopes alone, which end with it.""",
)

DEFAULT_DAYS = 90
_TOKENS = "/api/v1/tokens"


@app.command()
def new(
    name: Annotated[str, Argument(help="what the token is for")],
    scope: Annotated[
        list[str] | None, Option(help="read, results, publish or manage (repeatable)  [default: read]")
    ] = None,
    target: Annotated[
        str | None, Option("--for", help="owner or owner/name it is valid for  [default: all of yours]")
    ] = None,
    days: Annotated[int, Option(min=1, max=3650, help="days until it expires")] = DEFAULT_DAYS,
    never_expires: Annotated[bool, Option("--never-expires", help="until it is revoked")] = False,
) -> None:
    """Make a token and print it, once.

    \b
    wander auth token new ci --scope publish --for acme/wordle
    wander auth token new laptop --scope read --scope results --days 365

    pip and uv take it as a password: https://__token__:TOKEN@HUB/OWNER/simple/
    """
    from wander.wire import TOKEN_SCOPES
    from wander.wire.changes import CreatedToken, NewToken

    here = current()
    wanted = {choose("--scope", word, TOKEN_SCOPES) for word in scope or ["read"]}
    scopes = [one for one in TOKEN_SCOPES if one in wanted]
    body = {"name": name, "scopes": scopes, "target": target, "days": None if never_expires else days}
    asked = validate(NewToken, body, "`wander auth token new --help` has examples")
    with here.hub(login=True) as hub:
        made = hub.change("POST", _TOKENS, CreatedToken, asked)
    here.output.answer(made, made.token)
    until = f"until {made.expires_at:%Y-%m-%d}" if made.expires_at else "until it is revoked"
    here.output.note(
        f"{', '.join(made.scopes)} for {made.target or 'all of yours'}, {until}; not shown again"
    )


@app.command("list")
def list_tokens() -> None:
    """List your tokens by their prefix; nobody can show their secrets.

    \b
    wander auth token list
    wander auth token list --json
    """
    from wander.wire.changes import TokenList

    here = current()
    with here.hub(login=True) as hub:
        found = hub.read(_TOKENS, TokenList).data
    columns = ["prefix", "name", "scopes", "for", "expires", "last used", "state"]
    rows = [
        [
            one.prefix,
            one.name,
            " ".join(one.scopes),
            one.target or "all",
            f"{one.expires_at:%Y-%m-%d}" if one.expires_at else "never",
            f"{one.last_used_at:%Y-%m-%d}" if one.last_used_at else "never",
            "revoked" if one.revoked else "live",
        ]
        for one in found
    ]
    here.output.answer(found, lambda: here.output.table(columns, rows, shrink=["name", "scopes", "for"]))


@app.command()
def revoke(
    prefix: Annotated[str, Argument(help="first characters, as `wander auth token list` shows them")],
) -> None:
    """End a token at once.

    \b
    wander auth token revoke wnd_Ab12Cd
    """
    from wander.wire import TokenInfo

    here = current()
    with here.hub(login=True) as hub:
        ended = hub.change("DELETE", f"{_TOKENS}/{quote_part(prefix)}", TokenInfo)
    here.output.answer(ended, f"revoked {ended.prefix} ({ended.name})")
