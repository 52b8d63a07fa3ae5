"""`wander whoami`: whose token is in use."""

from __future__ import annotations

from wander_client.context import current
from wander_client.terminal.command import command_app

app = command_app()


@app.command()
def whoami() -> None:
    """Show whose token is in use, and on which hub.

    \b
    wander whoami
    wander whoami --json
    """
    here = current()
    with here.hub(login=True) as hub:
        who = hub.whoami()
    credential = here.credentials.get(here.settings.hub)
    origin = credential.origin if credential else ""

    def show() -> None:
        here.output.line(f"{who.user} on {here.settings.hub}" + (" (administrator)" if who.admin else ""))
        here.output.line(f"may publish as: {', '.join(who.owners) or 'no owner yet'}")
        here.output.line(f"token: {who.token.name} ({who.token.prefix}...) from {origin}")
        target = f" on {who.token.target}" if who.token.target else ""
        until = f", until {who.token.expires_at:%Y-%m-%d}" if who.token.expires_at else ""
        here.output.line(f"good for: {', '.join(who.token.scopes)}{target}{until}")

    here.output.answer({"hub": here.settings.hub, **who.model_dump(), "token_from": origin}, show)
