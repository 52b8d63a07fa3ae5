"""Rules for the addresses of webhooks and of files in locks, against requests into private networks."""

from __future__ import annotations

import re
import socket
from collections.abc import Iterable
from ipaddress import IPv4Address, ip_address
from urllib.parse import urlsplit

from wander.system.addresses import is_allowed

_NUMERIC = re.compile(r"[0-9a-fx.]+", re.IGNORECASE)

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


def is_inner(host: str, networks: Iterable[str]) -> bool:
    """Return whether a host is an address that is neither public nor in an allowed network.

    Host names other than `localhost` count as public here and are checked again after the DNS lookup.
    """
    if host == "localhost" or host.endswith(".localhost"):
        host = "127.0.0.1"
    try:
        return not is_allowed(ip_address(host), networks)
    except ValueError:
        pass
    if not _NUMERIC.fullmatch(host):
        return False
    try:  # parse `127.1` and `0x7f000001` like the C library
        return not is_allowed(IPv4Address(socket.inet_aton(host)), networks)
    except OSError:
        return False
