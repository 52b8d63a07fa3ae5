"""Transports for OpenAI-compatible requests: aiohttp, or an `openai.AsyncOpenAI` instance.

A transport sends a request once and returns status, headers and body. The client decides about retries and
interprets the response.
"""

from __future__ import annotations

import asyncio
import base64
import io
import json
import math
import os
import re
import socket
import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from ipaddress import ip_address
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import parse_qsl, unquote, urlsplit, urlunsplit

import aiohttp
from aiohttp.abc import AbstractResolver, ResolveResult

from wander.errors import ConfigError
from wander.system.addresses import is_allowed, is_listed
from wander.system.proxies import SOCKS, BadProxy, find_proxy
from wander.types import start_lower

if TYPE_CHECKING:
    from openai import AsyncOpenAI

PUBLIC_ONLY = "WANDER_ENDPOINT_NETWORKS"
"""Variable that limits connections to public addresses with TLS and to the networks that it lists, separated
by commas. A hub sets it when it plays for somebody else. Without it, every address is allowed."""
_DURATION = re.compile(r"(?:(\d+)d)?(?:(\d+)h)?(?:(\d+)m)?(?:(\d+\.?\d*)s)?(?:(\d+\.?\d*)ms)?")
_UNITS = (86400, 3600, 60, 1, 0.001)
_YEAR_2001 = 1e9
_LARGE_BODY = 1 << 20
"""Size above which aiohttp expects a stream, which it sends in parts."""
_DIRECT = "set an HTTP proxy, `export HTTPS_PROXY=http://HOST:PORT`, or use none: `export NO_PROXY={host}`"
_OPEN_HEADERS = ("Content-Type", "Accept")
_SHORTEST_SECRET = 8
"""Minimum length of a secret. Shorter keys (`x`, `EMPTY`) are placeholders, and may occur as words in an
answer."""
MAX_ANSWER_BYTES = 1 << 27
"""Maximum size of a response. A completion with token ids and log-probabilities takes some kilobytes per
token."""
_MAX_GUARDED_BYTES = 1 << 23
"""The same in a process with `PUBLIC_ONLY`, which asks for neither and does not trust the endpoint."""


@dataclass(frozen=True, slots=True)
class Answer:
    """An HTTP response."""

    status: int
    headers: Mapping[str, str]
    body: bytes
    seconds: float | None = None
    """Seconds that the endpoint took, without our own waiting before the request."""


class TransportError(Exception):
    """Raised if a request received no readable answer."""

    def __init__(
        self, message: str, kind: Literal["lost", "timed out", "garbled", "untrusted"] = "lost"
    ) -> None:
        super().__init__(message)
        self.kind = kind
        """Kind of failure: a lost connection, a timeout, a response that is not HTTP, or an untrusted
        certificate."""

    @property
    def is_final(self) -> bool:
        """Whether the same request would fail again in the same way."""
        return self.kind in ("garbled", "untrusted")


class Secrets:
    """Secrets to remove from responses, because some endpoints quote the key that they reject."""

    def __init__(self, values: Iterable[str]) -> None:
        words = {word for value in values for word in (unquote(value), *value.split())}
        self._words = sorted(
            (word.encode() for word in words if len(word) >= _SHORTEST_SECRET), key=len, reverse=True
        )

    def remove_from(self, text: bytes) -> bytes:
        """Return the text with all secrets replaced."""
        for word in self._words:
            if word in text:
                text = text.replace(word, b"[secret]")
        return text


class Transport(ABC):
    """Sends single requests, without retries."""

    base_url: str
    """The endpoint's address, without credentials."""

    async def post(self, path: str, payload: dict[str, Any]) -> Answer:
        """Send a JSON body; raises `TransportError` if no response arrives."""
        return await self._request("POST", path, payload)

    async def get(self, path: str) -> Answer:
        """Fetch a path; raises `TransportError` if no response arrives."""
        return await self._request("GET", path, None)

    async def close(self) -> None:  # noqa: B027 - the creator of an SDK's client closes its connections
        """Release the connections; a later request opens new ones."""

    @abstractmethod
    async def _request(self, method: str, path: str, payload: dict[str, Any] | None) -> Answer:
        """Send a request; raises `TransportError` if no response arrives."""


class AiohttpTransport(Transport):
    """Sends requests over a session with persistent connections, opened in the running event loop when first
    used.

    If `max_connections` is None, the caller's concurrency decides their number. Proxies are taken from the
    environment, except for loopback addresses. Redirects are not followed, because a redirected POST would
    become a GET. The key is removed from everything that the endpoint sends back, because answers are shown
    and stored.
    """

    def __init__(
        self,
        base_url: str,
        headers: Mapping[str, str],
        *,
        timeout: float,
        connect_timeout: float,
        max_connections: int | None,
        max_answer_bytes: int = MAX_ANSWER_BYTES,
    ) -> None:
        guarded = PUBLIC_ONLY in os.environ
        self._max_answer_bytes = min(max_answer_bytes, _MAX_GUARDED_BYTES) if guarded else max_answer_bytes
        self.base_url = without_credentials(base_url).rstrip("/")
        parts = urlsplit(base_url)
        self._query = f"?{parts.query}" if parts.query else ""
        self._headers = dict.fromkeys(_OPEN_HEADERS, "application/json")
        if parts.username is not None:
            pair = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
            self._headers["Authorization"] = f"Basic {base64.b64encode(pair.encode()).decode()}"
        self._headers.update(headers)
        given = {name: value for name, value in self._headers.items() if name not in _OPEN_HEADERS}
        self._secrets = Secrets(
            [parts.password or "", *dict(parse_qsl(parts.query)).values(), *given.values()]
        )
        self._timeout = aiohttp.ClientTimeout(total=timeout, sock_connect=connect_timeout)
        self._limit = max_connections or 0
        try:
            self._proxy = find_proxy(self.base_url)
        except BadProxy as error:
            raise ConfigError(str(error), hint=_DIRECT.format(host=parts.hostname)) from error
        if self._proxy is not None and self._proxy.scheme in SOCKS:
            raise ConfigError(
                f"cannot reach endpoints through the SOCKS proxy {self._proxy}",
                hint=_DIRECT.format(host=parts.hostname),
            )
        self._session: aiohttp.ClientSession | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    async def close(self) -> None:
        """Close the session; a later request opens a new one."""
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    async def _request(self, method: str, path: str, payload: dict[str, Any] | None) -> Answer:
        body = None if payload is None else json.dumps(payload).encode()
        session = self._open_session()
        data = io.BytesIO(body) if body is not None and len(body) > _LARGE_BODY else body
        try:
            async with session.request(
                method,
                self.base_url + path + self._query,
                data=data,
                proxy=self._proxy.url if self._proxy is not None else None,
                allow_redirects=False,
            ) as response:
                return Answer(response.status, response.headers, await self._body(response))
        except TimeoutError as error:
            raise TransportError(str(error) or "no response in time", "timed out") from error
        except aiohttp.ClientPayloadError as error:
            if "encoding" in str(error):
                raise TransportError("the response cannot be decompressed", "garbled") from error
            raise TransportError("the connection broke in the middle of the response") from error
        except aiohttp.ClientSSLError as error:
            raise TransportError(self._describe(error), "untrusted") from error
        except (aiohttp.ClientProxyConnectionError, aiohttp.ClientHttpProxyError) as error:
            raise TransportError(f"the proxy {self._proxy} failed: {self._describe(error)}") from error
        except aiohttp.ClientResponseError as error:
            raise TransportError(f"the response is not HTTP: {self._describe(error)}", "garbled") from error
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise TransportError(self._describe(error)) from error

    async def _body(self, response: aiohttp.ClientResponse) -> bytes:
        """Read the response up to the maximum size, and remove secrets from it."""
        length, most = response.content_length, self._max_answer_bytes
        if length is not None and length <= most and "Content-Encoding" not in response.headers:
            return self._secrets.remove_from(await response.read())
        parts: list[bytes] = []
        size = 0
        async for part in response.content.iter_any():
            parts.append(part)
            size += len(part)
            if size > most:
                raise TransportError(f"the response is longer than {most:,} bytes", "garbled")
        return self._secrets.remove_from(b"".join(parts))

    def _describe(self, error: BaseException) -> str:
        text = _plain(error)
        return self._secrets.remove_from(text.encode("utf-8", "replace")).decode("utf-8", "replace")

    def _open_session(self) -> aiohttp.ClientSession:
        loop = asyncio.get_running_loop()
        if self._session is None or self._session.closed or self._loop is not loop:
            # A session belongs to its event loop. After that loop has ended, the session cannot be closed any
            # more.
            self._loop = loop
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(
                    limit=self._limit, ttl_dns_cache=300, resolver=_guarded_resolver(self.base_url)
                ),
                headers=self._headers,
                timeout=self._timeout,
                cookie_jar=aiohttp.DummyCookieJar(),
                max_line_size=1 << 16,
                max_field_size=1 << 16,
            )
        return self._session


class _GuardedResolver(aiohttp.ThreadedResolver):
    """Leaves out addresses that this process may not connect to.

    aiohttp connects to the addresses that it returns, so a name server cannot change its answer in between.
    """

    def __init__(self, networks: Sequence[str], *, public: bool) -> None:
        super().__init__()
        self._networks = networks
        self._is_allowed = is_allowed if public else is_listed

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        """Return the allowed addresses of a host. Raises `OSError` if no address is allowed."""
        found = await super().resolve(host, port, family)
        allowed = [entry for entry in found if self._is_allowed(ip_address(entry["host"]), self._networks)]
        if not allowed:
            raise OSError(None, f"`{host}` has no address that may be called")
        return allowed


def _guarded_resolver(url: str) -> AbstractResolver | None:
    """Return the resolver for a process with `PUBLIC_ONLY`, otherwise None."""
    networks = os.environ.get(PUBLIC_ONLY)
    if networks is None:
        return None
    listed = [part for part in networks.split(",") if part]
    return _GuardedResolver(listed, public=url.startswith("https:"))


class SdkTransport(Transport):
    """Sends requests through an `openai.AsyncOpenAI` (or Azure, or any subclass), with its URLs, headers and
    authentication."""

    def __init__(self, sdk: AsyncOpenAI) -> None:
        self._sdk = sdk.with_options(max_retries=0)
        self._secrets = Secrets([sdk.api_key])
        self.base_url = without_credentials(str(sdk.base_url).rstrip("/"))

    async def _request(self, method: str, path: str, payload: dict[str, Any] | None) -> Answer:
        import httpx
        import openai

        given = {} if payload is None else {"body": payload}
        try:
            response = await getattr(self._sdk, method.lower())(path, cast_to=httpx.Response, **given)
        except openai.APIStatusError as error:
            response = error.response
        except openai.APITimeoutError as error:
            raise TransportError("no response in time", "timed out") from error
        except openai.APIConnectionError as error:
            raise TransportError(str(error.__cause__ or error) or "APIConnectionError") from error
        return Answer(response.status_code, response.headers, self._secrets.remove_from(response.content))


def _plain(error: BaseException) -> str:
    """Return the text of an error without implementation details, such as `connection refused`."""
    cause = getattr(error, "os_error", None)
    if not isinstance(cause, OSError):
        return str(error).replace(" ssl:default", "") or type(error).__name__
    # aiohttp adds calls and addresses to the system's message. Name resolution errors have a message of their
    # own.
    number = cause.errno or 0
    said = os.strerror(number) if number > 0 else cause.strerror or str(cause)
    return start_lower(said)


def without_credentials(url: str) -> str:
    """Return a URL without user, password and query, suitable for a manifest and for messages."""
    parts = urlsplit(url)
    host = parts.netloc.rpartition("@")[2]
    return urlunsplit((parts.scheme, host, parts.path, "", ""))


def retry_after(headers: Mapping[str, str]) -> float | None:
    """Return the seconds after which the endpoint wants the next request, at least 0; None if it names no
    time.

    Reads `retry-after-ms` and `Retry-After`, as a number or a date. Without these headers, it reads the reset
    times of all exhausted limits, such as `x-ratelimit-reset-requests: 1m30s` with
    `x-ratelimit-remaining-requests: 0`. Unreadable values are ignored.
    """
    given = {name.lower(): value for name, value in headers.items()}
    now = _read_time(given.get("date", ""), 0.0) or time.time()
    if (milliseconds := _read_time(given.get("retry-after-ms", ""), now)) is not None:
        return milliseconds / 1000
    if (seconds := _read_time(given.get("retry-after", ""), now)) is not None:
        return seconds
    resets = [
        seconds
        for name, value in given.items()
        if "ratelimit" in name.replace("-", "")
        and "reset" in name
        and given.get(name.replace("reset", "remaining"), "0").strip() in ("0", "0.0")
        and (seconds := _read_time(value, now)) is not None
    ]
    return max(resets, default=None)


def _read_time(text: str, now: float) -> float | None:
    """Return the seconds from `now` to a time: `90`, `1m30s`, a Unix time, or a date of HTTP or ISO 8601."""
    text = text.strip()
    parts = _DURATION.fullmatch(text)
    if text and parts is not None:
        return sum(float(part) * unit for part, unit in zip(parts.groups("0"), _UNITS, strict=True))
    try:
        moment = float(text)
        if moment > _YEAR_2001:  # a Unix time, in seconds or in milliseconds
            moment = max(0.0, moment / (1000 if moment > 1000 * _YEAR_2001 else 1) - now)
    except ValueError:
        try:
            date = datetime.fromisoformat(text) if text[:4].isdigit() else parsedate_to_datetime(text)
            moment = (date if date.tzinfo is not None else date.replace(tzinfo=UTC)).timestamp() - now
        except (ValueError, OverflowError):
            return None
        moment = max(0.0, moment)  # a date may be in the past
    return moment if 0 <= moment < math.inf else None
