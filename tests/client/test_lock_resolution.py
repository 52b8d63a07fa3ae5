"""Locks as the client makes and reads them: nothing is of one machine, and all is told by digest."""

from __future__ import annotations

import hashlib
import os
import tomllib
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from command_line import make_wheel
from packaging.pylock import Pylock
from wander.wire.package_index import FileAddress
from wander_client.errors import ClientError
from wander_client.hub.api import HubApi
from wander_client.names import EnvironmentName
from wander_client.packages import lock
from wander_client.packages.needs import Supplies, Wheel
from wander_client.packages.store import RECORD, EnvironmentStore, InstalledRecord

HUB = "http://hub.example:8600"
PYPI = "https://files.pythonhosted.org/packages"
WHEEL = "numpy-2.1-cp311-cp311-manylinux_2_28_x86_64.whl"


@pytest.fixture
def hub() -> Iterator[HubApi]:
    """A hub that nothing asks."""
    api = HubApi(HUB)
    yield api
    api.close()


def file_at(url: str, digest: str = "a" * 64) -> dict[str, Any]:
    return {"url": url, "size": 7, "hashes": {"sha256": digest}}


def portable(package: dict[str, Any], keep: tuple[str, ...] = (), wheels: tuple[Wheel, ...] = ()) -> Any:
    """Return what becomes of a package that uv wrote into a lock."""
    hosts = {*lock._PUBLIC_HOSTS, *keep, "hub.example:8600"}
    data = {"lock-version": "1.0", "requires-python": ">=3.11", "packages": [package]}
    made = lock._portable(data, Supplies(list(wheels)), hosts)
    text = lock._write(made)
    assert tomllib.loads(text) == made, "what is written is what was meant"
    Pylock.from_dict(tomllib.loads(text))
    return made["packages"][0]


@pytest.mark.parametrize(
    ("url", "keep", "becomes"),
    [
        (f"{PYPI}/ab/cd/{WHEEL}", (), f"{PYPI}/ab/cd/{WHEEL}"),
        (f"https://me:secret@pypi.acme.com/x/{WHEEL}", (), f"{PYPI}/cp311/n/numpy/{WHEEL}"),
        (f"https://me:secret@pypi.acme.com/{WHEEL}", ("pypi.acme.com",), f"https://pypi.acme.com/{WHEEL}"),
        (f"https://pypi.acme.com/{WHEEL}?token=x#y", ("pypi.acme.com",), f"https://pypi.acme.com/{WHEEL}"),
        (f"http://127.0.0.1:8080/{WHEEL}", ("127.0.0.1:9090",), f"{PYPI}/cp311/n/numpy/{WHEEL}"),
        (f"{HUB}/alice/files/numpy/{WHEEL}", (), f"{HUB}/alice/files/numpy/{WHEEL}"),
        (f"file:///opt/mirror/{WHEEL}", ("opt",), f"{PYPI}/cp311/n/numpy/{WHEEL}"),
        (f"https://download.pytorch.org/whl/{WHEEL}", (), f"https://download.pytorch.org/whl/{WHEEL}"),
    ],
)
def test_lock_files_contain_only_public_addresses(url: str, keep: tuple[str, ...], becomes: str) -> None:
    made = portable({"name": "numpy", "version": "2.1", "wheels": [file_at(url)]}, keep)
    assert made["wheels"] == [file_at(becomes)]


def test_a_local_path_becomes_a_public_address() -> None:
    packed = {"path": "/srv/wheels/numpy-2.1.tar.gz", "hashes": {"sha256": "b" * 64}}
    made = portable({"name": "numpy", "version": "2.1", "marker": "os_name == 'nt'", "sdist": packed})
    assert made["sdist"]["url"] == f"{PYPI}/source/n/numpy/numpy-2.1.tar.gz"
    assert made["marker"] == "os_name == 'nt'"


def test_files_without_a_sha256_are_left_out() -> None:
    other = {"url": f"{PYPI}/ab/cd/numpy-2.1-cp311-cp311-win32.whl", "hashes": {"md5": "c" * 32}}
    made = portable({"name": "numpy", "version": "2.1", "wheels": [other, file_at(f"{PYPI}/a/b/{WHEEL}")]})
    assert [each["url"] for each in made["wheels"]] == [f"{PYPI}/a/b/{WHEEL}"]


@pytest.mark.parametrize(
    "source",
    [
        {"vcs": {"type": "git", "url": "https://example.org/x.git", "commit-id": "abc"}},
        {"directory": {"path": "../numpy"}},
        {"archive": {"path": "../numpy-2.1.zip", "hashes": {"sha256": "a" * 64}}},
        {"archive": {"url": "file:///srv/numpy-2.1.zip", "hashes": {"sha256": "a" * 64}}},
    ],
)
def test_packages_that_are_only_on_this_machine_cannot_be_locked(source: dict[str, Any]) -> None:
    with pytest.raises(ClientError, match="`numpy` cannot be locked") as refused:
        portable({"name": "numpy", "version": "2.1", **source})
    assert refused.value.code == "unlockable"


def own_wheel(folder: Path, name: str = "say-env") -> Wheel:
    path = make_wheel(folder, name)
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    return Wheel(name, "0.1.0", path, f"{HUB}/acme/files/{name}/{path.name}", digest)


def test_wheels_of_the_hub_have_the_hub_address_in_the_lock(tmp_path: Path) -> None:
    wheel = own_wheel(tmp_path)
    archive = {"path": str(wheel.path), "hashes": {"sha256": wheel.sha256}}
    made = portable({"name": "say-env", "version": "0.1.0", "archive": archive}, wheels=(wheel,))
    assert made["wheels"] == [
        {"url": wheel.url, "size": wheel.path.stat().st_size, "hashes": {"sha256": wheel.sha256}}
    ]
    assert "archive" not in made


def locked(*packages: dict[str, Any], **more: Any) -> Pylock:
    data = {"lock-version": "1.0", "created-by": "wander", "packages": list(packages), **more}
    return lock.read_lock(lock._write(data).encode())


Fetched = list[tuple[str, str]]


@pytest.fixture
def fetched(monkeypatch: pytest.MonkeyPatch) -> Fetched:
    """What was fetched from other servers than the hub: its address, and the digest that it has to have."""
    asked: Fetched = []

    def fetch(address: FileAddress, target: Path, sha256: str | None, size: int | None) -> str:
        assert sha256 is not None
        asked.append((address.url, sha256))
        return sha256

    monkeypatch.setattr(lock, "fetch_linked", fetch)
    return asked


def test_installers_get_digests_and_the_index_finds_the_files(
    hub: HubApi, tmp_path: Path, fetched: Fetched
) -> None:
    own = own_wheel(tmp_path)
    cached = tmp_path / "wheels" / "made"
    cached.mkdir(parents=True)
    sdk = own_wheel(cached, "wander-sdk")
    cached.rename(tmp_path / "wheels" / sdk.sha256)
    sdk_url = "https://other.example/wander/files/wander-sdk/wander_sdk-0.1.0-py3-none-any.whl"
    found = locked(
        {"name": "say-env", "version": "0.1.0", "wheels": [file_at(own.url, "0" * 64)]},
        {"name": "wander-sdk", "version": "0.1.0", "wheels": [file_at(sdk_url, sdk.sha256)]},
        {
            "name": "idna",
            "version": "3.1",
            "sdist": file_at(f"{PYPI}/source/i/idna/idna-3.1.tar.gz", "d" * 64),
            "wheels": [
                file_at(f"{PYPI}/cp37/i/idna/idna-3.1-cp37-cp37m-win32.whl", "e" * 64),
                file_at(f"{PYPI}/py3/i/idna/idna-3.1-py3-none-any.whl", "f" * 64),
            ],
        },
        {
            "name": "torch",
            "version": "2.9+cpu",
            "wheels": [file_at("https://download.pytorch.org/whl/torch-2.9%2Bcpu-py3-none-any.whl")],
        },
        {"name": "colorama", "version": "1", "marker": "sys_platform == 'never'",
         "wheels": [file_at(f"{PYPI}/py3/c/colorama/colorama-1-py3-none-any.whl")]},
    )  # fmt: skip
    assert lock.install_lines(hub, tmp_path, found, own).splitlines() == [
        f"say-env @ {own.path.as_uri()} --hash=sha256:{own.sha256}",
        f"wander-sdk @ {(tmp_path / 'wheels' / sdk.sha256 / sdk.path.name).as_uri()}"
        f" --hash=sha256:{sdk.sha256}",
        f"idna==3.1 --hash=sha256:{'e' * 64} --hash=sha256:{'f' * 64} --hash=sha256:{'d' * 64}",
        f"torch @ {(tmp_path / 'wheels' / ('a' * 64) / 'torch-2.9+cpu-py3-none-any.whl').as_uri()}"
        f" --hash=sha256:{'a' * 64}",
    ]
    torch = "https://download.pytorch.org/whl/torch-2.9%2Bcpu-py3-none-any.whl"
    assert fetched == [(torch, "a" * 64)]


def strange(url: str, **more: Any) -> Any:
    return locked({"name": "rules", "version": "1.0", "wheels": [file_at(url)], **more})


@pytest.mark.parametrize(
    ("url", "usual"),
    [
        ("http://169.254.169.254/latest/rules-1.0-py3-none-any.whl", "bad_lock"),
        ("http://10.0.0.5:8080/rules-1.0-py3-none-any.whl", "bad_lock"),
        ("https://index.example:444/rules-1.0-py3-none-any.whl", "fetched"),
        ("http://index.example/rules-1.0-py3-none-any.whl", "bad_lock"),
        ("https://index.example.evil.org/rules-1.0-py3-none-any.whl", "fetched"),
        ("https://download.pytorch.org/rules-1.0-py3-none-any.whl", "fetched"),
    ],
)
def test_a_machine_with_its_own_indexes_ignores_addresses_in_a_lock(
    url: str, usual: str, hub: HubApi, tmp_path: Path, fetched: Fetched, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = own_wheel(tmp_path)
    monkeypatch.setenv("UV_DEFAULT_INDEX", "https://user:word@index.example/simple")
    if usual == "fetched":
        lock.install_lines(hub, tmp_path, strange(url), own)
        assert fetched == [(url, "a" * 64)]
    else:
        with pytest.raises(ClientError) as refused:
            lock.install_lines(hub, tmp_path, strange(url), own)
        assert refused.value.code == usual
    fetched.clear()
    monkeypatch.setenv("WANDER_HUB_JOB", "1")
    lines = lock.install_lines(hub, tmp_path, strange(url), own).splitlines()
    assert lines[1:] == [f"rules==1.0 --hash=sha256:{'a' * 64}"]
    archive = {"name": "rules", "archive": file_at(url.replace("-py3-none-any.whl", ".zip"))}
    with pytest.raises(ClientError) as refused:
        lock.install_lines(hub, tmp_path, locked(archive), own)
    assert refused.value.code == "lock_address"
    assert fetched == []


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("UV_DEFAULT_INDEX", "https://index.example/simple"),
        ("UV_INDEX", "https://other.example/simple inner=https://u:p@index.example/simple"),
        ("UV_FIND_LINKS", "/wheels,https://index.example/links"),
        ("PIP_EXTRA_INDEX_URL", "https://index.example/simple"),
        ("PIP_FIND_LINKS", "https://index.example/links"),
    ],
)
def test_the_configured_index_is_used(
    variable: str, value: str, hub: HubApi, tmp_path: Path, fetched: Fetched, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("UV_DEFAULT_INDEX", "UV_INDEX", "UV_FIND_LINKS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv(variable, value)
    monkeypatch.setenv("WANDER_HUB_JOB", "1")
    url = "https://index.example/files/rules-1.0-py3-none-any.whl"
    lines = lock.install_lines(hub, tmp_path, strange(url), own_wheel(tmp_path)).splitlines()
    assert lines[1:] == [f"rules==1.0 --hash=sha256:{'a' * 64}"]
    assert fetched == []


@pytest.mark.parametrize(
    "more",
    [
        {"environments": ["sys_platform == 'never'"]},
        {"requires-python": ">=4"},
        {"packages": [{"name": "idna", "version": "3.1",
                       "wheels": [file_at(f"{PYPI}/cp27/i/idna/idna-3.1-cp27-cp27m-win32.whl")]}]},
    ],
)  # fmt: skip
def test_a_lock_for_another_platform_is_reported(hub: HubApi, tmp_path: Path, more: dict[str, Any]) -> None:
    with pytest.raises(ClientError, match=r"the lock of `say-env 0\.1\.0` does not support") as refused:
        lock.install_lines(hub, tmp_path, locked(**more), own_wheel(tmp_path))
    assert refused.value.code == "lock_platform"
    assert refused.value.detail


def test_an_invalid_lock_file_is_reported() -> None:
    for content in (
        b"\xff",
        b"[",
        b"lock-version = '1.0'",
        b"lock-version = '9.0'\ncreated-by='x'\npackages=[]",
    ):
        with pytest.raises(ClientError, match=r"not a `pylock\.toml`"):
            lock.read_lock(content)


@pytest.mark.parametrize(
    ("stated", "oldest"),
    [(None, "3.11"), (">=3.9", "3.11"), (">=3.12,<4", "3.12"), ("==3.13.*", "3.13"), ("~=3.11.4", "3.11.4")],
)
def test_a_lock_starts_at_the_oldest_allowed_python(stated: str | None, oldest: str) -> None:
    assert str(lock._oldest_python(stated)) == oldest


def test_the_latest_chosen_installation_of_a_version_is_used(tmp_path: Path) -> None:
    store = EnvironmentStore(tmp_path)
    name = EnvironmentName("acme", "say-env", "1.0")
    for locked_one in (True, False):
        record = InstalledRecord(
            hub=HUB, owner="acme", name="say-env", version="1.0", wheel="w.whl", wheel_sha256="a" * 64,
            wheel_url="x", lock_sha256="b" * 64 if locked_one else None,
            unlocked=None if locked_one else "chosen", packages_sha256="c" * 64, virtualenv="none",
            sdk="0.1.0", python="3.11",
            installed_at=datetime.now(UTC),
        )  # fmt: skip
        place = store.folder_for(HUB, name, "a" * 64, locked=locked_one)
        place.mkdir(parents=True)
        record.write(place / RECORD)
        os.utime(place / RECORD, (1, 1) if locked_one else (2, 2))
    first, second = store.find(name, HUB)
    assert [one.record.unlocked for one in (first, second)] == [None, "chosen"]
    store.choose(first)
    assert [one.path for one in store.find(name, HUB)] == [second.path, first.path]
    fitting = {no_lock: [one.record.unlocked for one in store.find(name, HUB) if one.record.fits(no_lock)]
               for no_lock in (True, False)}  # fmt: skip
    assert fitting == {True: ["chosen"], False: [None]}
