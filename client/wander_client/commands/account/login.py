"""`wander login`, `wander auth whoami`, `wander auth logout`: this machine's token for a hub."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from wander_client.context import current
from wander_client.errors import ClientError, NotFound, UsageError
from wander_client.terminal.command import Option, refuse_options

if TYPE_CHECKING:
    from wander.wire.changes import Whoami

_PAUSE = 0.2
"""Seconds between two checks of the token file and the hub."""


def login(
    token_stdin: Annotated[bool, Option("--token-stdin", help="read the token from stdin")] = False,
    token_file: Annotated[Path | None, Option("--token-file", help="read the token from this file")] = None,
    wait: Annotated[
        float,
        Option(min=0, help="with --token-file: seconds to wait for the file, and for a hub that is starting"),
    ] = 0,
) -> None:
    """Check a token and store it for later commands.

    \b
    wander login
    wander login --token-file token --wait 60
    wander login --hub https://hub.example.org --token-stdin < token.txt

    Do not pass a token as an argument: it would stay in your shell's history. In CI, set WANDER_TOKEN.
    """
    here = current()
    hub = here.settings.hub
    if token_stdin and token_file is not None:
        raise UsageError(
            "`--token-stdin` and `--token-file` cannot be used together", hint="pass only one of them"
        )
    if token_file is None:
        refuse_options("wait", because="requires `--token-file`")
    if token_file is not None:
        token, who = _from_file(token_file, time.monotonic() + wait)
    else:
        flags = "--token-stdin` or `--token-file FILE"
        asked = f"API token for {hub}"
        token = (
            sys.stdin.readline().strip() if token_stdin else here.output.ask(asked, flag=flags, secret=True)
        )
        who = _check(token)
    store = here.credentials
    store.set(hub, token)
    location = str(store.path)
    here.output.answer(
        {"hub": hub, "user": who.user, "owners": who.owners, "stored_in": location},
        f"logged in to {hub} as {who.user} (can publish as {', '.join(who.owners) or 'no owner yet'})",
    )
    here.output.note(f"token stored in {location}; only you can read it")


def _check(token: str) -> Whoami:
    """Return the user and the scopes of a token, as the hub reports them."""
    here = current()
    if not token:
        raise UsageError(
            f"the token for `{here.settings.hub}` is empty",
            hint="create one on the hub's machine: `wander-hub token create USER`",
        )
    with here.hub_with(token) as api:
        return api.whoami()


def _from_file(path: Path, deadline: float) -> tuple[str, Whoami]:
    """Return the token in a file and its user.

    Retries until the deadline, for a hub that is still starting.
    """
    while True:
        try:
            if not path.exists():
                raise NotFound(
                    f"there is no file `{path}`",
                    hint=f"if the hub is still starting: `wander login --token-file {path} --wait 60`",
                    code="file_not_found",
                )
            token = path.read_text(encoding="utf-8", errors="replace").strip()
            return token, _check(token)
        except ClientError:  # includes the token of an earlier hub, which this hub rejects
            if time.monotonic() >= deadline:
                raise
        time.sleep(_PAUSE)


def whoami() -> None:
    """Show the user whose token is in use, and the hub.

    \b
    wander auth whoami
    wander auth whoami --json
    """
    here = current()
    with here.hub(login=True) as hub:
        who = hub.whoami()
    credential = here.credential()
    origin = credential.origin if credential else ""

    def show() -> None:
        here.output.line(f"{who.user} on {here.settings.hub}" + (" (administrator)" if who.admin else ""))
        here.output.line(f"can publish as: {', '.join(who.owners) or 'no owner yet'}")
        here.output.line(f"token: {who.token.name} ({who.token.prefix}...) from {origin}")
        target = f" on {who.token.target}" if who.token.target else ""
        until = f", until {who.token.expires_at:%Y-%m-%d}" if who.token.expires_at else ""
        here.output.line(f"scopes: {', '.join(who.token.scopes)}{target}{until}")

    here.output.answer({"hub": here.settings.hub, **who.model_dump(), "token_from": origin}, show)


def logout() -> None:
    """Delete the hub's token from this machine. The token stays valid until you revoke it.

    \b
    wander auth logout
    wander auth logout --hub https://hub.example.org
    """
    here = current()
    hub = here.settings.hub
    removed = here.credentials.remove(hub)
    text = f"logged out of {hub}" if removed else f"no token was stored for {hub}"
    here.output.answer({"hub": hub, "removed": removed}, text)
