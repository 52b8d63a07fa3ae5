"""`wander logout`: forget a hub's token on this machine."""

from __future__ import annotations

from wander_client.context import current
from wander_client.terminal.command import command_app

app = command_app()


@app.command()
def logout() -> None:
    """Forget the hub's token on this machine; the token itself stays valid until the hub revokes it.

    \b
    wander logout
    wander logout --hub https://hub.example.org
    """
    here = current()
    hub = here.settings.hub
    removed = here.credentials.remove(hub)
    text = f"logged out of {hub}" if removed else f"no token was stored for {hub}"
    here.output.answer({"hub": hub, "removed": removed}, text)
