"""What the calls of a program share: the settings and token that the command finds, and one connection."""

from __future__ import annotations

import contextlib
from contextlib import AbstractContextManager
from threading import Lock
from typing import TYPE_CHECKING

from wander_client.context import CommonOptions, Invocation
from wander_client.credentials import Credential
from wander_client.hub.api import HubApi, require_token
from wander_client.python.output import PythonOutput

if TYPE_CHECKING:
    import httpx


class Session(Invocation):
    """One hub for a program: connections are kept, and a login elsewhere counts from the next call on."""

    def __init__(
        self,
        url: str | None,
        token: str | None,
        transport: httpx.BaseTransport | None = None,
        *,
        progress: bool = True,
    ) -> None:
        given = None if token is None else Credential(token, "given")
        output = PythonOutput(progress=progress)
        super().__init__(CommonOptions(mode="quiet", hub=url), output, transport, given=given)
        self._connections: dict[str | None, HubApi] = {}
        self._lock = Lock()

    def _open(self, credential: Credential | None, *, login: bool) -> AbstractContextManager[HubApi]:
        if login:
            require_token(self.settings.hub, credential)
        token = credential.token if credential else None
        with self._lock:
            if token not in self._connections:
                self._connections[token] = HubApi(self.settings.hub, token, transport=self._transport)
            return contextlib.nullcontext(self._connections[token])

    def close(self) -> None:
        """Close the connections; the next call opens new ones."""
        with self._lock:
            while self._connections:
                self._connections.popitem()[1].close()
