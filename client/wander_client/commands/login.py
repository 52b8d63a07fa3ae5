"""`wander login`: store a hub's token after the hub has accepted it."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from wander_client.command import command_app
from wander_client.errors import UsageError
from wander_client.invocation import current

app = command_app()


@app.command()
def login(
    token_stdin: Annotated[bool, typer.Option("--token-stdin", help="read the token from stdin")] = False,
) -> None:
    """Store a hub's token, checked at once.

    \b
    wander login
    wander login --hub https://hub.example.org --token-stdin < token.txt

    Never pass a token as an argument: it would stay in the shell's history. In CI set WANDER_TOKEN.
    """
    here = current()
    hub = here.settings.hub
    if token_stdin:
        token = sys.stdin.readline().strip()
    else:
        token = here.output.ask(f"API token for {hub}", flag="--token-stdin", secret=True)
    if not token:
        raise UsageError("the token is empty", hint="make one on the hub's machine: `wander-hub token`")
    with here.hub_with(token) as api:
        who = api.whoami()
    store = here.credentials
    store.set(hub, token)
    place = str(store.path)
    here.output.answer(
        {"hub": hub, "user": who.user, "owners": who.owners, "stored_in": place},
        f"logged in to {hub} as {who.user} (may publish as {', '.join(who.owners) or 'nobody yet'})",
    )
    here.output.note(f"token stored in {place}, readable by you alone")
