"""Objects lie under their digest, in a folder or elsewhere; answers are the same."""

from __future__ import annotations

import hashlib
import io
import os

import httpx
import pytest
from wander_hub.app import create_app
from wander_hub.storage import Storage, object_key


@pytest.fixture(params=["folder", "memory"])
def storage(request, tmp_path):
    return Storage.open(None if request.param == "folder" else "memory://", tmp_path / "objects")


def test_objects_are_kept_under_their_digest(storage):
    content = os.urandom(3_000_000)
    sha256 = storage.put(io.BytesIO(content))
    assert sha256 == hashlib.sha256(content).hexdigest()
    assert storage.put(io.BytesIO(content)) == sha256
    assert storage.read(sha256) == content
    assert storage.read(sha256, 1_000_000, 20) == content[1_000_000:1_000_020]
    assert storage.healthy()


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
async def test_ranges_from_a_store_that_is_no_folder(hub, make_wheel, asked, status, part):
    store = Storage.open("memory://", hub.settings.data)
    app = create_app(hub.settings, database=hub.database, storage=store)
    spec = make_wheel()
    body = spec.build()
    path = f"/alice/files/reverse-text/{spec.wheel_name}"
    transport = httpx.ASGITransport(app=app)
    async with httpx.AsyncClient(
        transport=transport, base_url="http://hub.test", headers=hub.auth()
    ) as client:
        posted = await client.post("/alice/legacy/", files={"content": (spec.wheel_name, body)})
        assert posted.status_code == 200
        answer = await client.get(path, headers=asked)
        past = await client.get(path, headers={"Range": "bytes=99999999-"})
        head = await client.head(path)
    assert (answer.status_code, answer.content) == (status, body[part])
    assert answer.headers["content-length"] == str(len(body[part]))
    assert (past.status_code, past.headers["content-range"]) == (416, f"bytes */{len(body)}")
    assert (head.content, head.headers["content-length"]) == (b"", str(len(body)))


async def test_health_tells_of_a_lost_store(hub):
    for path in sorted((hub.settings.data / "objects").rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    (hub.settings.data / "objects").rmdir()
    answer = await hub.get("/health")
    assert (answer.status_code, answer.json()["status"], answer.json()["storage"]) == (503, "degraded", False)
