"""Proxies: which one a request takes, and what is reported of one that fails."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from wander.clients.transport import AiohttpTransport, TransportError
from wander.errors import ConfigError
from wander.system.proxies import BadProxy, find_proxy
from wander_client.errors import ClientError, Unavailable
from wander_client.hub.connection import HubConnection

HUB = "http://hub.example:8600"
VARIABLES = [f"{word}_proxy" for word in ("http", "https", "all", "no")]


@pytest.fixture(autouse=True)
def without_proxies(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


class Forward(BaseHTTPRequestHandler):
    """Answers as an HTTP proxy does, with the address that it was asked for."""

    status = 200

    def do_GET(self) -> None:
        body = self.path.encode()
        self.send_response(self.status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_CONNECT(self) -> None:
        self.send_error(403)

    def log_message(self, *words: object) -> None:
        pass


@contextmanager
def served(status: int = 200) -> Iterator[int]:
    """Serve a proxy and yield its port."""
    handler = type("Answering", (Forward,), {"status": status})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server.server_address[1]
        server.shutdown()


@contextmanager
def socks_before(port: int) -> Iterator[int]:
    """Serve one connection of SOCKS5, which leads to a port of this machine whatever is asked for."""
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def lead() -> None:
            taken, _ = listening.accept()
            with taken, socket.create_connection(("127.0.0.1", port)) as there:
                taken.recv(64)
                taken.sendall(b"\x05\x00")
                asked = taken.recv(300)
                taken.sendall(b"\x05\x00\x00\x01" + bytes(4) + struct.pack(">H", 80))
                assert b"hub.example" in asked
                there.sendall(taken.recv(1 << 16))
                while piece := there.recv(1 << 16):
                    taken.sendall(piece)

        threading.Thread(target=lead, daemon=True).start()
        yield listening.getsockname()[1]


def dead_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        return int(free.getsockname()[1])


@pytest.mark.parametrize("variable", ["http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"])
def test_hub_requests_use_the_proxy(monkeypatch: pytest.MonkeyPatch, variable: str):
    with served() as port:
        monkeypatch.setenv(
            variable, f"127.0.0.1:{port}" if variable.isupper() else f"http://127.0.0.1:{port}"
        )
        monkeypatch.setenv("NO_PROXY", "[::1],fd00::/8,[::1,a:b:c,%,\u202e,*.other.example")
        answer = HubConnection(HUB).send("GET", "/live")
    assert answer.content.decode() == f"{HUB}/live"


def test_hub_requests_use_a_socks_proxy(monkeypatch: pytest.MonkeyPatch):
    with served() as port, socks_before(port) as socks:
        monkeypatch.setenv("ALL_PROXY", f"socks5h://127.0.0.1:{socks}")
        assert HubConnection(HUB).send("GET", "/live").content == b"/live"


@pytest.mark.parametrize("scheme", ["http", "https", "socks5"])
@pytest.mark.parametrize("hub", [HUB, "https://hub.example"])
def test_a_dead_proxy_is_named(monkeypatch: pytest.MonkeyPatch, scheme: str, hub: str):
    monkeypatch.setenv("ALL_PROXY", f"{scheme}://me:secret@127.0.0.1:{dead_port()}")
    with pytest.raises(Unavailable) as refused:
        HubConnection(hub).send("GET", "/live")
    assert refused.value.code == "proxy_unreachable"
    assert "ALL_PROXY" in str(refused.value)
    assert "secret" not in str(refused.value)
    assert "NO_PROXY=hub.example" in (refused.value.hint or "")


def test_a_proxy_that_rejects_requests_is_named(monkeypatch: pytest.MonkeyPatch):
    with served() as port:
        monkeypatch.setenv("HTTPS_PROXY", f"http://127.0.0.1:{port}")
        with pytest.raises(Unavailable) as refused:
            HubConnection("https://hub.example").send("GET", "/live")
    assert refused.value.code == "proxy_unreachable"


@pytest.mark.parametrize(
    "value", ["socks4://127.0.0.1:1", "ftp://x", "http://[::1", "http://x:99999", "http://"]
)
def test_the_variable_with_an_invalid_proxy_is_named(monkeypatch: pytest.MonkeyPatch, value: str):
    monkeypatch.setenv("ALL_PROXY", value)
    with pytest.raises(ClientError) as refused:
        HubConnection(HUB).send("GET", "/live")
    assert refused.value.code == "bad_proxy"
    assert "ALL_PROXY" in str(refused.value)


def test_a_socks_proxy_without_its_extra_names_the_extra(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(__import__("sys").modules, "socksio", None)
    monkeypatch.setenv("ALL_PROXY", "socks5://127.0.0.1:1")
    with pytest.raises(ClientError) as refused:
        HubConnection(HUB).send("GET", "/live")
    assert (refused.value.code, "wander-client[socks]" in (refused.value.hint or "")) == (
        "missing_extra",
        True,
    )


ENTRIES = [
    ("*", "hub.example", True),
    ("hub.example", "hub.example", True),
    (".example", "hub.example", True),
    ("*.example", "hub.example", True),
    ("EXAMPLE", "hub.example", True),
    ("ub.example", "hub.example", False),
    ("a.example hub.example", "hub.example", True),
    (",, hub.example ,", "hub.example", True),
    ("hub.example:8600", "hub.example:8600", True),
    ("hub.example:80", "hub.example:8600", False),
    ("http://hub.example", "hub.example", True),
    ("10.0.0.0/8", "10.200.3.4", True),
    ("10.0.0.9/8", "10.200.3.4", True),
    ("10.0.0.0/8", "11.0.0.1", False),
    ("10.0.0.0/8", "hub.example", False),
    ("10.1.2.3", "10.1.2.3", True),
    ("fd00::/8", "[fd12::1]", True),
    ("[fd12::1]", "[fd12::1]", True),
    ("[fd12::1]:8600", "[fd12::1]:8600", True),
    ("fd12:0::1", "[fd12::1]", True),
    ("[::1],%,a:b:c,[,/,8/", "hub.example", False),
]


@pytest.mark.parametrize(("listed", "host", "direct"), ENTRIES)
def test_no_proxy_entries_are_matched(monkeypatch: pytest.MonkeyPatch, listed: str, host: str, direct: bool):
    monkeypatch.setenv("HTTP_PROXY", "http://proxy.example:3128")
    monkeypatch.setenv("NO_PROXY", listed)
    assert (find_proxy(f"http://{host}/x") is None) == direct
    for own in ("127.0.0.1", "127.8.8.8", "[::1]", "localhost", "a.localhost"):
        assert find_proxy(f"http://{own}:1/") is None


@given(st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=40))
@example(" \u2003")
def test_any_text_in_proxy_variables_is_handled(written: str):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HTTP_PROXY", "http://proxy.example:3128")
        patch.setenv("NO_PROXY", written)
        assert find_proxy("http://hub.example/") in (None, find_proxy("http://other.test/"))
        patch.setenv("HTTP_PROXY", written)
        patch.delenv("NO_PROXY")
        with contextlib.suppress(BadProxy):
            found = find_proxy("http://hub.example/")
            assert found is None or found.variable == "HTTP_PROXY"


def test_an_endpoint_names_the_proxy_that_fails(monkeypatch: pytest.MonkeyPatch):
    async def ask(url: str) -> None:
        transport = AiohttpTransport(url, {}, timeout=30, connect_timeout=5, max_connections=1)
        try:
            await transport.get("/models")
        finally:
            await transport.close()

    for url in ("http://models.example/v1", "https://models.example/v1"):
        monkeypatch.setenv("ALL_PROXY", f"http://me:secret@127.0.0.1:{dead_port()}")
        with pytest.raises(TransportError, match="ALL_PROXY") as refused:
            asyncio.run(ask(url))
        assert "secret" not in str(refused.value)
    monkeypatch.setenv("ALL_PROXY", "socks5://127.0.0.1:1")
    with pytest.raises(ConfigError, match="SOCKS"):
        asyncio.run(ask(url))
