"""A hub that lies, drips or never ends: the client bounds what it answers, and calls its faults its own."""

from __future__ import annotations

import gzip
import json
import socket
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count, repeat
from pathlib import Path
from typing import Any

import pytest
from command_line import Wander
from hypothesis import given
from hypothesis import strategies as st
from lying_hub import LyingHub, Reply, ask_nobody, lying_hub
from wander_client.errors import ClientError, Unavailable
from wander_client.hub.api import HubApi
from wander_client.hub.connection import Limits

SMALL = Limits(
    answer_bytes=200_000, answer_seconds=0.5, start_seconds=1.0, bytes_per_second=100_000, patience=0.2
)
MIB = 1 << 20


@pytest.fixture
def liar() -> Iterator[LyingHub]:
    with lying_hub(ask_nobody) as hub:
        yield hub


@contextmanager
def client_of(url: str, token: str | None = None) -> Iterator[HubApi]:
    api = HubApi(url, token, sleep=lambda seconds: slept.append(seconds), limits=SMALL)
    slept: list[float] = []
    api.slept = slept  # type: ignore[attr-defined]
    yield api
    api.close()


def slowly(piece: bytes) -> Iterator[bytes]:
    while True:
        time.sleep(0.02)
        yield piece


BOMB = gzip.compress(b" " * (64 * MIB))


ENDLESS: dict[str, Callable[[], Reply]] = {
    "json": lambda: Reply(200, {}, repeat(b'{"user": "' + b"x" * 9000)),
    "an error": lambda: Reply(500, {}, repeat(b"no" * 9000)),
    "compressed": lambda: Reply(200, {"Content-Encoding": "gzip"}, BOMB),
    "compressed without end": lambda: Reply(200, {"Content-Encoding": "gzip"}, endless_gzip()),
    "a refusal, compressed": lambda: Reply(403, {"Content-Encoding": "gzip"}, BOMB),
    "a stated length": lambda: Reply(200, {"Content-Length": str(1 << 50)}, repeat(b"1" * 9000)),
}


def endless_gzip() -> Iterator[bytes]:
    packer = zlib.compressobj(wbits=31)
    while True:
        yield packer.compress(bytes(MIB)) + packer.flush(zlib.Z_SYNC_FLUSH)


@pytest.mark.parametrize("what", ENDLESS)
def test_an_endless_response_is_cut_off(liar: LyingHub, what: str) -> None:
    liar.alter("whoami", lambda _: ENDLESS[what]())
    with client_of(liar.url) as api, pytest.raises(Unavailable) as refused:
        api.whoami()
    assert (refused.value.code, refused.value.retryable) == ("answer_too_long", False)


@pytest.mark.parametrize(
    ("encoding", "body"),
    [
        ("br", b"\x0b\x02\x80hello\x03"),
        ("zstd", b"(\xb5/\xfd\x04\x00\x19\x00\x00abc"),
        ("deflate", zlib.compress(b"{}")),
        ("gzip, gzip", gzip.compress(gzip.compress(b"{}", mtime=0), mtime=0)),
        ("gzip", b"this is not gzip"),
        ("gzip", gzip.compress(b'{"user": 1}', mtime=0)[:-9]),
        ("gzip", gzip.compress(b"{}", mtime=0) + b"more"),
    ],
)
def test_invalid_compression_is_reported_as_a_hub_error(liar: LyingHub, encoding: str, body: bytes) -> None:
    liar.answer("whoami", body=body, Content_Encoding=encoding)
    with client_of(liar.url) as api, pytest.raises(Unavailable) as refused:
        api.whoami()
    assert refused.value.code == "unexpected_answer"


@pytest.mark.parametrize("piece", [b" ", b"1,", b"\n", bytes(100), b"\xff"])
def test_a_slow_response_times_out(liar: LyingHub, piece: bytes) -> None:
    liar.answer("whoami", body=slowly(piece))
    with client_of(liar.url) as api, pytest.raises(Unavailable) as refused:
        api.whoami()
    assert refused.value.code == "answer_too_slow"


@pytest.mark.parametrize("size", [None, 10_000_000])
@pytest.mark.parametrize("piece", [b"x", bytes(50), bytes(1000)])
def test_a_slow_download_times_out(liar: LyingHub, tmp_path: Path, piece: bytes, size: int | None) -> None:
    liar.answer("/f", body=slowly(piece))
    with client_of(liar.url) as api, pytest.raises(Unavailable) as refused:
        api.download("/f", tmp_path / "f", None, size=size)
    assert refused.value.code == "answer_too_slow"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "head",
    [
        *(b"HTTP/1.1 200 OK\r\nX: ", b""),
        *(
            pytest.param(head, marks=pytest.mark.full)
            for head in (b"H", b"HTTP/1.1 100 Continue\r\n\r\n", b"HTTP/1.1 200 OK\r\n")
        ),
    ],
)
def test_slow_response_headers_time_out(head: bytes) -> None:
    """httpx bounds each read, which a byte now and then satisfies."""
    listener = socket.create_server(("127.0.0.1", 0))

    def drip() -> None:
        connection, _ = listener.accept()
        with connection:
            connection.sendall(head)
            try:
                while True:
                    time.sleep(0.02)
                    connection.sendall(b"x" if head else b"H")
            except OSError:
                return

    threading.Thread(target=drip, daemon=True).start()
    url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    with listener, client_of(url) as api, pytest.raises(Unavailable) as refused:
        api.whoami()
    assert refused.value.code in ("timeout", "hub_unreachable")


@pytest.mark.parametrize(
    "body",
    [
        b"[" * 200_000,
        b'{"user":' * 20_000,
        b'{"user": ' + b"9" * 5000 + b"}",
        b'{"data": [' + b"[" * 50_000 + b"]" * 50_000 + b"]}",
        b'{"next": "' + b"\\ud800" * 1000 + b'"}',
        b"\xff\xfe{}",
        b"NaN",
    ],
)
def test_json_that_breaks_parsers_is_reported_as_a_hub_error(liar: LyingHub, body: bytes) -> None:
    liar.answer("/", body=body)
    with client_of(liar.url) as api:
        for ask in (api.whoami, api.environments, api.runs):
            with pytest.raises(Unavailable) as refused:
                ask()
            assert refused.value.code == "unexpected_answer"


def test_files_are_not_longer_than_the_hub_lists(liar: LyingHub, tmp_path: Path) -> None:
    for body in (bytes(1001), repeat(bytes(500)), bytes(MIB), b"x" * 1001, repeat(b"1" * MIB)):
        liar.be_honest()
        liar.answer("/f", body=body)
        with client_of(liar.url) as api, pytest.raises(Unavailable) as refused:
            api.download("/f", tmp_path / "f", None, size=1000)
        assert refused.value.code == "answer_too_long"
    assert list(tmp_path.iterdir()) == []


def test_endless_pagination_is_stopped(liar: LyingHub) -> None:
    liar.answer("environments", body=b'{"data": [], "next": "again"}')
    liar.answer("rollouts", body=b'{"data": [], "total": 99999999999, "offset": 0}')
    with client_of(liar.url) as api:
        with pytest.raises(Unavailable) as refused:
            list(api.every_environment())
        assert refused.value.code == "unexpected_answer"
        assert list(api.rollout_rows("r")) == []


BOARD = (
    b'{"owner": "a", "name": "b", "version": "1", "task_set_sha256": null, "examples": 1, '
    b'"rollouts_per_example": 1, "rows": [], "next": "%s"}'
)


@pytest.mark.parametrize("cursors", [repeat("again"), map(str, count())])
def test_an_endless_leaderboard_is_stopped(
    liar: LyingHub, monkeypatch: pytest.MonkeyPatch, cursors: Iterator[str]
) -> None:
    monkeypatch.setattr("wander_client.hub.connection.MOST_PAGES", 20)
    liar.alter("leaderboard", lambda _: Reply(200, {}, BOARD % next(cursors).encode()))
    with client_of(liar.url) as api, pytest.raises(Unavailable) as refused:
        api.whole_leaderboard("a", "b")
    assert refused.value.code == "unexpected_answer"
    assert "too many pages" in str(refused.value)


@pytest.mark.parametrize(
    ("lines", "code"),
    [
        (repeat(b"x" * 60_000), "answer_too_long"),
        ([b'{"example_id": 3}\n'], "unexpected_answer"),
        ([b"\xff\n"], "unexpected_answer"),
        ([b"[" * 10_000 + b"\n"], "unexpected_answer"),
        ([b"{}\n" * 3], "unexpected_answer"),
    ],
)
def test_the_size_of_downloaded_rollouts_is_limited(
    liar: LyingHub, monkeypatch: pytest.MonkeyPatch, lines: Any, code: str
) -> None:
    monkeypatch.setattr("wander_client.hub.api.LARGEST_RECORD", 500_000)
    liar.answer("rollouts.jsonl", body=lines)
    with client_of(liar.url) as api, pytest.raises(Unavailable) as refused:
        list(api.rollouts("some-run"))
    assert refused.value.code == code


def test_rollouts_must_match_the_digest_of_the_run(liar: LyingHub) -> None:
    line = b'{"example_id": "1", "index": 0, "seed": 1, "prompt": [], "completion": []}\n'
    liar.answer("rollouts.jsonl", body=line)
    with client_of(liar.url) as api, pytest.raises(Unavailable) as refused:
        list(api.rollouts("some-run", "0" * 64))
    assert refused.value.code == "digest_mismatch"


RETRY_AFTER = [
    *("nan", "inf", "-inf", "-1", "1e308", "0x10", "1_0", "٣", "", " ", "1, 2"),
    "Wed, 21 Oct 2015 07:28:00 GMT",
]


@pytest.mark.parametrize("stated", [*RETRY_AFTER, "0", "0.5", "99999999999999999999"])
def test_retry_after_is_respected_up_to_a_limit(liar: LyingHub, stated: str) -> None:
    liar.answer("whoami", 503, Retry_After=stated.encode().decode("latin-1"))
    with client_of(liar.url) as api, pytest.raises(Unavailable):
        api.whoami()
    assert len(api.slept) == 2  # type: ignore[attr-defined]
    assert all(0 <= seconds <= 5 for seconds in api.slept)  # type: ignore[attr-defined]


FIELDS = (
    *("data", "next", "name", "owner", "files", "url", "hashes", "sha256", "size", "version", "meta"),
    *("latest", "summary", "user", "token"),
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(FIELDS) | st.text(max_size=3), inner, max_size=4)
    ),
    max_leaves=12,
)


@given(answer=JSON)
def test_any_invalid_response_is_reported_as_a_hub_error(answer: Any) -> None:
    import httpx

    body = json.dumps(answer).encode()
    api = HubApi("http://h", transport=httpx.MockTransport(lambda _: httpx.Response(200, content=body)))
    asked: list[Callable[[], Any]] = [
        api.whoami,
        api.environments,
        lambda: api.environment("a", "b"),
        lambda: api.version("a", "b", "1"),
        lambda: api.index_files("a", "b"),
        lambda: api.held_files("a", "b"),
        lambda: api.projects("a"),
        lambda: api.run("some-run"),
        api.runs,
        lambda: list(api.rollout_rows("some-run")),
        lambda: api.rollout("some-run", 1),
        lambda: api.verifications("some-run"),
        lambda: api.evidence("some-run"),
        lambda: api.leaderboard("a", "b"),
    ]
    faults = set()
    for ask in asked:
        try:
            ask()
        except ClientError as error:
            faults.add(error.code)
    assert faults <= {"unexpected_answer"}


# Where tokens and bodies go.


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH"])
def test_uploads_do_not_follow_redirects_to_other_hosts(
    liar: LyingHub, stranger: LyingHub, status: int, method: str
) -> None:
    liar.answer("/", status, Location=f"{stranger.url}/api/v1/whoami")
    with client_of(liar.url, "wnd_secret") as api, pytest.raises(ClientError) as refused:
        api.change(method, "/api/v1/thing", None)
    assert refused.value.code in ("redirected", "unexpected_answer")
    assert stranger.seen == []


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_requests_do_not_follow_redirects_to_other_hosts(
    liar: LyingHub, stranger: LyingHub, status: int
) -> None:
    liar.answer("/", status, Location=f"{stranger.url}/")
    with client_of(liar.url, "wnd_secret") as api, pytest.raises(ClientError) as refused:
        api.whoami()
    assert refused.value.code == "redirected"
    assert stranger.seen == []


@pytest.mark.parametrize(
    "place",
    [
        "http://[",
        "http://user:pass@127.0.0.1/",
        "file:///etc/passwd",
        "//",
        "http://127.0.0.1:99999/",
        "javascript:alert(1)",
        "http://",
        "\\\\127.0.0.1\\x",
        "?",
    ],
)
def test_an_invalid_redirect_is_reported_as_a_hub_error(liar: LyingHub, place: str) -> None:
    liar.answer("/", 307, Location=place)
    with client_of(liar.url, "wnd_secret") as api, pytest.raises(ClientError) as refused:
        api.whoami()
    assert refused.value.code in ("unexpected_answer", "redirected")


def test_a_file_may_be_on_another_host_which_does_not_get_the_token(
    liar: LyingHub, stranger: LyingHub, tmp_path: Path
) -> None:
    stranger.answer("/", body=b"bytes")
    liar.answer("/there", 302, Location=f"{stranger.url}/file")
    liar.answer("/moved", 308, Location="/there")
    with client_of(liar.url, "wnd_secret") as api:
        for address in (f"{stranger.url}/file", "/there", "/moved"):
            api.download(address, tmp_path / "file", None)
            assert (tmp_path / "file").read_bytes() == b"bytes"
    assert {seen.headers.get("Authorization") for seen in stranger.seen} == {None}
    assert {seen.headers.get("Authorization") for seen in liar.seen} == {"Bearer wnd_secret"}


def test_the_token_of_the_variable_is_only_sent_to_its_own_hub(
    wander: Wander, liar: LyingHub, stranger: LyingHub, monkeypatch: pytest.MonkeyPatch, home: Path
) -> None:
    monkeypatch.setenv("WANDER_TOKEN", "wnd_mine")
    for variables, words in (
        ({"WANDER_HUB": liar.url}, ["--hub", stranger.url]),
        ({}, ["--hub", stranger.url]),
        ({"WANDER_HUB": liar.url}, ["--hub", stranger.url + "/"]),
    ):
        monkeypatch.delenv("WANDER_HUB", raising=False)
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        for command in (["search"], ["auth", "whoami"], ["env", "info", "a/b"], ["board", "a/b"]):
            wander(*command, *words)
    assert stranger.seen
    assert {seen.headers.get("Authorization") for seen in stranger.seen} == {None}
    refused = wander("auth", "whoami", "--hub", stranger.url)
    assert refused.status == 4
    assert "WANDER_HUB=" in refused.err
    wander("auth", "whoami", "--hub", liar.url)
    wander("search")
    assert {seen.headers.get("Authorization") for seen in liar.seen} == {"Bearer wnd_mine"}


def test_a_stored_token_is_only_sent_to_its_own_hub(
    wander: Wander, liar: LyingHub, stranger: LyingHub, home: Path
) -> None:
    (home / "config").mkdir()
    stored = {"tokens": {liar.url: "wnd_stored"}}
    (home / "config" / "credentials.json").write_text(json.dumps(stored))
    (home / "config" / "credentials.json").chmod(0o600)
    for url in (stranger.url, liar.url, f"{stranger.url}/prefix", liar.url.replace("127.0.0.1", "localhost")):
        wander("search", "--hub", url)
    assert {seen.headers.get("Authorization") for seen in stranger.seen} == {None}
    tokens = {seen.headers.get("Authorization") for seen in liar.seen}
    assert tokens == {"Bearer wnd_stored", None}, "localhost is another name"


@pytest.mark.parametrize(
    ("hub", "warned"),
    [
        ("http://hub.example", True),
        ("http://10.0.0.1:8600", True),
        ("http://127.evil.example", True),
        ("http://localhost.example", True),
        ("http://[2001:db8::1]:80", True),
        ("https://hub.example", False),
        ("http://127.0.0.1:9", False),
        ("http://localhost:9", False),
        ("http://[::1]:9", False),
    ],
)
def test_sending_a_token_without_tls_prints_a_warning(
    monkeypatch: pytest.MonkeyPatch, home: Path, hub: str, warned: bool
) -> None:
    from wander_client.context import CommonOptions, Invocation
    from wander_client.terminal.output import Output

    monkeypatch.setenv("WANDER_HUB", hub)
    here = Invocation(CommonOptions(), Output("quiet"))
    here.credential()
    assert here.output.warnings == []
    monkeypatch.setenv("WANDER_TOKEN", "wnd_mine")
    here = Invocation(CommonOptions(), Output("quiet"))
    for _ in range(2):
        here.credential()
    assert len(here.output.warnings) == warned
