"""Browsers for a hub in this process: they keep cookies and send the origin of a form."""

from __future__ import annotations

from typing import Any

import httpx
from wander_hub.accounts import repository as accounts
from wander_hub.people import passwords, sign_in

PASSWORD = "seven green bottles"
_kept: list[str] = []


def give_password(hub: Any, *names: str) -> None:
    """Set `PASSWORD` as the password of these users."""
    if not _kept:
        _kept.append(passwords.hash_password(PASSWORD, "test"))
    with hub.database.write() as session:
        for name in names:
            sign_in.set_hash(session, accounts.user_named(session, name), _kept[0])


def browser(hub: Any, base_url: str = "http://hub.test", *, address: str = "127.0.0.1") -> httpx.AsyncClient:
    """Return a browser without a cookie."""
    app = hub.client._transport.app
    transport = httpx.ASGITransport(app=app, raise_app_exceptions=False, client=(address, 1))
    return httpx.AsyncClient(transport=transport, base_url=base_url)


async def form(client: httpx.AsyncClient, path: str, /, **fields: Any) -> httpx.Response:
    """Submit a form as from a page of the hub."""
    return await client.post(path, data=fields, headers={"Sec-Fetch-Site": "same-origin"})
