"""The proxy of a request, from the variables that curl, pip and uv read: `HTTPS_PROXY`, `ALL_PROXY`, ..."""

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
    """A proxy and what names it."""

    url: str
    variable: str

    @property
    def scheme(self) -> str:
        """How the proxy is spoken to."""
        return urlsplit(self.url).scheme

    def __str__(self) -> str:
        parts = urlsplit(self.url)
        return f"`{parts.scheme}://{parts.netloc.rpartition('@')[2]}` (`{self.variable}`)"


def find_proxy(url: str) -> Proxy | None:
    """Return the proxy for a URL, or None if it is asked directly, as this machine always is.

    Raises `BadProxy` if the variable of the proxy is not the address of one. Entries of `NO_PROXY` that
    cannot be read match nothing.
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
            f"`{proxy.variable}` names a proxy of `{parts.scheme[:40]}`; {', '.join(_SCHEMES)} work"
        )
    return Proxy(address, proxy.variable)


def _configured(scheme: str) -> Proxy | None:
    names = [f"{scheme}_proxy", f"{scheme}_proxy".upper(), "all_proxy", "ALL_PROXY"]
    if "REQUEST_METHOD" in os.environ:  # a visitor of a CGI program sets `HTTP_PROXY` by a header
        names.remove(f"{scheme}_proxy".upper())
    for name in names:
        if value := os.environ.get(name, "").strip():
            return Proxy(value, name)
    stated = getproxies().get(scheme, "").strip()  # from the system's settings, on macOS and Windows
    return Proxy(stated, "system settings") if stated else None


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
    """Return whether an entry of `NO_PROXY` means a host: a name, its parent, an address or a network."""
    if entry == "*":
        return True
    entry = entry.partition("://")[2] or entry
    if found := re.fullmatch(r"(\[[^\]]*\]|[^:]*):(\d+)", entry):
        entry, wanted = found.groups()
        if int(wanted) != port:
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
