"""`wander login`, `wander auth whoami`, `wander auth logout`: the token of a hub that this machine keeps."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from wander_client.context import current
from wander_client.errors import ClientError, NotFound, UsageError
from wander_client.terminal.command import Option

if TYPE_CHECKING:
    from wander.wire.changes import Whoami

_PAUSE = 0.2
"""Seconds between two looks at what is waited for."""


def login(
    token_stdin: Annotated[bool, Option("--token-stdin", help="read the token from stdin")] = False,
    token_file: Annotated[Path | None, Option("--token-file", help="read the token from a file")] = None,
    wait: Annotated[
        float, Option(min=0, help="seconds to wait for the file and for a hub that is starting up")
    ] = 0,
) -> None:
    """Store a hub's token after checking it.

    \b
    wander login
    wander login --token-file token --wait 60
    wander login --hub https://hub.example.org --token-stdin < token.txt

    Never pass a token as an argument: it would stay in the shell's history. In CI set WANDER_TOKEN.
    """
    here = current()
    hub = here.settings.hub
    if token_stdin and token_file is not None:
        raise UsageError(
            "the token can come from one place only", hint="pass `--token-stdin` or `--token-file FILE`"
        )
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
    place = str(store.path)
    here.output.answer(
        {"hub": hub, "user": who.user, "owners": who.owners, "stored_in": place},
        f"logged in to {hub} as {who.user} (may publish as {', '.join(who.owners) or 'no owner yet'})",
    )
    here.output.note(f"token stored in {place}, readable by you alone")


def _check(token: str) -> Whoami:
    """Return whose token it is, as the hub says."""
    here = current()
    if not token:
        raise UsageError(
            f"the token for `{here.settings.hub}` is empty",
            hint="make one on the hub's machine: `wander-hub token create USER`",
        )
    with here.hub_with(token) as api:
        return api.whoami()


def _from_file(path: Path, deadline: float) -> tuple[str, Whoami]:
    """Return the token in a file and whose it is; waits for a hub that starts and is about to write it."""
    while True:
        try:
            if not path.exists():
                raise NotFound(
                    f"there is no file `{path}`",
                    hint=f"while a hub is starting: `wander login --token-file {path} --wait 60`",
                    code="file_not_found",
                )
            token = path.read_text(encoding="utf-8", errors="replace").strip()
            return token, _check(token)
        except ClientError:  # also a token of the hub that was here before
            if time.monotonic() >= deadline:
                raise
        time.sleep(_PAUSE)


def whoami() -> None:
    """Show whose token is in use, and on which hub.

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
        here.output.line(f"may publish as: {', '.join(who.owners) or 'no owner yet'}")
        here.output.line(f"token: {who.token.name} ({who.token.prefix}...) from {origin}")
        target = f" on {who.token.target}" if who.token.target else ""
        until = f", until {who.token.expires_at:%Y-%m-%d}" if who.token.expires_at else ""
        here.output.line(f"good for: {', '.join(who.token.scopes)}{target}{until}")

    here.output.answer({"hub": here.settings.hub, **who.model_dump(), "token_from": origin}, show)


def logout() -> None:
    """Forget the hub's token on this machine; the token itself stays valid until the hub revokes it.

    \b
    wander auth logout
    wander auth logout --hub https://hub.example.org
    """
    here = current()
    hub = here.settings.hub
    removed = here.credentials.remove(hub)
    text = f"logged out of {hub}" if removed else f"no token was stored for {hub}"
    here.output.answer({"hub": hub, "removed": removed}, text)
