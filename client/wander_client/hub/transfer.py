"""Sends what goes to a hub in parts, whatever is lost on the way.

Every request of a transfer is harmless when it is repeated, so each is made again while the hub does not
answer, and whoever was cut off goes on where the hub is.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from wander_client.errors import Unavailable
from wander_client.hub.api import HubApi, Model

ATTEMPTS = 5
"""A request is made this often at least, however long each attempt takes."""
CHUNK_BYTES = 4 * 1024 * 1024
"""Bytes of a part, about; a single rollout may be larger."""
_FIRST_WAIT, _LONGEST_WAIT = 0.5, 10.0

Answer = TypeVar("Answer")


class Sender:
    """The requests of one transfer, each made again for `patience` seconds while the hub does not answer."""

    def __init__(
        self,
        hub: HubApi,
        patience: float,
        go_on: str,
        *,
        trouble: Callable[[str], None] = lambda words: None,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.hub = hub
        self._patience, self._go_on = patience, go_on
        self._trouble, self._sleep = trouble, sleep

    def put(self, path: str, content: bytes, model: type[Model]) -> Model:
        """Send a part that the hub takes in any order."""
        return self.persist(lambda: self.hub.send_bytes("PUT", path, content, model, {}))

    def persist(self, request: Callable[[], Answer]) -> Answer:
        """Make a request until the hub answers; the hint of what is raised says how to go on."""
        give_up, wait, failed = time.monotonic() + self._patience, _FIRST_WAIT, 0
        while True:
            try:
                return request()
            except Unavailable as error:
                failed += 1
                late = failed >= ATTEMPTS and time.monotonic() + wait > give_up
                if late or not error.retryable:
                    error.hint = self._go_on
                    raise
                self._trouble(f"{error}; trying again")
                self._sleep(wait)
                wait = min(2 * wait, _LONGEST_WAIT)
