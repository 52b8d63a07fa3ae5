"""Uploads: what comes in, what does not and under which code, and that nothing half-written stays."""

from __future__ import annotations

import base64
import gzip
import hashlib
import io
import stat
import tarfile
import zipfile

import pytest

MIB = 1024 * 1024
PKG_INFO = b"Metadata-Version: 2.4\nName: reverse-text\nVersion: 0.1.0\nSummary: From source.\n"


def sdist(
    members: dict[str, bytes] | None = None,
    *,
    stem: str = "reverse_text-0.1.0",
    link: bool = False,
    metadata: bytes = PKG_INFO,
) -> bytes:
    """Return a source archive."""
    project = b'[project.entry-points."wander.environments"]\nreverse-text = "reverse_text"\n'
    whole = {f"{stem}/PKG-INFO": metadata, f"{stem}/pyproject.toml": project} if members is None else members
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        for path, body in whole.items():
            info = tarfile.TarInfo(path)
            info.size = len(body)
            archive.addfile(info, io.BytesIO(body))
        if link:
            info = tarfile.TarInfo(f"{stem}/link")
            info.type, info.linkname = tarfile.SYMTYPE, "/etc/passwd"
            archive.addfile(info)
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


async def test_wheel_and_source_archive_share_a_version(hub, make_wheel):
    answer = await hub.upload(sdist(), "reverse_text-0.1.0.tar.gz")
    assert answer.status_code == 200, answer.text
    assert answer.json()["entry_point"] == "reverse_text:load_environment"
    answer = await hub.upload(make_wheel().build(), make_wheel().wheel_name)
    version = answer.json()
    assert sorted(file["kind"] for file in version["files"]) == ["sdist", "wheel"]
    assert version["summary"] == "Reverse a text."  # the wheel's metadata is the final one


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


def spoilt(spec, change):
    """Return the wheel with its zip file rewritten by `change(name, body) -> [(info, body)]`."""
    source = zipfile.ZipFile(io.BytesIO(spec.build()))
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as target:
        for info in source.infolist():
            for one, body in change(info, source.read(info)):
                target.writestr(one, body)
    return buffer.getvalue()


def with_symlink(spec) -> bytes:
    def change(info, body):
        if info.filename == "reverse_text.py":
            info.external_attr = (stat.S_IFLNK | 0o777) << 16
        return [(info, body)]

    return spoilt(spec, change)


def encrypted(spec) -> bytes:
    body = bytearray(spec.build())
    for signature, offset in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        body[body.find(signature) + offset] |= 1
    return bytes(body)


def wrong_crc(spec) -> bytes:
    """Change a byte of a stored member without its CRC."""

    def change(info, body):
        info.compress_type = zipfile.ZIP_STORED
        return [(info, body)]

    whole = spoilt(spec, change)
    return whole.replace(b'"""An environment."""', b'"""An environmenx."""', 1)


def wheels(make):
    """Return (label, spec or bytes, code) of every bad wheel."""
    plain = make()
    module = plain.files["reverse_text.py"]
    return {
        "not a zip": (b"this is no archive", "not_a_wheel"),
        "empty": (b"", "empty_file"),
        "cut short": (plain.build()[:-60], "not_a_wheel"),
        "wrong crc": (wrong_crc(plain), "bad_checksum"),
        "encrypted": (encrypted(plain), "encrypted_member"),
        "symlink": (with_symlink(plain), "link_member"),
        "no environment": (make(entry_points=None, files={"reverse_text.py": b"x = 1\n"}), "no_environment"),
        "loader only nested": (
            make(entry_points=None, files={"a/b/c.py": module}),
            "no_environment",
        ),
        "loader only in a string": (
            make(entry_points=None, files={"a.py": b'"""def load_environment(): ..."""\n'}),
            "no_environment",
        ),
        "traversal": (make(files={"../../evil.py": module}), "unsafe_path"),
        "absolute": (make(files={"/etc/evil.py": module}), "unsafe_path"),
        "windows drive": (make(files={"C:/evil.py": module}), "unsafe_path"),
        "backslash": (make(files={"a\\..\\evil.py": module}), "unsafe_path"),
        "control character": (make(files={"a\nb.py": module}), "unsafe_path"),
        "case collision": (make(files={"a.py": module, "A.py": module}), "colliding_members"),
        "unicode collision": (make(files={"\u00e9.py": module, "e\u0301.py": module}), "colliding_members"),
        "no metadata": (make(without=("METADATA",)), "missing_metadata"),
        "no wheel file": (make(without=("WHEEL",)), "missing_metadata"),
        "no record": (make(without=("RECORD",)), "missing_metadata"),
        "empty record": (make(record=b"\n"), "record_missing"),
        "record names more": (
            make(mutate=None, record=b"ghost.py,sha256=AAAA,1\n"),
            "record_extra",
        ),
        "record is binary": (make(record=b"\xff\xfe,,\n"), "bad_record"),
        "second dist-info": (
            make(files={"reverse_text.py": module, "pip-1.0.dist-info/METADATA": b"Name: pip"}),
            "bad_dist_info",
        ),
        "other name inside": (
            make(metadata=b"Metadata-Version: 2.1\nName: other\nVersion: 0.1.0\n"),
            "name_mismatch",
        ),
        "other version inside": (
            make(metadata=b"Metadata-Version: 2.1\nName: reverse-text\nVersion: 9\n"),
            "name_mismatch",
        ),
        "garbage metadata": (make(metadata=b"hello"), "bad_metadata"),
        "metadata not utf-8": (
            make(metadata=b"Metadata-Version: 2.1\nName: reverse-text\nVersion: 0.1.0\nSummary: \xff\n"),
            "bad_metadata",
        ),
        "bad requirement": (
            make(requires_dist=("wander-sdk; nonsense",)),
            "bad_metadata",
        ),
        "long summary": (make(summary="x" * 600), "text_too_long"),
        "bad entry points": (make(entry_points="[wander.environments\nx"), "bad_entry_points"),
        "entry point names no object": (
            make(entry_points="[wander.environments]\nx = import os; evil()\n"),
            "bad_entry_points",
        ),
        "reserved name": (
            make(name="simple", entry_points="[wander.environments]\nx = reverse_text:load_environment\n"),
            "reserved_name",
        ),
        "local version": (make(version="0.1.0+mine"), "local_version"),
    }


BAD_WHEELS = [
    "not a zip",
    "empty",
    "cut short",
    "wrong crc",
    "encrypted",
    "symlink",
    "no environment",
    "loader only nested",
    "loader only in a string",
    "traversal",
    "absolute",
    "windows drive",
    "backslash",
    "control character",
    "case collision",
    "unicode collision",
    "no metadata",
    "no wheel file",
    "no record",
    "empty record",
    "record names more",
    "record is binary",
    "second dist-info",
    "other name inside",
    "other version inside",
    "garbage metadata",
    "metadata not utf-8",
    "bad requirement",
    "long summary",
    "bad entry points",
    "entry point names no object",
    "reserved name",
    "local version",
]


@pytest.mark.parametrize("label", BAD_WHEELS)
async def test_bad_wheel_is_refused_and_leaves_nothing(hub, make_wheel, label):
    bad, code = wheels(make_wheel)[label]
    body = bad if isinstance(bad, bytes) else bad.build()
    name = make_wheel().wheel_name if isinstance(bad, bytes) else bad.wheel_name
    answer = await hub.upload(body, name)
    assert (answer.status_code, answer.json()["code"]) == (422, code), answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.json()["request_id"] == answer.headers["x-request-id"]
    assert (await hub.get("/api/v1/environments")).json()["data"] == []
    assert not [path for path in (hub.settings.data / "objects").rglob("*") if path.is_file()]


def test_every_bad_wheel_is_tried(make_wheel):
    assert sorted(BAD_WHEELS) == sorted(wheels(make_wheel))


async def test_wrong_record_digest_is_caught(hub, make_wheel):
    spec = make_wheel()
    info = f"{spec.stem}.dist-info"
    good = zipfile.ZipFile(io.BytesIO(spec.build())).read(f"{info}/RECORD")
    digest = base64.urlsafe_b64encode(hashlib.sha256(b"other").digest()).rstrip(b"=")
    lines = good.splitlines()
    lines[0] = b"reverse_text.py,sha256=" + digest + b",1"
    spec.record = b"\n".join(lines) + b"\n"
    answer = await hub.upload(spec.build(), spec.wheel_name)
    assert answer.json()["code"] == "record_digest"
    spec.record = b"\n".join([b"reverse_text.py,md5=aaaa,1", *good.splitlines()[1:]]) + b"\n"
    assert (await hub.upload(spec.build(), spec.wheel_name)).json()["code"] == "record_weak_digest"


@pytest.mark.filterwarnings("ignore:Duplicate name")
async def test_duplicate_member_is_refused(hub, make_wheel):
    spec = make_wheel(mutate=lambda archive: archive.writestr("reverse_text.py", b"evil = 1\n"))
    assert (await hub.upload(spec.build(), spec.wheel_name)).json()["code"] == "duplicate_member"


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


async def test_body_that_is_no_form(hub):
    for headers, body, status in (
        ({"Content-Type": "application/json"}, b"{}", 415),
        ({"Content-Type": "multipart/form-data"}, b"x", 400),
        ({"Content-Type": "multipart/form-data; boundary=b"}, b"--b\r\nbroken", 400),
        ({"Content-Type": "multipart/form-data; boundary=b"}, b"--b--\r\n", 400),
    ):
        answer = await hub.client.post("/alice/legacy/", content=body, headers=hub.auth() | headers)
        assert answer.status_code == status, answer.text
        assert answer.headers["content-type"] == "application/problem+json"


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
async def test_who_may_publish_where(hub, wheel_spec, owner, user, status, code):
    answer = await hub.upload(wheel_spec.build(), wheel_spec.wheel_name, owner=owner, user=user)
    assert answer.status_code == status
    assert answer.json().get("code") == code
    if status == 401:
        assert answer.headers["www-authenticate"].startswith("Basic")


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (sdist({"reverse_text-0.1.0/PKG-INFO": PKG_INFO}), "missing_pyproject"),
        (sdist({"reverse_text-0.1.0/a.py": b""}), "missing_metadata"),
        (sdist({"other-1/PKG-INFO": b""}), "bad_top_folder"),
        (sdist({"reverse_text-0.1.0/../evil": b""}), "unsafe_path"),
        (sdist({"reverse_text-0.1.0/a": b"", "reverse_text-0.1.0/A": b""}), "colliding_members"),
        (sdist(link=True), "link_member"),
        (sdist(metadata=b"Metadata-Version: 2.4\nName: other\nVersion: 0.1.0\n"), "name_mismatch"),
        (b"no gzip", "not_an_sdist"),
        (gzip.compress(b"no tar"), "not_an_sdist"),
        (sdist()[:-20], "not_an_sdist"),
        (sdist()[:-8] + b"\0" * 8, "not_an_sdist"),
    ],
    ids=range(11),
)
async def test_bad_source_archive(hub, body, code):
    answer = await hub.upload(body, "reverse_text-0.1.0.tar.gz")
    assert (answer.status_code, answer.json()["code"]) == (422, code)
    assert (await hub.get("/api/v1/environments")).json()["data"] == []
