"""What installed environments take of the disk, and which of it can go."""

from __future__ import annotations

import contextlib
import shutil
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Literal

from wander_client.packages.store import EnvironmentStore, Installed
from wander_client.packages.virtualenvs import Space, space_of

State = Literal["ok", "broken", "unreferenced", "unfinished"]
_SETTLED = timedelta(minutes=10)
"""An installation that runs now has used its virtual environment within this time."""


@dataclass(frozen=True)
class Cached:
    """One virtual environment, or what an installation left that was killed."""

    path: Path
    state: State
    """`broken`: its Python is gone; `unreferenced`: nothing uses it; `unfinished`: a killed build."""
    space: Space
    last_used: datetime
    users: tuple[Installed, ...] = ()
    """The installed environments that run in it."""


def cached_in(store: EnvironmentStore) -> list[Cached]:
    """Return everything in the store, the most recently used first; killed builds come last."""
    users: dict[str, list[Installed]] = {}
    for one in store.all():
        users.setdefault(one.record.virtualenv, []).append(one)
    found = [_cached(store, key, users.pop(key, [])) for key in store.virtualenvs.names()]
    found += [_lost(one) for ones in users.values() for one in ones]
    stale = [
        Cached(path, "unfinished", space_of(path), datetime.fromtimestamp(path.stat().st_mtime, UTC))
        for path in store.stale()
    ]
    return sorted(found, key=lambda each: each.last_used, reverse=True) + stale


def _cached(store: EnvironmentStore, key: str, users: list[Installed]) -> Cached:
    state: State = "ok" if users else "unreferenced"
    if not store.virtualenvs.works(key):
        state = "broken"
    path = store.virtualenvs.root / key
    return Cached(path, state, space_of(path), store.virtualenvs.last_used(key), tuple(users))


def _lost(one: Installed) -> Cached:
    """Return an installed environment whose virtual environment is not there."""
    return Cached(one.path, "broken", space_of(one.path), one.record.installed_at, (one,))


def prunable(found: list[Cached], unused_for: timedelta | None, now: datetime) -> list[Cached]:
    """Return what can go: broken, unfinished, unreferenced, and with `unused_for` what was not used so long.

    A virtual environment that nothing uses yet may belong to an installation that runs now: it stays a while.
    """
    return [
        each
        for each in found
        if each.state in ("broken", "unfinished")
        or (each.state == "unreferenced" and now - each.last_used > _SETTLED)
        or (unused_for is not None and now - each.last_used > unused_for)
    ]


def prune(store: EnvironmentStore, chosen: list[Cached]) -> list[Cached]:
    """Remove what was chosen, with the environments installed in it; returns what went.

    What an installation holds at this moment stays.
    """
    gone = []
    for each in chosen:
        if each.state == "unfinished":
            shutil.rmtree(each.path, ignore_errors=True)
        else:
            for one in each.users:
                with store.locked(one.name), contextlib.suppress(FileNotFoundError):
                    store.remove(one)
            if each.path.parent == store.virtualenvs.root and each.path.exists():
                store.virtualenvs.remove(each.path.name)
        if not each.path.exists():
            gone.append(each)
    return gone
