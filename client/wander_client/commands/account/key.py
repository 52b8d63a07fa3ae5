"""`wander auth key`: the key with which this machine signs runs."""

from __future__ import annotations

from typing import Annotated

from wander_client.context import current
from wander_client.terminal.command import Argument, CommandGroup, Option

app = CommandGroup(
    help="""Make, list and revoke keys that sign runs.

    A signature says that a run comes from you, whoever brings it; `wander post --sign` makes one.""",
)

_KEYS = "/api/v1/keys"


@app.command()
def new(
    name: Annotated[str | None, Option(help="name of the key  [default: this machine's name]")] = None,
) -> None:
    """Make this machine's key, if it has none, and register it on the hub.

    \b
    wander auth key new
    wander auth key new --name laptop

    The private key stays here, in the config folder, readable by you alone.
    """
    import platform

    from wander.wire.postings import KeyInfo, NewKey

    from wander_client.errors import NotFound
    from wander_client.hub.signing_keys import key_file, make_key, read_key

    here = current()
    place = here.settings.config_dir
    try:
        key = read_key(place)
    except NotFound:
        key = make_key(place)
        here.output.note(f"made {key_file(place)}")
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
        found = hub.read(_KEYS, KeyList).data
    rows = [
        [
            one.fingerprint[:16],
            one.name,
            f"{one.created_at:%Y-%m-%d}",
            "revoked" if one.revoked_at else "live",
        ]
        for one in found
    ]
    columns = ["fingerprint", "name", "since", "state"]
    here.output.answer(found, lambda: here.output.table(columns, rows, shrink=["name"]))


@app.command()
def remove(
    fingerprint: Annotated[str, Argument(help="first characters, as `wander auth key list` shows them")],
) -> None:
    """Revoke a key on the hub. It can sign no more runs, and the runs it signed say that it was revoked.

    \b
    wander auth key remove 1f0c2d3e
    """
    from wander.wire.postings import KeyInfo

    from wander_client.hub.signing_keys import key_file, read_key

    here = current()
    with here.hub(login=True) as hub:
        info = hub.change("DELETE", f"{_KEYS}/{fingerprint}", KeyInfo)
    path = key_file(here.settings.config_dir)
    if path.exists() and read_key(here.settings.config_dir).fingerprint == info.fingerprint:
        path.unlink()
        here.output.note(f"removed {path}")
    here.output.answer(info, f"revoked {info.fingerprint[:16]} ({info.name})")
