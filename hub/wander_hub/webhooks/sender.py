"""Sending one message: a POST request without redirects and proxies, within a deadline."""

from __future__ import annotations

import re
import ssl
import time
from collections.abc import Mapping
from urllib.parse import urlsplit

import httpcore
from wander.types import start_lower

from wander_hub import __version__
from wander_hub.jobs import storable
from wander_hub.security import without_secrets
from wander_hub.settings import Settings
from wander_hub.webhooks.addresses import fault_of
from wander_hub.webhooks.connection import Guard, NotAllowed, Resolve, resolve
from wander_hub.webhooks.outcome import DeliveryOutcome

TIMEOUT_SECONDS = 15.0
KEPT_BYTES = 1000


class WebhookSender:
    """Sends messages as a hub's settings allow."""

    def __init__(
        self,
        settings: Settings,
        *,
        resolver: Resolve = resolve,
        timeout: float = TIMEOUT_SECONDS,
        ssl_context: ssl.SSLContext | None = None,
    ) -> None:
        self._http, self._networks = settings.webhook_http, settings.webhook_networks
        self._resolver, self._timeout, self._ssl = resolver, timeout, ssl_context

    def send(self, url: str, headers: Mapping[str, str], body: bytes) -> DeliveryOutcome:
        """POST a message. The error of the outcome shows only the host of the address."""
        begun = time.monotonic()
        try:
            # The settings may have changed since the webhook was created.
            if (fault := fault_of(url, http=self._http, networks=self._networks)) is not None:
                raise NotAllowed(fault)
            status, answer = self._post(url, headers, body, begun + self._timeout)
            error = _fault(status)
        except NotAllowed as refusal:
            status, answer, error = None, None, str(refusal)
        except httpcore.TimeoutException:
            status, answer, error = None, None, f"no complete response within {self._timeout:g} s"
        except (httpcore.NetworkError, httpcore.ProtocolError, OSError, ValueError) as failure:
            status, answer, error = None, None, _reason(failure)
        return DeliveryOutcome(status, answer, error, time.monotonic() - begun)

    def _post(self, url: str, headers: Mapping[str, str], body: bytes, deadline: float) -> tuple[int, str]:
        request_headers = {
            "Host": urlsplit(url).netloc,
            "User-Agent": f"wander-hub/{__version__}",
            "Content-Type": "application/json",
            "Accept-Encoding": "identity",
            "Content-Length": str(len(body)),
            "Connection": "close",
            **headers,
        }
        kept = b""
        context = self._ssl or ssl.create_default_context()
        guard = Guard(self._networks, deadline, self._resolver)
        with (
            httpcore.ConnectionPool(ssl_context=context, network_backend=guard, max_connections=1) as pool,
            pool.stream("POST", url, headers=list(request_headers.items()), content=body) as answer,
        ):
            for piece in answer.iter_stream():
                kept += piece
                if len(kept) >= KEPT_BYTES:
                    break  # do not read the rest, which may be endless
        return answer.status, _cleaned(kept[:KEPT_BYTES].decode(errors="replace"))


def _fault(status: int) -> str | None:
    if 200 <= status < 300:
        return None
    note = "; redirects are not followed" if 300 <= status < 400 else ""
    return f"it returned status {status}{note}"


def _reason(failure: Exception) -> str:
    """Return why a connection failed, such as `connection refused`, without the number of the error."""
    text = re.sub(r"^\[Errno -?\d+\] ", "", str(failure)) or type(failure).__name__
    return _cleaned(start_lower(text))


def _cleaned(text: str) -> str:
    return without_secrets(storable(text))[:KEPT_BYTES]
