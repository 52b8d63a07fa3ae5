"""Uploads: what comes in and becomes of it; the archives that do not come in are in test_gate.py."""

from __future__ import annotations

import base64
import hashlib
import io
import tarfile

import pytest
from wander_hub.web import source as files

HTML = {"Accept": "text/html"}
SDIST = "reverse_text-0.1.0.tar.gz"
MIB = 1024 * 1024
FIELD = b'--b\r\nContent-Disposition: form-data; name="a"\r\n\r\nx\r\n--b--\r\n'
PKG_INFO = b"Metadata-Version: 2.4\nName: reverse-text\nVersion: 0.1.0\nSummary: From source.\n"


def sdist() -> bytes:
    """Return a source archive."""
    project = b'[project.entry-points."wander.environments"]\nreverse-text = "reverse_text"\n'
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        given = {"PKG-INFO": PKG_INFO, "pyproject.toml": project, "tests/test_it.py": b"assert 1 < 2\n"}
        for name, body in given.items():
            info = tarfile.TarInfo(f"reverse_text-0.1.0/{name}")
            info.size = len(body)
            archive.addfile(info, io.BytesIO(body))
    return buffer.getvalue()


async def test_metadata_comes_from_the_file_and_never_from_the_form(hub, wheel_spec):
    fields = {"summary": "lies", "requires_dist": "evil", "description": "lies", "keywords": "lies"}
    answer = await hub.upload(wheel_spec.build(), wheel_spec.wheel_name, fields=fields)
    version = answer.json()
    assert version["summary"] == "Reverse a text."
    assert version["requires_dist"] == ["wander-sdk"]
    assert version["tags"] == ["text", "single-turn"]
    assert version["license"] == "MIT"
    assert version["entry_point"] == "reverse_text:load_environment"
    assert version["uploaded_by"] == "alice"


async def test_same_bytes_are_a_200_and_other_bytes_a_409(hub, make_wheel):
    first = make_wheel()
    assert (await hub.upload(first.build(), first.wheel_name)).headers["x-wander-upload"] == "created"
    again = await hub.upload(first.build(), first.wheel_name)
    assert (again.status_code, again.headers["x-wander-upload"]) == (200, "unchanged")
    other = await hub.upload(make_wheel(summary="Changed.").build(), first.wheel_name)
    assert (other.status_code, other.json()["code"]) == (409, "version_exists")
    assert "0.1.0" in other.json()["hint"]
    detail = (await hub.get("/api/v1/environments/alice/reverse-text")).json()
    assert (detail["summary"], detail["versions"]) == ("Reverse a text.", 1)


async def test_wheel_and_source_archive_share_a_version(hub, make_wheel, monkeypatch):
    answer = await hub.upload(sdist(), SDIST)
    assert answer.status_code == 200, answer.text
    assert answer.json()["entry_point"] == "reverse_text:load_environment"
    answer = await hub.upload(make_wheel().build(), make_wheel().wheel_name)
    version = answer.json()
    assert sorted(file["kind"] for file in version["files"]) == ["sdist", "wheel"]
    assert version["summary"] == "Reverse a text."  # the wheel's metadata is the final one
    page = "/alice/reverse-text/versions/0.1.0/source"
    installs = (await hub.get(page, headers=HTML)).text
    assert ('href="?archive=source"' in installs, "tests/" in installs) == (True, False)
    first = (await hub.get(f"{page}?archive=source", headers=HTML)).text
    assert 'href="?archive=source&amp;file=tests/test_it.py">tests/<wbr>test_' in first
    tests = f"{page}?archive=source&file=tests/test_it.py"
    line = '<span id="L1"><a href="#L1">1</a><span class="k">assert</span>'
    assert line in (await hub.get(tests)).text
    assert (await hub.get(f"{page}?archive=source&file=../x")).status_code == 404
    for file in ("tests/test_it.py", "tests", "tests/"):  # as a README links to them
        assert line in (await hub.get(page, params={"file": file})).text
    for file in ("test", "x.py", ""):
        assert (await hub.get(page, params={"file": file})).status_code == 404
    monkeypatch.setattr(files, "_MOST_BYTES", 100)
    answer = await hub.get(tests, headers={"Accept": "application/json", "Cookie": "none=1"})
    assert answer.json()["code"] == "source_too_large"


async def test_module_level_load_environment_is_enough(hub, make_wheel):
    spec = make_wheel(entry_points=None)
    assert (await hub.upload(spec.build(), spec.wheel_name)).json()["entry_point"] is None
    package = make_wheel(
        name="packaged",
        entry_points=None,
        files={"packaged/__init__.py": b"from .main import load_environment\n"},
    )
    assert (await hub.upload(package.build(), package.wheel_name)).status_code == 200


async def test_versions_are_ordered_and_latest_is_the_newest_final_one(hub, make_wheel):
    for version in ("0.9.0", "0.10.0", "1.0.0rc1"):
        await hub.publish(make_wheel(version=version))
    detail = (await hub.get("/api/v1/environments/alice/reverse-text")).json()
    assert detail["all_versions"] == ["1.0.0rc1", "0.10.0", "0.9.0"]
    assert detail["latest_version"] == "0.10.0"
    latest = (await hub.get("/api/v1/environments/alice/reverse-text/versions/latest")).json()
    assert latest["version"] == "0.10.0"
    missing = await hub.get("/api/v1/environments/alice/reverse-text/versions/3.0")
    assert (missing.status_code, missing.json()["code"]) == (404, "version_not_found")
    assert "0.10.0" in missing.json()["hint"]


@pytest.mark.parametrize(
    "filename",
    [
        "../../evil-1.0-py3-none-any.whl",
        "reverse_text.whl",
        "reverse_text-0.1.0-py3.whl",
        "reverse_text-not.a.version-py3-none-any.whl",
        "reverse_text-0.1.0.zip",
        "reverse_text-0.1.0.exe",
        "re\x00verse-0.1.0-py3-none-any.whl",
        "-reverse-0.1.0-py3-none-any.whl",
    ],
)
async def test_bad_filename(hub, wheel_spec, filename):
    answer = await hub.upload(wheel_spec.build(), filename)
    assert answer.status_code in (400, 422)
    assert answer.json()["code"] in ("bad_filename", "bad_form")


async def test_file_of_another_name(hub, wheel_spec):
    answer = await hub.upload(wheel_spec.build(), "other-0.1.0-py3-none-any.whl")
    assert answer.json()["code"] == "bad_dist_info"


@pytest.mark.parametrize("digest", ["sha256_digest", "blake2_256_digest", "md5_digest"])
async def test_every_digest_given_must_match(hub, wheel_spec, digest):
    body = wheel_spec.build()
    wrong = await hub.upload(body, wheel_spec.wheel_name, fields={digest: "0" * 64})
    assert (wrong.status_code, wrong.json()["code"]) == (422, "digest_mismatch")
    right = {
        "sha256_digest": hashlib.sha256(body).hexdigest(),
        "blake2_256_digest": hashlib.blake2b(body, digest_size=32).hexdigest(),
        "md5_digest": hashlib.md5(body, usedforsecurity=False).hexdigest(),
    }
    assert (await hub.upload(body, wheel_spec.wheel_name, fields=right)).status_code == 200


@pytest.mark.parametrize(
    ("fields", "status", "code"),
    [
        ({"name": "other"}, 422, "name_mismatch"),
        ({"version": "0.2.0"}, 422, "version_mismatch"),
        ({":action": "submit"}, 400, "bad_form"),
        ({"protocol_version": "2"}, 400, "bad_form"),
    ],
)
async def test_form_that_contradicts_the_file(hub, wheel_spec, fields, status, code):
    answer = await hub.upload(wheel_spec.build(), wheel_spec.wheel_name, fields=fields)
    assert (answer.status_code, answer.json()["code"]) == (status, code)


async def test_fields_that_other_clients_send_are_tolerated(hub, wheel_spec):
    fields = {
        "attestations": "[]",
        "name": "Reverse_Text",
        "version": "0.1",
        "filetype": "bdist_wheel",
        "description": "x" * (2 * MIB),
    }
    wheel_spec.version = "0.1.0"
    answer = await hub.upload(wheel_spec.build(), wheel_spec.wheel_name, fields=fields | {"version": "0.1.0"})
    assert answer.status_code == 200, answer.text


async def test_a_body_that_is_not_a_form_is_rejected(hub):
    for headers, body, status in (
        ({"Content-Type": "application/json"}, b"{}", 415),
        ({"Content-Type": "multipart/form-data"}, b"x", 400),
        ({"Content-Type": "multipart/form-data; boundary=b"}, b"--b\r\nbroken", 400),
        ({"Content-Type": "multipart/form-data; boundary=b"}, b"--b--\r\n", 400),
        ({"Content-Type": "multipart/form-data; boundary=b; charset=undefined"}, FIELD, 400),
    ):
        answer = await hub.client.post("/alice/legacy/", content=body, headers=hub.auth() | headers)
        assert answer.status_code == status, answer.text
        assert answer.headers["content-type"] == "application/problem+json"


async def test_the_number_of_form_fields_is_limited(hub, wheel_spec):
    fields = {f"field{number}": "x" * MIB for number in range(5)}
    answer = await hub.upload(wheel_spec.build(), wheel_spec.wheel_name, fields=fields)
    assert (answer.status_code, answer.json()["code"]) == (400, "bad_form")
    assert "4,194,304" in answer.json()["detail"]


async def test_basic_authentication_and_both_paths(hub, wheel_spec):
    basic = base64.b64encode(f"__token__:{hub.tokens['alice']}".encode()).decode()
    headers = {"Authorization": f"Basic {basic}"}
    assert (await hub.upload(wheel_spec.build(), wheel_spec.wheel_name, headers=headers)).status_code == 200
    files = {"content": (wheel_spec.wheel_name, wheel_spec.build())}
    answer = await hub.client.post("/alice/legacy", files=files, headers=headers)
    assert answer.status_code == 200


@pytest.mark.parametrize(
    ("owner", "user", "status", "code"),
    [
        ("alice", None, 401, "token_required"),
        ("bob", "alice", 403, "not_permitted"),
        ("wander", "alice", 403, "not_permitted"),
        ("nobody", "alice", 404, "owner_not_found"),
        ("bob", "admin", 200, None),
    ],
)
async def test_only_members_publish_under_an_owner(hub, wheel_spec, owner, user, status, code):
    answer = await hub.upload(wheel_spec.build(), wheel_spec.wheel_name, owner=owner, user=user)
    assert answer.status_code == status
    assert answer.json().get("code") == code
    if status == 401:
        assert answer.headers["www-authenticate"].startswith("Basic")
