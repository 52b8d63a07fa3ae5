"""`wander auth key`: the key that this machine signs runs with."""

from __future__ import annotations

from typing import Annotated

from wander_client.context import current
from wander_client.errors import UsageError
from wander_client.terminal.command import Argument, CommandGroup, Option

app = CommandGroup(
    help="""Create, list and revoke the keys that sign your runs.

    A signature proves that a run comes from you, even if somebody else uploads it. To sign a run, pass
    `--sign` to `wander post`.""",
)

_KEYS = "/api/v1/keys"
_SHORTEST = 6
"""Fewest characters of a fingerprint that the hub accepts."""


@app.command()
def new(
    name: Annotated[str | None, Option(help="name of the key  [default: this machine's name]")] = None,
) -> None:
    """Register this machine's key on the hub, and create the key if it does not exist yet.

    \b
    wander auth key new
    wander auth key new --name laptop

    The private key stays in the config folder of this machine, and only you can read it.
    """
    import platform

    from wander.wire.postings import KeyInfo, NewKey

    from wander_client.errors import NotFound
    from wander_client.hub.signing_keys import key_file, make_key, read_key

    here = current()
    folder = here.settings.config_dir
    try:
        key = read_key(folder)
    except NotFound:
        key = make_key(folder)
        here.output.note(f"created {key_file(folder)}")
    body = NewKey(name=name or platform.node() or "unnamed", public_key=key.public_key)
    with here.hub(login=True) as hub:
        info = hub.change("POST", _KEYS, KeyInfo, body)
    here.output.answer(info, f"{info.fingerprint}  {info.name}")
    here.output.next("wander post RUN --sign")


@app.command("list")
def list_keys() -> None:
    """List your keys on the hub.

    \b
    wander auth key list
    wander auth key list --json
    """
    from wander.wire.postings import KeyList

    here = current()
    with here.hub(login=True) as hub:
        keys = hub.read(_KEYS, KeyList).data
    rows = [
        [
            key.fingerprint[:16],
            key.name,
            f"{key.created_at:%Y-%m-%d}",
            "revoked" if key.revoked_at else "active",
        ]
        for key in keys
    ]
    columns = ["fingerprint", "name", "since", "status"]
    here.output.answer(keys, lambda: here.output.table(columns, rows, shrink=["name"]))


@app.command()
def revoke(
    fingerprint: Annotated[
        str, Argument(help="first characters of the fingerprint (see `wander auth key list`)")
    ],
) -> None:
    """Revoke a key on the hub. It cannot sign new runs, and runs that it signed show that it was revoked.

    \b
    wander auth key revoke 1f0c2d3e
    """
    from wander.wire.postings import KeyInfo

    from wander_client.hub.signing_keys import key_file, read_key

    here = current()
    if len(fingerprint) < _SHORTEST:
        raise UsageError(f"`{fingerprint}` is too short", hint=f"write at least {_SHORTEST} characters")
    with here.hub(login=True) as hub:
        info = hub.change("DELETE", f"{_KEYS}/{fingerprint}", KeyInfo)
    path = key_file(here.settings.config_dir)
    if path.exists() and read_key(here.settings.config_dir).fingerprint == info.fingerprint:
        path.unlink()
        here.output.note(f"removed {path}")
    here.output.answer(info, f"revoked {info.fingerprint[:16]} ({info.name})")
