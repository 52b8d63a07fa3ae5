"""Waiting for file descriptors, and how many a process may open.

`select.select` fails for descriptors from 1,024 on, which a process with some hundred boxes or connections
has. It is therefore banned (pyproject.toml).
"""

from __future__ import annotations

import resource
import select
from contextlib import suppress

_MOST_FILES = 65_536
"""Limit of open files if the system sets no limit."""


def wait_readable(descriptor: int, seconds: float | None = None) -> bool:
    """Wait until a descriptor can be read or was closed at its other end; return whether it happened in
    time."""
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    return bool(poll.poll(None if seconds is None else seconds * 1000))


def raise_file_limit() -> None:
    """Raise this process's limit of open files, and so of connections and boxes, to the allowed maximum.

    Most systems start with 1,024.
    """
    now, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _MOST_FILES if most == resource.RLIM_INFINITY else most
    if now in range(wanted):  # -1 means unlimited
        with suppress(OSError, ValueError):  # keep the current limit if the system rejects the new one
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, most))
