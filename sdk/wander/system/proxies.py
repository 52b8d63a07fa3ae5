"""Finds the proxy for a request, from the variables that curl, pip and uv read:

`HTTPS_PROXY`, `ALL_PROXY`, ...
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from ipaddress import ip_address, ip_network
from typing import NamedTuple
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

SOCKS = ("socks5", "socks5h")
_SCHEMES = ("http", "https", *SOCKS)
_PORTS = {"http": 80, "https": 443}


class BadProxy(ValueError):
    """A variable that does not name a usable proxy."""


class Proxy(NamedTuple):
    """A proxy, and the variable that names it."""

    url: str
    variable: str

    @property
    def scheme(self) -> str:
        """Protocol of the proxy."""
        return urlsplit(self.url).scheme

    def __str__(self) -> str:
        parts = urlsplit(self.url)
        return f"`{parts.scheme}://{parts.netloc.rpartition('@')[2]}` (`{self.variable}`)"


def find_proxy(url: str) -> Proxy | None:
    """Return the proxy for a URL, or None for a direct request. Requests to this machine are always direct.

    Raises `BadProxy` if the proxy's variable is not the address of a proxy. Invalid entries of `NO_PROXY`
    match nothing.
    """
    target = urlsplit(url)
    host = (target.hostname or "").rstrip(".")
    if not host or _is_loopback(host):
        return None
    proxy = _configured(target.scheme)
    if proxy is None or _is_excepted(host, target.port or _PORTS.get(target.scheme), proxy):
        return None
    address = proxy.url if "://" in proxy.url else f"http://{proxy.url}"
    try:
        parts = urlsplit(address)
        usable = parts.hostname and (parts.port is None or parts.port > 0)
    except ValueError:
        usable = None
    if not usable:
        raise BadProxy(f"`{proxy.variable}` is not the address of a proxy")
    if parts.scheme.lower() not in _SCHEMES:
        raise BadProxy(
            f"`{proxy.variable}` names a proxy of `{parts.scheme[:40]}`; supported are {', '.join(_SCHEMES)}"
        )
    return Proxy(address, proxy.variable)


def _configured(scheme: str) -> Proxy | None:
    names = [f"{scheme}_proxy", f"{scheme}_proxy".upper(), "all_proxy", "ALL_PROXY"]
    if "REQUEST_METHOD" in os.environ:  # in a CGI program, visitors can set `HTTP_PROXY` with a header
        names.remove(f"{scheme}_proxy".upper())
    for name in names:
        if value := os.environ.get(name, "").strip():
            return Proxy(value, name)
    system_proxy = getproxies().get(scheme, "").strip()  # from the system's settings, on macOS and Windows
    return Proxy(system_proxy, "system settings") if system_proxy else None


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")


def _is_excepted(host: str, port: int | None, proxy: Proxy) -> bool:
    if proxy.variable == "system settings" and proxy_bypass(host):
        return True
    return any(_matches(entry, host, port) for entry in _exceptions())


def _exceptions() -> Iterator[str]:
    listed = os.environ.get("no_proxy") or os.environ.get("NO_PROXY") or ""
    yield from (entry.lower() for entry in re.split(r"[\s,]+", listed) if entry)


def _matches(entry: str, host: str, port: int | None) -> bool:
    """Return whether an entry of `NO_PROXY` matches a host: a name, its parent, an address or a network."""
    if entry == "*":
        return True
    entry = entry.partition("://")[2] or entry
    if match := re.fullmatch(r"(\[[^\]]*\]|[^:]*):(\d+)", entry):
        entry, entry_port = match.groups()
        if int(entry_port) != port:
            return False
    entry = entry.strip("[]")
    try:
        network = ip_network(entry.partition("%")[0], strict=False)
    except ValueError:
        name = entry.removeprefix("*").strip(".")
        return bool(name) and (host == name or host.endswith(f".{name}"))
    try:
        return ip_address(host.partition("%")[0]) in network
    except ValueError:
        return False
