"""Rules for the addresses of webhooks, against requests into private networks."""

from __future__ import annotations

from collections.abc import Iterable
from urllib.parse import urlsplit

from wander.system.addresses import is_inner

_HTTP = "the hub's operator can allow http with `WANDER_HUB_WEBHOOK_HTTP=true`"
_NETWORKS = "the hub's operator can allow networks with `WANDER_HUB_WEBHOOK_NETWORKS`"


def fault_of(url: str, *, http: bool, networks: Iterable[str]) -> str | None:
    """Return what is wrong with the address of a webhook, without a DNS lookup; None if it looks valid."""
    try:
        parts = urlsplit(url)
        host, _port = parts.hostname, parts.port
    except ValueError:
        return "it is not a valid address"
    if parts.scheme not in ({"https", "http"} if http else {"https"}):
        return "it must be http or https" if http else f"it must be https ({_HTTP})"
    if not host or parts.username is not None or parts.password is not None or parts.fragment:
        return "it must have a host, but no user and no fragment"
    if not (url.isascii() and url.isprintable()) or " " in url or "\\" in url:
        return "it has characters that are not allowed in an address"
    return (
        f"webhooks must not lead into a private network ({_NETWORKS})" if is_inner(host, networks) else None
    )
