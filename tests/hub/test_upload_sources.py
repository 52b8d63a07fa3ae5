"""Wheels are held against the source archive that they are published with."""

from __future__ import annotations

import hashlib
import io
import tarfile

import pytest
from archive_forge import (
    MODULE,
    PROJECT,
    SDIST_NAME,
    STEM,
    WHEEL_NAME,
    TarEntry,
    entries_of,
    metadata,
    sdist_of,
    wheel_of,
    zip_of,
)
from staged_uploads import published
from wander.wire.source_tree import tree_digest
from wander_client.packages.built_package import generated_files, source_tree

MODULES = {"good_env.py": MODULE}


def source(files: dict[str, bytes], generated: str = "", *extra: TarEntry) -> bytes:
    project = PROJECT + (f"[tool.wander]\ngenerated = [{generated}]\n".encode() if generated else b"")
    return sdist_of(*extra, files={"PKG-INFO": metadata(), "pyproject.toml": project, **files})


async def publish(hub, wheel: bytes, sdist: bytes, **stated):
    files = {WHEEL_NAME: wheel, SDIST_NAME: sdist}
    return await published(hub.client, hub.auth(), files, **stated)


@pytest.mark.parametrize(
    ("in_wheel", "in_source"),
    [
        ({}, MODULES),
        ({}, {"src/good_env.py": MODULE}),
        ({}, {"lib/python/good_env.py": MODULE}),
        (
            {"pkg/__init__.py": b"", "pkg/a.py": b"1\n"},
            MODULES | {"src/pkg/__init__.py": b"", "src/pkg/a.py": b"1\n"},
        ),
        ({"good_env-1.0.data/purelib/extra.py": b"1\n"}, MODULES | {"extra.py": b"1\n"}),
        ({"good_env-1.0.data/scripts/run.py": b"1\n"}, MODULES | {"bin/run.py": b"1\n"}),
        ({"a.py": b"1\n"}, MODULES | {"a.py": b"1\n", "tests/a.py": b"2\n"}),
        ({"table.json": b"{}", "fast.so": b"\x7fELF"}, MODULES),
        ({"start.pth": b"import x\n"}, MODULES | {"start.pth": b"import x\n"}),
    ],
    ids=["flat", "src", "deeper", "package", "purelib", "script", "two of a name", "data", "pth"],
)
async def test_a_wheel_built_from_its_source_is_published(hub, in_wheel, in_source):
    answer = await publish(hub, wheel_of(in_wheel), source(in_source))
    assert answer.status_code == 201, answer.text
    found = answer.json()["source"]
    assert (found["compared"], found["generated"]) == ([WHEEL_NAME], [])


@pytest.mark.parametrize(
    ("in_wheel", "in_source", "named"),
    [
        ({}, {}, "`good_env.py` of"),
        ({}, {"good_env.py": MODULE + b"\n"}, "has other bytes than `good_env.py`"),
        ({"evil.py": b"import os\n"}, MODULES, "`evil.py` of"),
        ({"pkg/a.py": b"1\n"}, MODULES | {"a.py": b"1\n"}, "`pkg/a.py` of"),
        ({"kg/a.py": b"1\n"}, MODULES | {"pkg/a.py": b"1\n"}, "`kg/a.py` of"),
        ({"start.pth": b"import x\n"}, MODULES, "`start.pth` of"),
        ({"a.pyw": b"1\n"}, MODULES, "`a.pyw` of"),
        ({"A.PY": b"1\n"}, MODULES, "`A.PY` of"),
        ({"good_env-1.0.data/purelib/extra.py": b"1\n"}, MODULES, "`extra.py` of"),
        (
            {"run.py": b"1\n", "good_env-1.0.data/scripts/run.py": b"2\n"},
            MODULES | {"bin/run.py": b"2\n"},
            "has other bytes than `bin/run.py`",
        ),
        ({"good_env-1.0.data/platlib/pkg/a.py": b"1\n"}, MODULES | {"a.py": b"1\n"}, "`pkg/a.py` of"),
    ],
    ids=[
        "none",
        "changed",
        "added",
        "moved down",
        "half a name",
        "pth",
        "pyw",
        "upper case",
        "purelib",
        "behind a script",
        "platlib",
    ],
)
async def test_a_wheel_with_other_code_than_its_source_is_rejected(hub, in_wheel, in_source, named):
    answer = await publish(hub, wheel_of(in_wheel), source(in_source))
    assert (answer.status_code, answer.json()["code"]) == (422, "wheel_differs_from_source"), answer.text
    assert named in answer.json()["detail"]
    assert "tool.wander" in answer.json()["hint"]
    assert (await hub.get("/api/v1/environments/alice/good-env")).status_code == 404


async def test_generated_files_are_declared_in_the_source_and_listed(hub):
    wheel = wheel_of({"pkg/__init__.py": b"", "pkg/_version.py": b"1\n", "pkg/_made/a.py": b"2\n"})
    files = MODULES | {"pkg/__init__.py": b""}
    refused = await publish(hub, wheel, source(files, "'pkg/_version.py'"))
    assert refused.json()["code"] == "wheel_differs_from_source"
    assert "pkg/_made/a.py" in refused.json()["detail"]
    answer = await publish(hub, wheel, source(files, "'pkg/_version.py', 'pkg/_made/*'"))
    assert answer.json()["source"]["generated"] == ["pkg/_made/a.py", "pkg/_version.py"]
    later = (await hub.get("/api/v1/environments/alice/good-env/versions/1.0")).json()
    assert later["source"] == answer.json()["source"]


async def test_not_every_file_may_be_declared_as_generated(hub):
    wheel = wheel_of({f"m{number}.py": b"" for number in range(201)})
    refused = await publish(hub, wheel, source(MODULES, "'*'"))
    assert (refused.status_code, refused.json()["code"]) == (422, "bad_generated")


async def test_every_wheel_is_compared(hub):
    other_name = WHEEL_NAME.replace("py3", "py311")
    tag = b"Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py311-none-any\n"
    other = zip_of(entries_of({"only_here.py": b""}, info={"WHEEL": tag}))
    files = {WHEEL_NAME: wheel_of(), other_name: other, SDIST_NAME: source(MODULES)}
    refused = await published(hub.client, hub.auth(), files)
    assert refused.json()["code"] == "wheel_differs_from_source"
    assert other_name in refused.json()["detail"]


async def test_a_wheel_without_a_source_archive_is_not_marked_as_compared(hub):
    await hub.upload(wheel_of({"only_here.py": b""}), WHEEL_NAME)
    assert (await hub.upload(source(MODULES), SDIST_NAME)).json()["source"]["compared"] == []


async def test_client_and_hub_compute_the_same_tree_digest(hub, tmp_path):
    sdist = source(
        MODULES | {"x.egg-info/SOURCES.txt": b"x", "naïve.txt": b"y"},
        "",
        TarEntry(f"{STEM}/run.sh", b"#!/bin/sh\n", mode=0o755),
    )
    archive = tmp_path / SDIST_NAME
    archive.write_bytes(sdist)
    entries = source_tree(archive)
    assert [one.path for one in entries if one.executable] == ["run.sh"]
    digest = tree_digest(entries)
    wrong = await publish(hub, wheel_of(), sdist, source_sha256="0" * 64)
    assert (wrong.status_code, wrong.json()["code"]) == (422, "source_tree_mismatch")
    assert digest in wrong.json()["detail"]
    answer = await publish(hub, wheel_of(), sdist, source_sha256=digest)
    assert answer.json()["source"]["tree_sha256"] == digest


async def test_the_tree_digest_does_not_depend_on_packing(hub, tmp_path):
    packed = []
    for compression in ("w:gz", "w:gz"):
        buffer = io.BytesIO()
        with tarfile.open(fileobj=buffer, mode=compression, format=tarfile.PAX_FORMAT) as archive:
            files = list({"PKG-INFO": metadata(), "pyproject.toml": PROJECT, "good_env.py": MODULE}.items())
            for name, body in files if not packed else reversed(files):
                member = tarfile.TarInfo(f"{STEM}/{name}")
                member.size, member.mtime = len(body), 1_000_000 + len(packed)
                archive.addfile(member, io.BytesIO(body))
        packed.append(buffer.getvalue())
    assert len({hashlib.sha256(one).digest() for one in packed}) == 2
    digests = set()
    for owner, sdist in zip(("alice", "bob"), packed, strict=True):
        answer = await hub.upload(sdist, SDIST_NAME, owner=owner, user=owner)
        digests.add(answer.json()["source"]["tree_sha256"])
    assert len(digests) == 1


def test_the_client_lists_differences_between_archive_and_folder(tmp_path):
    archive, folder = tmp_path / SDIST_NAME, tmp_path / "folder"
    made = {"made.py": b"made\n", "changed.py": b"new\n", ".gitignore": b"of the repository\n"}
    archive.write_bytes(source(MODULES | made))
    folder.mkdir()
    for name, body in {"pyproject.toml": PROJECT, "good_env.py": MODULE, "changed.py": b"old\n"}.items():
        (folder / name).write_bytes(body)
    assert generated_files(folder, source_tree(archive)) == ["made.py", "changed.py"]
    (folder / ".gitignore").write_bytes(b"of the folder\n")
    assert generated_files(folder, source_tree(archive)) == ["made.py", "changed.py", ".gitignore"]


async def test_the_page_shows_the_source_and_the_warnings(hub):
    wheel = wheel_of({"start.pth": b"import x\n"})
    await publish(hub, wheel, source(MODULES | {"start.pth": b"import x\n"}))
    page = (await hub.get("/alice/good-env", headers={"Accept": "text/html"})).text
    assert "the wheel has the same Python files as the source archive" in page
    assert "startup_file" in page
    assert "`start.pth` runs when Python starts" in page
    await hub.upload(wheel_of(), WHEEL_NAME, owner="bob", user="bob")
    await hub.upload(source(MODULES), SDIST_NAME, owner="bob", user="bob")
    page = (await hub.get("/bob/good-env", headers={"Accept": "text/html"})).text
    assert "not compared with the wheel" in page
    assert "<dt>warnings</dt>" not in page
