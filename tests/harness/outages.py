"""Lets something that a hub in this process needs fail."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

from failing_upstream import failing_upstream
from obstore.exceptions import GenericError
from sqlalchemy import event
from wander_hub.index.upstream import Upstream

OUTAGES = ("nothing", "index behind", "object store", "database read-only")


class LostStorage:
    """An object store that does not respond."""

    def __getattr__(self, name: str) -> Any:
        def fail(*_: object, **__: object) -> NoReturn:
            raise GenericError("the object store is away")

        return fail


@contextmanager
def outage(hub: Any, what: str) -> Iterator[None]:
    """Let one of `OUTAGES` last for a block."""
    state, engine = hub.client._transport.app.state, hub.database.engine
    before = state.upstream, state.storage
    with failing_upstream("refuses connections") as url:
        if what == "index behind":
            state.upstream = Upstream(url)
        if what == "object store":
            state.storage = LostStorage()
        if what == "database read-only":
            engine.dispose()
            event.listen(engine, "connect", _only_read)
        try:
            yield
        finally:
            state.upstream, state.storage = before
            if what == "database read-only":
                event.remove(engine, "connect", _only_read)
                engine.dispose()


def _only_read(connection: Any, _: object) -> None:
    """Let transactions begin, and their first change fail."""
    if isinstance(connection, sqlite3.Connection):
        connection.execute("PRAGMA query_only=ON")
    else:
        connection.execute("SET default_transaction_read_only = on")
        connection.commit()
