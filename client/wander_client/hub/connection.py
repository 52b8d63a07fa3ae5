"""HTTP connection to a hub that may be malicious: responses are limited, and only the hub gets the token.

All responses are read here, with limits on their bytes (compressed and decompressed) and on the time. A
redirect to another host carries neither the token nor the body.
"""

from __future__ import annotations

import contextlib
import queue
import ssl
import threading
import time
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version as installed_version
from typing import Any, Protocol, TypeVar
from urllib.parse import urlsplit

import httpx
from wander.system.proxies import BadProxy, find_proxy
from wander.wire.package_index import origin_of

from wander_client.errors import ClientError, LoginRequired, Unavailable, name_option

REQUEST_ID_HEADER = "X-Request-ID"
"""Header with the ID of the request in the hub's log."""
MOST_PAGES = 10_000
"""Maximum number of pages of a list."""
_REDIRECTS = frozenset({301, 302, 303, 307, 308})
_MOST_REDIRECTS = 5
_MIB = 1 << 20
_GZIP = 31
"""`zlib`'s code for the gzip format."""


Row = TypeVar("Row", covariant=True)
AnyPage = TypeVar("AnyPage", bound="PagedAnswer")


@dataclass(frozen=True)
class Limits:
    """Limits on the responses of a hub."""

    answer_bytes: int = 64 * _MIB
    """Decompressed bytes of a response in memory.

    The largest, a run of a million examples, has half of them.
    """
    answer_seconds: float = 300.0
    """Seconds for the body of such a response."""
    start_seconds: float = 180.0
    """Seconds until the headers of a response arrive, in addition to the time for sending a long body."""
    bytes_per_second: int = 16 * 1024
    """Minimum speed of a download, measured over `patience` seconds."""
    patience: float = 60.0


@dataclass(frozen=True)
class HubAnswer:
    """A response with its whole body."""

    status: int
    headers: httpx.Headers
    content: bytes
    url: str

    @property
    def is_success(self) -> bool:
        """Whether the request succeeded."""
        return 200 <= self.status < 300


class StreamedResponse:
    """A response whose body is read in pieces."""

    def __init__(self, response: httpx.Response, hub: str, limits: Limits) -> None:
        self.status = response.status_code
        self.headers = response.headers
        self.url = str(response.url)
        self._response, self._hub, self._limits = response, hub, limits

    def pieces(self, most: int, seconds: float | None = None) -> Iterator[bytes]:
        """Yield the decompressed body. Raises `Unavailable` if the hub exceeds a limit.

        `most` limits the bytes, and `seconds` the time of the whole body. Without `seconds`, the hub must
        keep up a minimum speed.
        """
        started, total = time.monotonic(), 0
        window, received = started, 0
        unpacker = self._choose_unpacker()
        for raw in self._response.stream:  # type: ignore[union-attr]
            now = time.monotonic()
            received += len(raw)
            if seconds is not None and now - started > seconds:
                raise self._slow(f"did not finish its response within {seconds:g} s")
            if seconds is None and now - window > self._limits.patience:
                if received < self._limits.bytes_per_second * (now - window):
                    raise self._slow(f"sent only {received:,} bytes in {now - window:.0f} s")
                window, received = now, 0
            for piece in [raw] if unpacker is None else self._unpack(unpacker, raw):
                total += len(piece)
                if total > most:
                    raise hub_fault(self._hub, f"sent more than {most:,} bytes", code="answer_too_long")
                yield piece
        if unpacker is not None and not unpacker.eof:
            raise hub_fault(self._hub, "sent an incomplete compressed response")

    def _choose_unpacker(self) -> zlib._Decompress | None:
        encoding = self.headers.get("Content-Encoding", "identity").strip().lower()
        if encoding not in ("", "identity", "gzip"):
            raise hub_fault(
                self._hub, f"compressed its response as `{encoding[:40]}`, which was not requested"
            )
        return zlib.decompressobj(_GZIP) if encoding == "gzip" else None

    def _unpack(self, unpacker: zlib._Decompress, raw: bytes) -> Iterator[bytes]:
        """Decompress bytes in small pieces, because a small input can expand a thousandfold."""
        try:
            while raw:
                piece = unpacker.decompress(raw, 1 << 16)
                if unpacker.unused_data or (unpacker.eof and not piece):
                    raise hub_fault(self._hub, "sent data after the end of a compressed response")
                raw = unpacker.unconsumed_tail
                yield piece
        except zlib.error as error:
            raise hub_fault(self._hub, f"sent an invalid compressed response: {error}") from error

    def _slow(self, problem: str) -> Unavailable:
        return hub_fault(self._hub, problem, code="answer_too_slow", retryable=True)


class HubConnection:
    """An HTTP connection to a hub."""

    def __init__(
        self,
        url: str,
        token: str | None = None,
        *,
        transport: httpx.BaseTransport | None = None,
        limits: Limits | None = None,
    ) -> None:
        self.url = url.rstrip("/")
        self.limits = limits or Limits()
        self._origin = origin_of(self.url)
        self._token: dict[str, str] = {}
        if token is not None:
            if not token.isascii() or any(c.isspace() for c in token):
                raise LoginRequired(
                    "the token contains invalid characters", hint="run `wander login` with a new token"
                )
            self._token["Authorization"] = f"Bearer {token}"
        self._http = httpx.Client(
            transport=transport or _Routes(),
            headers={
                "User-Agent": f"wander-client/{installed_version('wander-client')}",
                "Accept-Encoding": "gzip",
            },
            timeout=httpx.Timeout(30, read=120, write=120),
        )

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def absolute(self, url: str) -> str:
        """Return the absolute form of a URL in a response, which may be relative to the hub."""
        return self.join(self.url + "/", url)

    def is_own(self, url: str) -> bool:
        """Return whether a URL is on the hub, so that the hub's token may be sent to it."""
        # Includes the same hub over TLS: the token was already sent there without TLS.
        secure = origin_of(self._origin.replace("http://", "https://", 1))
        return origin_of(url) in {self._origin, secure} - {""}

    def send(self, method: str, path: str, **options: Any) -> HubAnswer:
        """Send a request to the hub and return the whole response, of any status."""
        with self.stream(method, self.url + path, **options) as answer:
            content = b"".join(answer.pieces(self.limits.answer_bytes, self.limits.answer_seconds))
            return HubAnswer(answer.status, answer.headers, content, answer.url)

    @contextlib.contextmanager
    def stream(
        self,
        method: str,
        url: str,
        *,
        headers: Mapping[str, str] | None = None,
        elsewhere: bool = False,
        **options: Any,
    ) -> Iterator[StreamedResponse]:
        """Send a request and yield the response. With `elsewhere`, a file may be on another host.

        Raises `Unavailable` if the hub does not respond or exceeds a limit.
        """
        target = url
        with self._reach(), contextlib.ExitStack() as stack:
            for _ in range(_MOST_REDIRECTS + 1):
                self._require_allowed(method, target, elsewhere=elsewhere)
                own = self._token if self.is_own(target) else {}
                request = self._http.build_request(
                    method, target, headers={**own, **(headers or {})}, **options
                )
                response = self._open(request)
                if response.status_code not in _REDIRECTS or "Location" not in response.headers:
                    stack.callback(response.close)
                    yield StreamedResponse(response, self.url, self.limits)
                    return
                response.close()
                if method != "GET" and response.status_code not in (307, 308):
                    raise hub_fault(self.url, f"redirects a `{method}` with {response.status_code}")
                next_target = self.join(target, response.headers["Location"])
                if _loses_tls(target, next_target):
                    raise hub_fault(self.url, "redirects from https to http", code="redirected")
                target, options = next_target, {**options, "params": None}
            raise hub_fault(self.url, "redirects too often")

    def _require_allowed(self, method: str, target: str, *, elsewhere: bool) -> None:
        """Raise an error for URLs that must not be requested: on another host, or with another protocol."""
        parts = urlsplit(target)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.username or parts.password:
            raise hub_fault(self.url, f"sent `{target[:200]}`, which is not the URL of a file")
        if self.is_own(target) or (elsewhere and method == "GET" and not _loses_tls(self.url, target)):
            return
        raise ClientError(
            f"the hub `{self.url}` redirects to `{parts.scheme}://{parts.netloc}`, which is not trusted",
            hint="if the hub has moved, use its new address: " + name_option("hub", "URL"),
            code="redirected",
        )

    def _open(self, request: httpx.Request) -> httpx.Response:
        """Send a request and return the response before its body is read. Gives up if the headers take too
        long. httpx limits the time of each read, but not of all reads together, so another thread waits for
        the headers.
        """
        outcome: queue.SimpleQueue[httpx.Response | BaseException] = queue.SimpleQueue()
        given_up = threading.Event()

        def work() -> None:
            try:
                response = self._http.send(request, stream=True)
            except BaseException as error:  # noqa: BLE001 - raised in the waiting thread
                outcome.put(error)
                return
            outcome.put(response)
            if given_up.is_set():
                response.close()

        size = int(request.headers.get("Content-Length", 0))
        patience = self.limits.start_seconds + size / self.limits.bytes_per_second
        threading.Thread(target=work, daemon=True, name="hub request").start()
        try:
            response = outcome.get(timeout=patience)
        except BaseException as error:
            given_up.set()
            if isinstance(error, queue.Empty):
                raise httpx.ReadTimeout("the headers of the response did not arrive") from None
            raise
        if isinstance(response, BaseException):
            raise response
        return response

    def join(self, base: str, url: str) -> str:
        """Return the absolute form of a URL that may be relative to `base`."""
        try:
            return str(httpx.URL(base).join(url))
        except (httpx.InvalidURL, ValueError, TypeError):
            raise hub_fault(self.url, f"sent `{url[:200]}`, which is not a URL") from None

    @contextlib.contextmanager
    def _reach(self) -> Iterator[None]:
        try:
            yield
        except BadProxy as error:
            raise ClientError(
                str(error), hint=f"fix it, or bypass the proxy: {_no_proxy(self.url)}", code="bad_proxy"
            ) from error
        except (httpx.ConnectError, httpx.ConnectTimeout, httpx.ProxyError) as error:
            raise self._unreachable(error) from error
        except httpx.TimeoutException as error:
            raise Unavailable(
                f"the hub at `{self.url}` did not respond in time",
                hint="try again in a moment",
                code="timeout",
            ) from error
        except (httpx.InvalidURL, httpx.UnsupportedProtocol) as error:
            raise hub_fault(self.url, f"sent an unusable URL: {error}") from error
        except httpx.HTTPError as error:
            raise Unavailable(
                f"the connection to the hub at `{self.url}` was lost: {error or type(error).__name__}",
                hint="try again in a moment",
                code="hub_unreachable",
            ) from error

    def _unreachable(self, error: httpx.TransportError) -> Unavailable:
        """Return the error for a failed connection to the hub or its proxy."""
        cause: BaseException | None = error
        while cause is not None and not isinstance(cause, ssl.SSLCertVerificationError):
            cause = cause.__cause__ or cause.__context__  # httpcore does not set a cause
        if cause is not None:
            return Unavailable(
                f"the certificate of the hub at `{self.url}` is not trusted here",
                hint="set `SSL_CERT_FILE` to your organization's certificates",
                code="hub_untrusted",
                retryable=False,
                detail=str(error),
            )
        if (proxy := find_proxy(str(error.request.url))) is not None:
            rejected = isinstance(error, httpx.ProxyError)
            fault = "rejected the connection" if rejected else "does not respond; it is set for connections"
            return Unavailable(
                f"the proxy {proxy} {fault} to the hub `{self.url}`",
                hint=f"start the proxy, or connect to the hub without it: {_no_proxy(self.url)}",
                code="proxy_unreachable",
                detail=str(error),
            )
        is_here = urlsplit(self.url).hostname in ("localhost", "127.0.0.1", "::1")
        return Unavailable(
            f"cannot connect to the hub `{self.url}`",
            hint=("start it with `wander-hub serve`" if is_here else "check the URL and the network")
            + ", or choose another hub with "
            + name_option("hub", "URL")
            + " or `WANDER_HUB`",
            code="hub_unreachable",
            detail=_reason(error),
        )


def _reason(error: BaseException) -> str:
    """Return why a connection failed, such as `connection refused`, without the number of the error."""
    from wander.types import start_lower

    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, OSError):
        cause = cause.__cause__ or cause.__context__  # httpcore does not set a cause
    text = (cause.strerror if isinstance(cause, OSError) else None) or str(error)
    return start_lower(text)


class _Routes(httpx.BaseTransport):
    """Send each request directly, or through the proxy that is set for its URL.

    httpx reads the same variables, but fails all requests if a single entry of `NO_PROXY` is invalid.
    """

    def __init__(self) -> None:
        self._transports: dict[str | None, httpx.HTTPTransport] = {}
        self._lock = threading.Lock()

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        """Send a request."""
        proxy = find_proxy(str(request.url))
        address = proxy.url if proxy is not None else None
        with self._lock:
            if address not in self._transports:
                try:
                    self._transports[address] = httpx.HTTPTransport(proxy=address)
                except ImportError as error:
                    raise ClientError(
                        f"the proxy {proxy} requires packages that are not installed",
                        hint="run `pip install 'wander-client[socks]'`",
                        code="missing_extra",
                    ) from error
        return self._transports[address].handle_request(request)

    def close(self) -> None:
        """Close the connections."""
        for transport in self._transports.values():
            transport.close()


def _no_proxy(url: str) -> str:
    return f"`export NO_PROXY={urlsplit(url).hostname}`"


def hub_fault(
    hub: str,
    problem: str,
    *,
    code: str = "unexpected_answer",
    retryable: bool = False,
    request_id: str | None = None,
) -> Unavailable:
    """Return the error for a hub that behaves incorrectly."""
    return Unavailable(
        f"the hub at `{hub}` {problem}",
        hint="this is an error of the hub, or of a proxy in between; tell the hub's operator",
        code=code,
        retryable=retryable,
        request_id=request_id,
    )


def _loses_tls(before: str, after: str) -> bool:
    return (urlsplit(before).scheme, urlsplit(after).scheme) == ("https", "http")


class PagedAnswer(Protocol):
    """A page of a list."""

    @property
    def next(self) -> str | None:
        """The cursor of the next page, or None after the last page."""


class RowPage(PagedAnswer, Protocol[Row]):
    """A page whose rows are in `data`."""

    @property
    def data(self) -> Sequence[Row]:
        """The rows of the page."""


def read_rows(hub: str, fetch: Callable[[str | None], RowPage[Row]]) -> Iterator[Row]:
    """Yield the rows of all pages."""
    for page in read_pages(hub, fetch):
        yield from page.data


def read_pages(hub: str, fetch: Callable[[str | None], AnyPage]) -> Iterator[AnyPage]:
    """Yield all pages. `fetch` receives the cursor of a page, or None for the first page.

    Raises `Unavailable` if a cursor repeats or there are too many pages.
    """
    cursors: set[str | None] = set()
    cursor = None
    while cursor not in cursors and len(cursors) < MOST_PAGES:
        cursors.add(cursor)
        page = fetch(cursor)
        yield page
        if page.next is None:
            return
        cursor = page.next
    raise hub_fault(hub, "returned too many pages")
