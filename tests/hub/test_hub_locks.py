"""Locks of versions: attached once, as private as the version, and refused where nobody could use them."""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Callable
from typing import Any

import pytest
import tomlkit
from lock_files import FILES, Lock, lock_of, wheel_of

VERSION = "/api/v1/environments/alice/reverse-text/versions/0.1.0"
LOCK = f"{VERSION}/pylock.toml"


async def put(hub, lock: Lock | bytes, user: str = "alice", path: str = LOCK) -> Any:
    body = lock if isinstance(lock, bytes) else tomlkit.dumps(lock).encode()
    return await hub.client.put(path, content=body, headers=hub.auth(user))


async def test_a_lock_is_attached_once_and_read_by_its_digest(hub, make_wheel):
    digest = await hub.publish(make_wheel())
    assert (await hub.get(VERSION)).json()["lock"] is None
    missing = await hub.client.get(LOCK)
    assert (missing.status_code, missing.json()["code"]) == (404, "lock_not_found")

    lock = lock_of(digest)
    text = tomlkit.dumps(lock).encode()
    stated = (await put(hub, lock)).json()["lock"]
    assert stated["sha256"] == hashlib.sha256(text).hexdigest()
    assert stated["size"] == len(text)
    assert (await hub.get(VERSION)).json()["lock"] == stated
    assert (await hub.get("/api/v1/environments/alice/reverse-text")).json()["latest"]["lock"] == stated

    read = await hub.client.get(stated["url"])
    assert read.content == text
    assert read.headers["content-type"].startswith("application/toml")
    again = await hub.client.get(stated["url"], headers={"If-None-Match": read.headers["etag"]})
    assert again.status_code == 304

    assert (await put(hub, lock)).status_code == 200, "the same again is fine"
    lock["created-by"] = "somebody"
    other = await put(hub, lock)
    assert (other.status_code, other.json()["code"]) == (409, "document_exists")


async def test_a_lock_is_as_private_as_its_version_and_deleted_with_it(hub, make_wheel):
    spec = make_wheel()
    body = spec.build()
    await hub.upload(body, spec.wheel_name, fields={"wander_visibility": "private"})
    lock = lock_of(hashlib.sha256(body).hexdigest())
    assert (await put(hub, lock)).status_code == 200
    assert (await hub.client.get(LOCK)).status_code == 404
    assert (await hub.client.get(LOCK, headers=hub.auth("bob"))).status_code == 404
    assert (await hub.client.get(LOCK, headers=hub.auth("alice"))).status_code == 200
    assert (await put(hub, lock, user="bob")).status_code == 404
    await hub.client.delete(VERSION, headers=hub.auth())
    gone = await hub.client.get(LOCK, headers=hub.auth("alice"))
    assert (gone.status_code, gone.json()["code"]) == (404, "lock_not_found")


async def test_the_page_of_a_version_shows_its_lock(hub, make_wheel):
    digest = await hub.publish(make_wheel())
    page = (await hub.client.get("/alice/reverse-text", headers={"Accept": "text/html"})).text
    assert "no lock" in page
    stated = (await put(hub, lock_of(digest))).json()["lock"]
    page = (await hub.client.get("/alice/reverse-text", headers={"Accept": "text/html"})).text
    assert stated["sha256"] in page
    assert f"{LOCK}" in page
    assert '<a href="#lock">3 locked packages</a>' in page
    assert '<tr><td class="mono wide">numpy</td><td class="mono">2.1</td></tr>' in page


async def test_a_version_without_wheels_accepts_no_lock(hub, make_wheel):
    digest = await hub.publish(make_wheel())
    other = f"{VERSION.removesuffix('0.1.0')}9.9/pylock.toml"
    assert (await put(hub, lock_of(digest), path=other)).status_code == 404


def package(lock: Lock, name: str) -> dict[str, Any]:
    found: dict[str, Any] = next(each for each in lock["packages"] if each["name"] == name)
    return found


def first_wheel(lock: Lock, name: str = "numpy") -> dict[str, Any]:
    wheel: dict[str, Any] = package(lock, name)["wheels"][0]
    return wheel


def instead(lock: Lock, name: str, **source: Any) -> None:
    """Have a package come from something else than an index."""
    found = package(lock, name)
    del found["wheels"]
    found.pop("sdist", None)
    found.update(source)


def set_url(lock: Lock, url: str) -> None:
    first_wheel(lock)["url"] = url


def as_path(lock: Lock) -> None:
    del first_wheel(lock)["url"]
    first_wheel(lock)["path"] = "/home/alice/numpy-2.1-cp311-cp311-win32.whl"


WHEEL = "numpy-2.1-cp311-cp311-win32.whl"
FORGERIES: dict[str, tuple[Callable[[Lock], object], str, str]] = {
    "another version of the format": (
        lambda lock: lock.update({"lock-version": "2.0"}), "bad_lock", "not supported"),
    "no packages": (lambda lock: lock.pop("packages"), "bad_lock", "packages"),
    "a name that is not normalized": (
        lambda lock: package(lock, "numpy").update(name="NumPy"), "bad_lock", "normalized"),
    "a file of another name": (
        lambda lock: set_url(lock, f"{FILES}/torch-2.1-py3-none-any.whl"), "bad_lock", "torch"),
    "a path": (as_path, "bad_lock", "path"),
    "a file address": (lambda lock: set_url(lock, f"file:///home/alice/{WHEEL}"), "bad_lock", "http"),
    "a password": (
        lambda lock: set_url(lock, f"https://alice:secret@pypi.acme.com/{WHEEL}"),
        "lock_credentials", "credentials"),
    "a user": (
        lambda lock: set_url(lock, f"https://token@pypi.acme.com/{WHEEL}"),
        "lock_credentials", "credentials"),
    "a query": (
        lambda lock: first_wheel(lock).update(url=f"https://s3.acme.com/{WHEEL}?X-Amz-Date=1", name=WHEEL),
        "bad_lock", "query"),
    **{
        f"a file at {host}": (
            lambda lock, host=host: set_url(lock, f"http://{host}/{WHEEL}"),
            "lock_address", "private network")
        for host in (
            "169.254.169.254", "10.0.0.1:8080", "127.0.0.1", "127.1", "2130706433", "0x7f.1", "localhost",
            "x.localhost", "[::1]", "[::ffff:10.0.0.1]", "[fd00::1]", "[64:ff9b::a9fe:a9fe]", "0.0.0.0",
            "192.168.1.1", "100.64.0.1", "224.0.0.1")
    },
    **{
        f"the address {url!r}": (lambda lock, url=url: set_url(lock, url), "bad_lock", "numpy")
        for url in (
            f"https://pypi.acme.com/${{OPENAI_API_KEY}}/{WHEEL}", f"https://pypi.acme.com/$HOME/{WHEEL}",
            f"https://pypi.acme.com/a b/{WHEEL}", f"https://pypi.acme.com/{{x}}/{WHEEL}",
            f"https://pypi.acme.com/\n--index-url https://evil/{WHEEL}", f"https://pypi.acme.com/\t/{WHEEL}",
            f"https://pypi.acme.com/../{WHEEL}", f"https://pypi.acme.com/%2e%2e/{WHEEL}",
            f"https://pypi.acme.com/%0a/{WHEEL}", f"http://pypi.acme.com/{WHEEL}",
            f"git+https://pypi.acme.com/{WHEEL}", f"https://pypi.acme.com:99999/{WHEEL}",
            f"https://pypi.ácme.com/{WHEEL}")
    },
    "no SHA-256": (lambda lock: first_wheel(lock).update(hashes={"md5": "a" * 32}), "bad_lock", "SHA-256"),
    "half a SHA-256": (
        lambda lock: first_wheel(lock).update(hashes={"sha256": "abc"}), "bad_lock", "SHA-256"),
    "an sdist without a digest": (
        lambda lock: package(lock, "numpy")["sdist"].update(hashes={"sha512": "a"}), "bad_lock", "SHA-256"),
    "a folder": (
        lambda lock: instead(lock, "numpy", directory={"path": "../numpy"}), "bad_lock", "folder"),
    "a repository": (
        lambda lock: instead(
            lock, "numpy",
            vcs={"type": "git", "url": "https://github.com/numpy/numpy", "commit-id": "abc"}),
        "bad_lock", "repository"),
    "extras": (lambda lock: lock.update(extras=["gpu"]), "bad_lock", "extras"),
    "nothing of its own": (
        lambda lock: lock["packages"].remove(package(lock, "reverse-text")),
        "lock_mismatch", "does not include"),
    "another version": (
        lambda lock: instead(
            lock, "reverse-text", version="0.2.0",
            wheels=[wheel_of("http://hub.test/reverse_text-0.2.0-py3-none-any.whl")]),
        "lock_mismatch", "0.2.0"),
    "other bytes": (
        lambda lock: first_wheel(lock, "reverse-text").update(hashes={"sha256": "b" * 64}),
        "lock_mismatch", "differs from the one"),
    "itself as a source archive": (
        lambda lock: instead(
            lock, "reverse-text", sdist=wheel_of("http://hub.test/reverse_text-0.1.0.tar.gz")),
        "lock_mismatch", "wheels"),
    "no SDK": (
        lambda lock: lock["packages"].remove(package(lock, "wander-sdk")), "lock_mismatch", "wander-sdk"),
}  # fmt: skip


async def test_incompatible_locks_are_rejected_with_the_reason(hub, make_wheel):
    good = lock_of(await hub.publish(make_wheel()))
    for name, (forge, code, reason) in FORGERIES.items():
        lock = copy.deepcopy(good)
        forge(lock)
        answer = await put(hub, lock)
        assert (answer.status_code, answer.json()["code"]) == (422, code), (name, answer.text)
        assert reason in answer.json()["detail"], (name, answer.text)
        assert "wander publish" in answer.json()["hint"]
    for name, body in {"bytes": b"\xff\xfe", "prose": b"a lock", "nothing": b""}.items():
        answer = await put(hub, body)
        assert (answer.status_code, answer.json()["code"]) == (422, "bad_lock"), (name, answer.text)
    assert (await hub.get(VERSION)).json()["lock"] is None
    assert (await put(hub, good)).status_code == 200


async def test_a_lock_over_the_limit_is_rejected(hub, make_wheel):
    lock = lock_of(await hub.publish(make_wheel()))
    body = tomlkit.dumps(lock).encode()
    answer = await put(hub, body + b"#" * (4 << 20))
    assert (answer.status_code, answer.json()["code"]) == (413, "too_large")


@pytest.mark.parametrize("change", [{"version": "2.5"}, {"marker": "sys_platform == 'win32'"}])
async def test_a_lock_may_list_a_package_more_than_once(hub, make_wheel, change):
    lock = lock_of(await hub.publish(make_wheel()))
    more = copy.deepcopy(package(lock, "numpy")) | change
    del more["sdist"]
    more["wheels"][0]["url"] = f"{FILES}/cc/numpy-{more['version']}-cp311-cp311-win32.whl"
    lock["packages"].append(more)
    assert (await put(hub, lock)).status_code == 200
