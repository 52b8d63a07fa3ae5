"""HTTP with one hub, which may be a bad one: what it answers is bounded, and its token goes nowhere else.

Every answer is read here, with limits of its bytes (as sent and unpacked) and of the time that it takes. A
redirect takes neither a token nor a body to another host.
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
"""Names the request in the hub's log too."""
MOST_PAGES = 10_000
"""Pages of a list that are read."""
_REDIRECTS = frozenset({301, 302, 303, 307, 308})
_MOST_REDIRECTS = 5
_MIB = 1 << 20
_GZIP = 31
"""What `zlib` calls the form of gzip."""


Row = TypeVar("Row", covariant=True)
AnyPage = TypeVar("AnyPage", bound="Page")


@dataclass(frozen=True)
class Limits:
    """The limits of what a hub may answer."""

    answer_bytes: int = 64 * _MIB
    """Unpacked bytes of an answer that is held in memory. A run of a million examples takes half of them."""
    answer_seconds: float = 300.0
    """Time for such an answer, from the first byte of its body to the last."""
    start_seconds: float = 180.0
    """Time until the head of an answer is here; sending a long body adds to it."""
    bytes_per_second: int = 16 * 1024
    """A file that comes more slowly than this over `patience` seconds is given up."""
    patience: float = 60.0


@dataclass(frozen=True)
class Answer:
    """An answer that was read whole."""

    status: int
    headers: httpx.Headers
    content: bytes
    url: str

    @property
    def is_success(self) -> bool:
        """Whether the hub did what was asked."""
        return 200 <= self.status < 300


class StreamedAnswer:
    """An answer whose body comes piece by piece."""

    def __init__(self, response: httpx.Response, hub: str, limits: Limits) -> None:
        self.status = response.status_code
        self.headers = response.headers
        self.url = str(response.url)
        self._response, self._hub, self._limits = response, hub, limits

    def pieces(self, most: int, seconds: float | None = None) -> Iterator[bytes]:
        """Yield the unpacked body; raises `Unavailable` when the hub exceeds a limit.

        `most` bounds its bytes, `seconds` the time of the whole body. Without `seconds` the body has to keep
        up a least speed.
        """
        began, total = time.monotonic(), 0
        window, received = began, 0
        unpacker = self._choose_unpacker()
        for raw in self._response.stream:  # type: ignore[union-attr]
            now = time.monotonic()
            received += len(raw)
            if seconds is not None and now - began > seconds:
                raise self._slow(f"was not through with its answer after {seconds:g} s")
            if seconds is None and now - window > self._limits.patience:
                if received < self._limits.bytes_per_second * (now - window):
                    raise self._slow(f"sent {received:,} bytes in {now - window:.0f} s")
                window, received = now, 0
            for piece in [raw] if unpacker is None else self._unpack(unpacker, raw):
                total += len(piece)
                if total > most:
                    raise hub_fault(self._hub, f"sent more than {most:,} bytes", code="answer_too_long")
                yield piece
        if unpacker is not None and not unpacker.eof:
            raise hub_fault(self._hub, "broke off in the middle of a compressed answer")

    def _choose_unpacker(self) -> zlib._Decompress | None:
        encoding = self.headers.get("Content-Encoding", "identity").strip().lower()
        if encoding not in ("", "identity", "gzip"):
            raise hub_fault(self._hub, f"compressed its answer as `{encoding[:40]}`, which nobody asked for")
        return zlib.decompressobj(_GZIP) if encoding == "gzip" else None

    def _unpack(self, unpacker: zlib._Decompress, raw: bytes) -> Iterator[bytes]:
        """Yield what bytes unpack to, never much at a time: a thousandfold of them would fill the memory."""
        try:
            while raw:
                piece = unpacker.decompress(raw, 1 << 16)
                if unpacker.unused_data or (unpacker.eof and not piece):
                    raise hub_fault(self._hub, "sent more after the end of a compressed answer")
                raw = unpacker.unconsumed_tail
                yield piece
        except zlib.error as error:
            raise hub_fault(self._hub, f"compressed its answer wrongly: {error}") from error

    def _slow(self, what: str) -> Unavailable:
        return hub_fault(self._hub, what, code="answer_too_slow", retryable=True)


class HubConnection:
    """Sends requests to one hub and reads its answers."""

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
                    "the token holds characters that no token has", hint="run `wander login` with a fresh one"
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
        """Return the full form of an address in an answer, which may be relative to the hub."""
        return self.join(self.url + "/", url)

    def is_own(self, url: str) -> bool:
        """Return whether an address is the hub's, so that its token may go there."""
        # The same hub over TLS: the token went there already, and without TLS.
        secure = origin_of(self._origin.replace("http://", "https://", 1))
        return origin_of(url) in {self._origin, secure} - {""}

    def send(self, method: str, path: str, **options: Any) -> Answer:
        """Send a request to the hub and return its whole answer, whatever the status."""
        with self.stream(method, self.url + path, **options) as answer:
            content = b"".join(answer.pieces(self.limits.answer_bytes, self.limits.answer_seconds))
            return Answer(answer.status, answer.headers, content, answer.url)

    @contextlib.contextmanager
    def stream(
        self,
        method: str,
        url: str,
        *,
        headers: Mapping[str, str] | None = None,
        elsewhere: bool = False,
        **options: Any,
    ) -> Iterator[StreamedAnswer]:
        """Send a request and yield its answer; `elsewhere` lets a file lie on another host.

        Raises `Unavailable` when nothing answers, or a limit is exceeded.
        """
        target = url
        with self._reach(), contextlib.ExitStack() as stack:
            for _ in range(_MOST_REDIRECTS + 1):
                self._require_place(method, target, elsewhere=elsewhere)
                own = self._token if self.is_own(target) else {}
                request = self._http.build_request(
                    method, target, headers={**own, **(headers or {})}, **options
                )
                response = self._open(request)
                if response.status_code not in _REDIRECTS or "Location" not in response.headers:
                    stack.callback(response.close)
                    yield StreamedAnswer(response, self.url, self.limits)
                    return
                response.close()
                if method != "GET" and response.status_code not in (307, 308):
                    raise hub_fault(self.url, f"redirects a `{method}` with {response.status_code}")
                followed = self.join(target, response.headers["Location"])
                if _loses_tls(target, followed):
                    raise hub_fault(self.url, "redirects from https to http", code="redirected")
                target, options = followed, {**options, "params": None}
            raise hub_fault(self.url, "redirects in a circle")

    def _require_place(self, method: str, target: str, *, elsewhere: bool) -> None:
        """Refuse to go where nothing of the hub is to be had: to another host, or by another protocol."""
        parts = urlsplit(target)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.username or parts.password:
            raise hub_fault(self.url, f"names `{target[:200]}`, which is not an address of a file")
        if self.is_own(target) or (elsewhere and method == "GET" and not _loses_tls(self.url, target)):
            return
        raise ClientError(
            f"the hub `{self.url}` leads to `{parts.scheme}://{parts.netloc}`, where nothing of it is sent",
            hint="if the hub has moved, name its address: " + name_option("hub", "URL"),
            code="redirected",
        )

    def _open(self, request: httpx.Request) -> httpx.Response:
        """Send a request and return its answer, unread; a head that drips is given up after a while.

        httpx bounds each read and not all of them, so another thread waits for the head.
        """
        outcome: queue.SimpleQueue[httpx.Response | BaseException] = queue.SimpleQueue()
        given_up = threading.Event()

        def work() -> None:
            try:
                response = self._http.send(request, stream=True)
            except BaseException as error:  # noqa: BLE001 - raised where it is waited for
                outcome.put(error)
                return
            outcome.put(response)
            if given_up.is_set():
                response.close()

        size = int(request.headers.get("Content-Length", 0))
        patience = self.limits.start_seconds + size / self.limits.bytes_per_second
        threading.Thread(target=work, daemon=True, name="hub request").start()
        try:
            found = outcome.get(timeout=patience)
        except BaseException as error:
            given_up.set()
            if isinstance(error, queue.Empty):
                raise httpx.ReadTimeout("the head of the answer did not come") from None
            raise
        if isinstance(found, BaseException):
            raise found
        return found

    def join(self, base: str, url: str) -> str:
        """Return the full form of an address that may be relative to `base`."""
        try:
            return str(httpx.URL(base).join(url))
        except (httpx.InvalidURL, ValueError, TypeError):
            raise hub_fault(self.url, f"names `{url[:200]}`, which is not an address") from None

    @contextlib.contextmanager
    def _reach(self) -> Iterator[None]:
        try:
            yield
        except BadProxy as error:
            raise ClientError(
                str(error), hint=f"correct it, or leave it out: {_no_proxy(self.url)}", code="bad_proxy"
            ) from error
        except (httpx.ConnectError, httpx.ConnectTimeout, httpx.ProxyError) as error:
            raise self._unreachable(error) from error
        except httpx.TimeoutException as error:
            raise Unavailable(
                f"the hub at `{self.url}` did not answer in time",
                hint="try again in a moment",
                code="timeout",
            ) from error
        except (httpx.InvalidURL, httpx.UnsupportedProtocol) as error:
            raise hub_fault(self.url, f"names an address that cannot be asked: {error}") from error
        except httpx.HTTPError as error:
            raise Unavailable(
                f"the hub at `{self.url}` broke off: {error or type(error).__name__}",
                hint="try again in a moment",
                code="hub_unreachable",
            ) from error

    def _unreachable(self, error: httpx.TransportError) -> Unavailable:
        """Return the error of a hub to which no connection could be made, or of the proxy before it."""
        cause: BaseException | None = error
        while cause is not None and not isinstance(cause, ssl.SSLCertVerificationError):
            cause = cause.__cause__ or cause.__context__  # httpcore leaves no cause
        if cause is not None:
            return Unavailable(
                f"the certificate of the hub at `{self.url}` is not trusted here",
                hint="name the certificates of your organization in `SSL_CERT_FILE`",
                code="hub_untrusted",
                retryable=False,
                detail=str(error),
            )
        if (proxy := find_proxy(str(error.request.url))) is not None:
            fault = "refuses to lead" if isinstance(error, httpx.ProxyError) else "does not answer; it leads"
            return Unavailable(
                f"the proxy {proxy} {fault} to the hub `{self.url}`",
                hint=f"start the proxy, or ask the hub without it: {_no_proxy(self.url)}",
                code="proxy_unreachable",
                detail=str(error),
            )
        return Unavailable(
            f"nothing answers at the hub `{self.url}`",
            hint="start one with `wander-hub serve`, or name another with "
            + name_option("hub", "URL")
            + " or `WANDER_HUB`",
            code="hub_unreachable",
            detail=str(error),
        )


class _Routes(httpx.BaseTransport):
    """Sends each request directly, or through the proxy that is set for its address.

    httpx reads the same variables, but ends every request if one entry of `NO_PROXY` is odd.
    """

    def __init__(self) -> None:
        self._made: dict[str | None, httpx.HTTPTransport] = {}
        self._lock = threading.Lock()

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        """Send a request."""
        proxy = find_proxy(str(request.url))
        address = proxy.url if proxy is not None else None
        with self._lock:
            if address not in self._made:
                try:
                    self._made[address] = httpx.HTTPTransport(proxy=address)
                except ImportError as error:
                    raise ClientError(
                        f"the proxy {proxy} needs packages that are not installed",
                        hint="run `pip install 'wander-client[socks]'`",
                        code="missing_extra",
                    ) from error
        return self._made[address].handle_request(request)

    def close(self) -> None:
        """Close the connections."""
        for transport in self._made.values():
            transport.close()


def _no_proxy(url: str) -> str:
    return f"`export NO_PROXY={urlsplit(url).hostname}`"


def hub_fault(
    hub: str,
    what: str,
    *,
    code: str = "unexpected_answer",
    retryable: bool = False,
    request_id: str | None = None,
) -> Unavailable:
    """Return the error of a hub that does something wrong, which `what` says."""
    return Unavailable(
        f"the hub at `{hub}` {what}",
        hint="this is a fault of the hub, or of something between it and you: tell its operator",
        code=code,
        retryable=retryable,
        request_id=request_id,
    )


def _loses_tls(before: str, after: str) -> bool:
    return (urlsplit(before).scheme, urlsplit(after).scheme) == ("https", "http")


class Page(Protocol):
    """A page of a list."""

    @property
    def next(self) -> str | None:
        """The cursor of the next page; None after the last one."""


class RowPage(Page, Protocol[Row]):
    """A page whose rows are its `data`."""

    @property
    def data(self) -> Sequence[Row]:
        """The rows of the page."""


def read_rows(hub: str, fetch: Callable[[str | None], RowPage[Row]]) -> Iterator[Row]:
    """Yield the rows of every page, as `read_pages` reads them."""
    for page in read_pages(hub, fetch):
        yield from page.data


def read_pages(hub: str, fetch: Callable[[str | None], AnyPage]) -> Iterator[AnyPage]:
    """Yield every page; `fetch` gets the cursor of a page, None for the first.

    Raises `Unavailable` if a cursor comes twice, or if there are too many pages.
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
    raise hub_fault(hub, "lists pages without end")
