"""The network addresses that a hub may connect to, so that nobody can send it into a private network."""

from __future__ import annotations

import re
import socket
from collections.abc import Iterable
from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address, ip_network

Address = IPv4Address | IPv6Address

_NUMERIC = re.compile(r"[0-9a-fx.]+", re.IGNORECASE)
_GLOBAL_UNICAST = IPv6Network("2000::/3")
_TRANSLATED = IPv6Network("64:ff9b::/96")
"""IPv4 addresses behind a translator (RFC 6052), which IPv6-only networks use for all of IPv4."""


def is_listed(address: Address, networks: Iterable[str]) -> bool:
    """Return whether an address is in one of the networks."""
    return any(address in ip_network(network, strict=False) for network in networks)


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
    if is_listed(address, networks):
        return True
    if isinstance(address, IPv6Address) and address not in _GLOBAL_UNICAST:
        return False
    return address.is_global and not (address.is_multicast or address.is_reserved)


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
