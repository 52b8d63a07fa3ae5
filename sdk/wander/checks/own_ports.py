"""Tells whether an address is a port on which this very process listens: such a call stays inside."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

_TABLES = (Path("/proc/self/net/tcp"), Path("/proc/self/net/tcp6"))
_LISTENING = "0A"
_LOOPBACK = ("127.0.0.1", "localhost", "::1")


def is_own_port(peer: Any) -> bool:
    """Tell it from the kernel's tables; False where there are none, and for every other machine."""
    if not isinstance(peer, tuple) or len(peer) < 2 or peer[0] not in _LOOPBACK:
        return False
    listening = _listening_inodes(peer[1])
    return bool(listening) and bool(listening & _own_inodes())


def _listening_inodes(port: int) -> set[str]:
    found: set[str] = set()
    for table in _TABLES:
        try:
            rows = table.read_text(encoding="ascii").splitlines()[1:]
        except OSError:
            continue
        for row in rows:
            fields = row.split()
            if fields[3] == _LISTENING and int(fields[1].rpartition(":")[2], 16) == port:
                found.add(f"socket:[{fields[9]}]")
    return found


def _own_inodes() -> set[str]:
    found: set[str] = set()
    try:
        handles = os.listdir("/proc/self/fd")
    except OSError:
        return found
    for handle in handles:
        try:
            found.add(os.readlink(f"/proc/self/fd/{handle}"))
        except OSError:  # closed while we looked
            continue
    return found
