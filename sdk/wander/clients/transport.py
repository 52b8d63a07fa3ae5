"""How an OpenAI-compatible request travels: over aiohttp, or through an `openai.AsyncOpenAI` instance.

A transport sends one request once and answers with status, headers and body. Retries and meaning are the
client's.
"""

from __future__ import annotations

import asyncio
import base64
import io
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import unquote, urlsplit, urlunsplit
from urllib.request import getproxies, proxy_bypass

import aiohttp

if TYPE_CHECKING:
    from openai import AsyncOpenAI

_LARGE_BODY = 1 << 20
"""Above this aiohttp wants a stream, which it sends in parts."""
_LOOPBACK = {"localhost", "127.0.0.1", "::1"}


@dataclass(frozen=True, slots=True)
class Answer:
    """What came back over HTTP."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class TransportError(Exception):
    """The request got no answer; `timed_out` tells that the endpoint took too long."""

    def __init__(self, message: str, *, timed_out: bool = False) -> None:
        super().__init__(message)
        self.timed_out = timed_out


class Transport(Protocol):
    """Sends one request, once."""

    @property
    def base_url(self) -> str:
        """The endpoint's address, without credentials."""
        ...

    async def post(self, path: str, payload: dict[str, Any]) -> Answer:
        """Send a JSON body; raises `TransportError` when no answer comes."""
        ...

    async def get(self, path: str) -> Answer:
        """Fetch a path; raises `TransportError` when no answer comes."""
        ...

    async def close(self) -> None:
        """Release the connections."""
        ...


class AiohttpTransport:
    """Keeps connections open in one session, made in the running event loop when first used.

    `max_connections` None leaves their number to the caller's concurrency. Proxies are taken from the
    environment, except for loopback addresses.
    """

    def __init__(
        self,
        base_url: str,
        headers: Mapping[str, str],
        *,
        timeout: float,
        connect_timeout: float,
        max_connections: int | None,
    ) -> None:
        self._url = without_credentials(base_url).rstrip("/")
        parts = urlsplit(base_url)
        self._query = f"?{parts.query}" if parts.query else ""
        self._headers = {"Content-Type": "application/json", "Accept": "application/json"}
        if parts.username is not None:
            pair = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
            self._headers["Authorization"] = f"Basic {base64.b64encode(pair.encode()).decode()}"
        self._headers.update(headers)
        self._timeout = aiohttp.ClientTimeout(total=timeout, sock_connect=connect_timeout)
        self._limit = max_connections or 0
        self._proxy = _proxy(self._url)
        self._session: aiohttp.ClientSession | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    @property
    def base_url(self) -> str:
        """The endpoint's address, without credentials."""
        return self._url

    async def post(self, path: str, payload: dict[str, Any]) -> Answer:
        """Send a JSON body; raises `TransportError` when no answer comes."""
        return await self._request("POST", path, json.dumps(payload).encode())

    async def get(self, path: str) -> Answer:
        """Fetch a path; raises `TransportError` when no answer comes."""
        return await self._request("GET", path, None)

    async def close(self) -> None:
        """Close the session; a later request opens a new one."""
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    async def _request(self, method: str, path: str, body: bytes | None) -> Answer:
        session = self._open_session()
        data = io.BytesIO(body) if body is not None and len(body) > _LARGE_BODY else body
        try:
            async with session.request(
                method, self._url + path + self._query, data=data, proxy=self._proxy
            ) as response:
                return Answer(response.status, response.headers, await response.read())
        except TimeoutError as error:
            raise TransportError(_described(error, "no answer in time"), timed_out=True) from error
        except aiohttp.ClientPayloadError as error:
            raise TransportError("the connection broke in the middle of the answer") from error
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise TransportError(_described(error, type(error).__name__)) from error

    def _open_session(self) -> aiohttp.ClientSession:
        loop = asyncio.get_running_loop()
        if self._session is None or self._session.closed or self._loop is not loop:
            # A session belongs to its loop; one of an ended loop cannot be closed any more.
            self._loop = loop
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=self._limit, ttl_dns_cache=300),
                headers=self._headers,
                timeout=self._timeout,
                cookie_jar=aiohttp.DummyCookieJar(),
                max_line_size=1 << 16,
                max_field_size=1 << 16,
            )
        return self._session


class SdkTransport:
    """Sends through an `openai.AsyncOpenAI` (or Azure, or any subclass): its URLs, headers and sign-in."""

    def __init__(self, sdk: AsyncOpenAI) -> None:
        self._sdk = sdk.with_options(max_retries=0)

    @property
    def base_url(self) -> str:
        """The endpoint's address, without credentials."""
        return without_credentials(str(self._sdk.base_url).rstrip("/"))

    async def post(self, path: str, payload: dict[str, Any]) -> Answer:
        """Send a JSON body; raises `TransportError` when no answer comes."""
        return await self._request("post", path, body=payload)

    async def get(self, path: str) -> Answer:
        """Fetch a path; raises `TransportError` when no answer comes."""
        return await self._request("get", path)

    async def close(self) -> None:
        """Leave the connections to whoever made the SDK's client."""

    async def _request(self, method: str, path: str, **given: Any) -> Answer:
        import httpx
        import openai

        try:
            response = await getattr(self._sdk, method)(path, cast_to=httpx.Response, **given)
        except openai.APIStatusError as error:
            response = error.response
        except openai.APITimeoutError as error:
            raise TransportError("no answer in time", timed_out=True) from error
        except openai.APIConnectionError as error:
            raise TransportError(_described(error.__cause__ or error, "APIConnectionError")) from error
        return Answer(response.status_code, response.headers, response.content)


def without_credentials(url: str) -> str:
    """Return a URL without user, password and query, fit for a manifest and for messages."""
    parts = urlsplit(url)
    host = parts.netloc.rpartition("@")[2]
    return urlunsplit((parts.scheme, host, parts.path, "", ""))


def _proxy(url: str) -> str | None:
    parts = urlsplit(url)
    host = parts.hostname or ""
    if host in _LOOPBACK or proxy_bypass(host):
        return None
    return getproxies().get(parts.scheme)


def _described(error: BaseException, fallback: str) -> str:
    return str(error) or fallback
