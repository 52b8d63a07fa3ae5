"""Objects lie under their digest, in a folder or elsewhere; answers are the same."""

from __future__ import annotations

import hashlib
import io
import os
from concurrent.futures import ThreadPoolExecutor

import pytest
from asgi_client import asgi_client
from wander_hub.app import create_app
from wander_hub.storage import Storage, object_key


@pytest.fixture(params=["folder", "memory", "s3"])
def storage(request, tmp_path):
    """Each kind of store in turn; what follows holds for all of them."""
    if request.param == "s3":
        return Storage.open(request.getfixturevalue("s3_url"), tmp_path / "unused")
    return Storage.open(None if request.param == "folder" else "memory://", tmp_path / "objects")


@pytest.mark.parametrize("size", [0, 1, 3_000_000, 13_000_000])
async def test_objects_are_kept_under_their_digest(storage, size):
    content = os.urandom(size)
    sha256 = storage.put(io.BytesIO(content))
    assert sha256 == hashlib.sha256(content).hexdigest() == storage.digest(sha256)
    assert storage.put(io.BytesIO(content)) == sha256
    assert storage.read(sha256) == content
    if size > 1_000_020:
        assert storage.read(sha256, 1_000_000, 20) == content[1_000_000:1_000_020]
    pieces = [piece async for piece in storage.stream(sha256, size // 3, size)]
    assert b"".join(pieces) == content[size // 3 :]
    assert storage.healthy()


def test_objects_are_listed_found_and_deleted(storage):
    bodies = [b"one", b"two of them", b"three"]
    digests = [storage.put(io.BytesIO(body)) for body in bodies]
    assert sorted((one.sha256, one.size) for one in storage.objects()) == sorted(
        (digest, len(body)) for digest, body in zip(digests, bodies, strict=True)
    )
    assert all(one.modified_at.tzinfo is not None for one in storage.objects())
    storage.delete(digests[1])
    storage.delete(digests[1])
    assert [storage.exists(one) for one in digests] == [True, False, True]
    with pytest.raises(FileNotFoundError):
        storage.read(digests[1])
    storage.ensure(digests[1], io.BytesIO(bodies[1]))
    storage.ensure(digests[0], io.BytesIO(b"not looked at: it is there"))
    assert [storage.read(one) for one in digests] == bodies


def test_simultaneous_writes_of_one_object_work(storage):
    content = os.urandom(100_000)
    with ThreadPoolExecutor(8) as threads:
        digests = set(threads.map(lambda _: storage.put(io.BytesIO(content)), range(16)))
    (sha256,) = digests
    assert storage.read(sha256) == content
    assert [one.sha256 for one in storage.objects()] == [sha256]


def test_a_truncated_object_is_written_again(tmp_path):
    storage = Storage.open(None, tmp_path)
    sha256 = storage.put(io.BytesIO(b"whole content"))
    (tmp_path / object_key(sha256)).write_bytes(b"half")
    storage.put(io.BytesIO(b"whole content"))
    assert storage.read(sha256) == b"whole content"


def test_a_lost_folder_is_unhealthy(tmp_path):
    storage = Storage.open(None, tmp_path / "objects")
    assert storage.healthy()
    (tmp_path / "objects").rmdir()
    assert not storage.healthy()


@pytest.mark.parametrize(
    ("asked", "status", "part"),
    [
        ({}, 200, slice(None)),
        ({"Range": "bytes=0-3"}, 206, slice(0, 4)),
        ({"Range": "bytes=5-"}, 206, slice(5, None)),
        ({"Range": "bytes=-7"}, 206, slice(-7, None)),
        ({"Range": "bytes=0-1,4-5"}, 200, slice(None)),
        ({"Range": "lines=1-2"}, 200, slice(None)),
        ({"Range": "bytes=0-3", "If-Range": '"other"'}, 200, slice(None)),
    ],
)
async def test_ranges_are_read_from_an_object_store(hub, make_wheel, asked, status, part):
    store = Storage.open("memory://", hub.settings.data)
    app = create_app(hub.settings, database=hub.database, storage=store)
    spec = make_wheel()
    body = spec.build()
    path = f"/alice/files/reverse-text/{spec.wheel_name}"
    async with asgi_client(app, headers=hub.auth()) as client:
        posted = await client.post("/alice/legacy/", files={"content": (spec.wheel_name, body)})
        assert posted.status_code == 200
        answer = await client.get(path, headers=asked)
        past = await client.get(path, headers={"Range": "bytes=99999999-"})
        head = await client.head(path)
    assert (answer.status_code, answer.content) == (status, body[part])
    assert answer.headers["content-length"] == str(len(body[part]))
    assert (past.status_code, past.headers["content-range"]) == (416, f"bytes */{len(body)}")
    assert (head.content, head.headers["content-length"]) == (b"", str(len(body)))


async def test_health_reports_a_lost_storage(hub, folder_alone):
    for path in sorted((hub.settings.data / "objects").rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    (hub.settings.data / "objects").rmdir()
    answer = await hub.get("/health")
    assert (answer.status_code, answer.json()["status"], answer.json()["storage"]) == (503, "degraded", False)
