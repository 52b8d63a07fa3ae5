"""The short way of the index says what the routes say, to those and only those whom the routes would tell."""

from __future__ import annotations

import gzip
import itertools

import httpx
import pytest
import zstandard
from asgi_client import asgi_client
from hypothesis import given
from hypothesis import strategies as st
from obstore.store import MemoryStore, S3Store
from wander_hub.app import create_app
from wander_hub.http.problems import HubProblem
from wander_hub.http.responses import parse_range
from wander_hub.index import direct
from wander_hub.index.anonymous import AnonymousReader
from wander_hub.index.negotiation import HTML_V1, JSON_V1, choose_encoding
from wander_hub.storage import Storage

PAGE = "/alice/simple/reverse-text/"
WHEEL = "/alice/files/reverse-text/reverse_text-0.1.0-py3-none-any.whl"
OWN = ("x-request-id", "date")

HEADERS = (
    {},
    {"Accept": JSON_V1},
    {"Accept": HTML_V1},
    {"Accept": "image/png"},
    {"Accept": "*/*", "Accept-Encoding": "gzip"},
    {"Accept": JSON_V1, "Accept-Encoding": "br, zstd"},
    {"Accept-Encoding": "identity"},
    {"Range": "bytes=3-9"},
    {"Range": "bytes=0-1,4-5"},
    {"Range": "bytes=5-2"},
    {"Range": "bytes=-0"},
    {"Range": "bytes=99999999-"},
    {"Range": "bytes=3-9", "If-Range": '"another"'},
)
PATHS = (
    *(PAGE, WHEEL, f"{WHEEL}.metadata", "/alice/simple/", "/alice/simple/nothing/", "/nobody/simple/x/"),
    *("/alice/files/reverse-text/nothing-1.0-py3-none-any.whl", "/alice/simple/Reverse_Text/"),
    *(
        "/simple/alice-own/",
        "/simple/reverse-text/",
        "/simple/",
        "/files/alice-own/x.whl",
        f"{PAGE}?format=x",
    ),
    *("/files/alice-own/alice_own-1.0-py3-none-any.whl", "/alice/simple", "/simple/alice-own"),
)


@pytest.fixture
async def both(hub, make_wheel, monkeypatch):
    """The hub, and a client of the same hub that has no short way."""
    for version in ("0.1.0", "0.2.0", "0.3.0", "0.4.0"):
        await hub.publish(make_wheel(version=version))
    await hub.publish(make_wheel(name="alice-own", version="1.0"))
    long_way = create_app(hub.settings, database=hub.database)
    monkeypatch.setattr(long_way, "_direct", Silent())
    async with asgi_client(long_way, raises=False) as client:
        client.headers.clear()
        hub.client.headers.clear()
        yield hub, client


class Silent:
    async def answer(self, _scope, _send) -> bool:
        return False


def told(answer: httpx.Response) -> tuple[int, dict[str, str], bytes]:
    problem = answer.headers.get("content-type") == "application/problem+json"
    body = b"" if problem else answer.content  # a problem names its request
    headers = {name: value for name, value in answer.headers.items() if name not in OWN}
    if problem:
        headers.pop("content-length")
    return answer.status_code, headers, body


async def test_the_direct_and_the_normal_route_respond_equally(both):
    hub, long_way = both
    for path, headers, method in itertools.product(PATHS, HEADERS, ("GET", "HEAD")):
        short = await hub.client.request(method, path, headers=headers)
        long = await long_way.request(method, path, headers=headers)
        assert told(short) == told(long), (method, path, headers)
        assert short.headers["x-request-id"]
        if "etag" in long.headers:
            held = {**headers, "If-None-Match": long.headers["etag"]}
            short, long = await hub.get(path, headers=held), await long_way.get(path, headers=held)
            assert told(short) == told(long), (path, held)
            assert short.status_code == 304


async def test_the_direct_route_is_used(both, monkeypatch, folder_alone):
    hub, _ = both
    ways: list[bool] = []
    answered = direct.DirectIndex.answer

    async def noted(self, scope, send):
        ways.append(await answered(self, scope, send))
        return ways[-1]

    monkeypatch.setattr(direct.DirectIndex, "answer", noted)
    for path in (PAGE, WHEEL, f"{WHEEL}.metadata", "/simple/alice-own/", "/alice/simple/", "/simple/"):
        assert (await hub.get(path, headers={"X-Request-ID": "mine"})).headers["x-request-id"] == "mine"
    assert ways == [True] * 6
    await hub.get(PAGE, headers=hub.auth())
    await hub.get("/alice/simple/nothing/")
    await hub.client.post(PAGE)
    assert ways[6:] == [False] * 3


async def test_the_direct_route_reveals_nothing_private(both, make_wheel):
    hub, long_way = both
    secret = make_wheel(name="secret")
    await hub.upload(secret.build(), secret.wheel_name, fields={"wander_visibility": "private"})
    paths = ["/alice/simple/secret/", "/alice/files/secret/secret-0.1.0-py3-none-any.whl", PAGE, WHEEL]
    answers = [(await hub.get(path)).status_code for path in paths]
    assert answers == [401, 401, 200, 200]
    assert [(await hub.get(path, headers=hub.auth())).status_code for path in paths] == [200] * 4
    assert [(await hub.get(path, headers=hub.auth("bob"))).status_code for path in paths[:2]] == [401] * 2
    path = "/api/v1/environments/alice/reverse-text"
    quarantine = {"status": "quarantined", "reason": "odd"}
    assert (await hub.client.put(f"{path}/status", json=quarantine, headers=hub.auth("admin"))).is_success
    for asked in (PAGE, WHEEL, f"{WHEEL}.metadata"):
        assert told(await hub.get(asked)) == told(await long_way.get(asked))
    assert (await hub.get(WHEEL)).status_code == 403
    assert b".whl" not in (await hub.get(PAGE)).content


async def test_every_process_sees_changes_immediately(both, make_wheel, settings):
    hub, _ = both
    database = type(hub.database)(hub.database.url)
    elsewhere = create_app(hub.settings, database=database)
    list_, combined = "/alice/simple/", "/simple/alice-own/"
    async with asgi_client(elsewhere) as client:
        client.headers.clear()

        async def shown(path: str) -> httpx.Response:
            first = await client.get(path)
            assert told(first) == told(await client.get(path)) == told(await hub.get(path))
            return first

        for number in range(5, 8):
            assert f"0.{number}.0" not in (await shown(PAGE)).text
            await hub.publish(make_wheel(version=f"0.{number}.0"))
            assert f"0.{number}.0" in (await shown(PAGE)).text
        assert "one-more" not in (await shown(list_)).text
        await hub.publish(make_wheel(name="one-more"))
        assert "one-more" in (await shown(list_)).text
        assert "alice-two" not in (await shown("/simple/")).text
        await hub.publish(make_wheel(name="alice-two"))
        assert "alice-two" in (await shown("/simple/")).text
        for path in (PAGE, WHEEL, f"{WHEEL}.metadata", combined):
            assert (await shown(path)).status_code == 200
        for name in ("reverse-text", "alice-own"):
            private = await hub.client.put(
                f"/api/v1/environments/alice/{name}/visibility", json={"private": True}, headers=hub.auth()
            )
            assert private.status_code == 200, private.text
        for path in (PAGE, WHEEL, f"{WHEEL}.metadata", combined):
            assert (await shown(path)).status_code == 401
        assert "reverse-text" not in (await shown(list_)).text
    database.close()


async def test_responses_are_cached_while_nothing_changes(both, make_wheel, monkeypatch, sqlite_alone):
    hub, _ = both
    asked: list[str] = []
    first_row = AnonymousReader._first_row

    async def noted(self, key, *rest):
        asked.append(key[0])
        return await first_row(self, key, *rest)

    monkeypatch.setattr(AnonymousReader, "_first_row", noted)
    kinds = {PAGE: "page", "/alice/simple/": "list", WHEEL: "file", f"{WHEEL}.metadata": "file"}
    for path, kind in kinds.items():
        asked.clear()
        answers = [await hub.get(path) for _ in range(4)]
        held = {"If-None-Match": answers[0].headers["etag"]}
        assert [one.status_code for one in answers] + [(await hub.get(path, headers=held)).status_code] == [
            *(200,) * 4,
            304,
        ]
        assert asked == [kind], path
    await hub.publish(make_wheel(version="0.5.0"))
    asked.clear()
    await hub.get(PAGE)
    assert asked == ["page"]


async def test_cached_responses_stay_within_their_limits(both, monkeypatch, sqlite_alone):
    hub, _ = both
    index = hub.client._transport.app._direct
    monkeypatch.setattr(direct, "_KEPT_BYTES", 3 * direct._KEPT_OVERHEAD)
    for version in range(1, 5):
        path = f"/alice/files/reverse-text/reverse_text-0.{version}.0-py3-none-any.whl"
        for _ in range(3):
            assert (await hub.get(path)).status_code == 200
    assert 0 < len(index._kept) <= 3
    assert index._kept_bytes <= direct._KEPT_BYTES


async def test_pages_are_stored_compressed(both):
    hub, _ = both
    plain = await hub.get(PAGE, headers={"Accept": JSON_V1})
    tags = {plain.headers["etag"]}
    async for name, unpacked in compressed(hub):
        assert unpacked == plain.content, name
        answer = await hub.client.head(PAGE, headers={"Accept": JSON_V1, "Accept-Encoding": name})
        assert answer.headers["content-encoding"] == name
        assert int(answer.headers["content-length"]) < len(plain.content) / 2
        tags.add(answer.headers["etag"])
    assert len(tags) == 3, "strong tags tell every two bodies apart"
    small = await hub.get("/simple/alice-own/", headers={"Accept": JSON_V1, "Accept-Encoding": "gzip"})
    assert "content-encoding" not in small.headers


async def compressed(hub):
    """Yield each encoding and what comes out of the bytes that the hub sends for it."""
    unpack = {"gzip": gzip.decompress, "zstd": lambda body: zstandard.ZstdDecompressor().decompress(body)}
    for name, function in unpack.items():
        async with hub.client.stream(
            "GET", PAGE, headers={"Accept": JSON_V1, "Accept-Encoding": name}
        ) as answer:
            yield name, function(b"".join([piece async for piece in answer.aiter_raw()]))


@pytest.mark.parametrize(
    ("accepted", "chosen"),
    [
        (None, None),
        ("", None),
        ("identity", None),
        ("gzip, deflate, br, zstd", "zstd"),
        ("gzip, deflate", "gzip"),
        ("zstd;q=0.1, gzip;q=0.9", "gzip"),
        ("zstd;q=0, *", "gzip"),
        ("gzip;q=0.5, identity", None),
        ("gzip;q=0, zstd;q=0", None),
        ("GZIP", "gzip"),
    ],
)
def test_encodings_are_negotiated(accepted, chosen):
    assert choose_encoding(accepted) == chosen


@given(st.integers(1, 40), st.integers(0, 50), st.integers(0, 50))
def test_a_range_request_returns_that_part_or_is_rejected(size, first, last):
    body = bytes(range(size))
    for header, part in (
        (f"bytes={first}-{last}", body[first : last + 1] if first <= last else body),
        (f"bytes={first}-", body[first:]),
        (f"bytes=-{last}", body[max(size - last, 0) :] if last else b""),
    ):
        if part:
            start, end = parse_range(header, None, '"x"', size) or (0, size)
            assert body[start:end] == part
        else:
            with pytest.raises(HubProblem, match="outside") as refusal:
                parse_range(header, None, '"x"', size)
            assert (refusal.value.status, refusal.value.headers["Content-Range"]) == (416, f"bytes */{size}")


@pytest.mark.parametrize(
    "header", [None, "", "bytes", "bytes=-", "bytes=a-b", "lines=0-1", "bytes=0-1,3-4", "bytes=5-2"]
)
def test_several_ranges_get_the_whole_file(header):
    assert parse_range(header, None, '"x"', 10) is None


async def test_a_missing_stored_file_is_an_error_of_the_hub(both, folder_alone):
    hub, long_way = both
    sha256 = (await long_way.get(WHEEL)).headers["etag"].strip('"')
    (hub.settings.data / "objects" / "sha256" / sha256[:2] / sha256[2:]).unlink()
    answer = await hub.get(WHEEL)
    assert (answer.status_code, answer.json()["code"]) == (500, "internal_error")


async def test_nginx_gets_the_path_of_a_file(both, folder_alone):
    hub, _ = both
    behind = create_app(hub.settings.model_copy(update={"accel_prefix": "/_objects/"}), database=hub.database)
    async with asgi_client(behind) as client:
        for headers in ({}, hub.auth()):
            answer = await client.get(WHEEL, headers=headers)
            assert answer.content == b""
            where = answer.headers["x-accel-redirect"]
            assert where.startswith("/_objects/sha256/")
            assert (hub.settings.data / "objects" / where.removeprefix("/_objects/")).is_file()
            assert answer.headers["content-type"] == "application/octet-stream"
        assert (await client.get("/alice/files/reverse-text/x.whl")).status_code == 404
        behind.state.downloads.flush()
        for asked in ("bytes=10-19", "bytes=-5", "bytes=0-9"):
            await client.get(WHEEL, headers={"Range": asked})
            await client.get(WHEEL, headers={"Range": asked} | hub.auth())
        (counted,) = behind.state.downloads._counts.values()
        assert counted == 2, "the parts at the beginning alone"


def test_an_object_store_gives_addresses_that_expire():
    keys = {"access_key_id": "key", "secret_access_key": "secret", "region": "eu-central-1"}
    address = Storage(S3Store("bucket", **keys)).presign("ab" * 32, 300)
    assert address is not None
    assert f"/sha256/ab/{'ab' * 31}?" in address
    assert "X-Amz-Expires=300" in address
    assert Storage(MemoryStore()).presign("ab" * 32, 300) is None


async def test_downloads_redirect_to_the_object_store(both, monkeypatch):
    hub, _ = both
    storage = Storage(MemoryStore())
    monkeypatch.setattr(storage, "presign", lambda sha256, seconds: f"https://bucket/{sha256}?{seconds}")
    settings = hub.settings.model_copy(update={"presigned_seconds": 60})
    redirecting = create_app(settings, database=hub.database, storage=storage)
    sha256 = (await hub.get(WHEEL)).headers["etag"].strip('"')
    async with asgi_client(redirecting) as client:
        answer = await client.get(WHEEL)
        assert (answer.status_code, answer.headers["location"]) == (302, f"https://bucket/{sha256}?60")
        assert answer.headers["cache-control"] == "no-store"
        head = await client.head(WHEEL)
        assert (head.status_code, head.headers["accept-ranges"]) == (200, "bytes")
        assert int(head.headers["content-length"]) > 0
        held = await client.get(WHEEL, headers={"If-None-Match": f'"{sha256}"'})
        assert held.status_code == 304
        counts = client._transport.app.state.downloads._counts
        before = counts.total()
        for asked in ("bytes=10-19", "bytes=0-9"):
            await client.get(WHEEL, headers={"Range": asked})
        assert counts.total() == before + 1
