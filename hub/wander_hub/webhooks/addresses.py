"""Rules for the addresses of webhooks and of files in locks, against requests into private networks."""

from __future__ import annotations

import re
import socket
from collections.abc import Iterable
from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address, ip_network
from urllib.parse import urlsplit

Address = IPv4Address | IPv6Address

_GLOBAL_UNICAST = IPv6Network("2000::/3")
_NUMERIC = re.compile(r"[0-9a-fx.]+", re.IGNORECASE)
_TRANSLATED = IPv6Network("64:ff9b::/96")
"""IPv4 addresses behind a translator (RFC 6052), which IPv6-only networks use for all of IPv4."""

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


def is_allowed(address: Address, networks: Iterable[str]) -> bool:
    """Return whether an address is public or in an allowed network."""
    if isinstance(address, IPv6Address):
        if address.scope_id is not None:
            return False
        inner = address.ipv4_mapped or address.sixtofour
        if address in _TRANSLATED:
            inner = IPv4Address(int(address) & 0xFFFFFFFF)
        if inner is not None:
            return is_allowed(inner, networks)
    if any(address in ip_network(network, strict=False) for network in networks):
        return True
    if isinstance(address, IPv6Address) and address not in _GLOBAL_UNICAST:
        return False
    return address.is_global and not (address.is_multicast or address.is_reserved)
