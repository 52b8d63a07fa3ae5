"""What the gate takes: unusual but sound archives, what every common backend builds, and what it flags."""

from __future__ import annotations

import hashlib
import io
import json
import os
import struct
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest
from archive_forge import (
    DATA,
    ENTRY_POINTS,
    INFO,
    MODULE,
    PROJECT,
    SDIST_NAME,
    STEM,
    WHEEL_FILE,
    WHEEL_NAME,
    Entry,
    TarEntry,
    deflated,
    digest,
    metadata,
    packed,
    pax,
    sdist_of,
    tar_of,
    wheel_of,
)
from bad_wheels import add, extra, with_first
from wander_hub.http.problems import HubProblem
from wander_hub.settings import Settings
from wander_hub.upload import checks
from wander_hub.upload.archives import limits
from wander_hub.upload.schemas import Package, Upload
from wander_hub.upload_rules import OPTIONAL


def judged(body: bytes, filename: str = WHEEL_NAME, *, fields=None, **settings) -> Package:
    sha256 = hashlib.sha256(body).hexdigest()
    upload = Upload("alice", filename, io.BytesIO(body), len(body), sha256, fields or {})
    return checks.check(upload, Settings(**settings))


def zip64_of(entry: Entry, *, in_header: bool) -> Entry:
    """Return a member that gives its sizes in a ZIP64 field, and perhaps in its header too."""
    sizes = len(entry.body), len(deflated(entry.body))
    entry.extra = extra(1, struct.pack("<2Q", *sizes))
    if not in_header:
        entry.local = {"size": 0xFFFFFFFF, "packed": 0xFFFFFFFF}
        entry.central = {"size": sizes[0], "packed": sizes[1]}
    return entry


def long_record(rows: list[str]) -> list[str]:
    return [f"good_env.py,{digest(MODULE, 'sha512')},{len(MODULE)}", *rows[1:]]


def stored(entries: list[Entry]) -> None:
    for entry in entries:
        entry.method = 0


SOUND_WHEELS = {
    "plain": wheel_of,
    "stored": lambda: wheel_of(edit=stored),
    "with folders": lambda: wheel_of(
        edit=add(Entry("a/", mode=0o40755), Entry(f"{DATA}/purelib/", mode=0o42755))
    ),
    "with times in extra fields": lambda: wheel_of(edit=with_first(extra=extra(0x5455, b"\1" + b"\0" * 4))),
    "with sizes in a ZIP64 field": lambda: wheel_of(
        edit=lambda whole: [zip64_of(whole[0], in_header=False), *whole[1:]]
    ),
    "with sizes in both places": lambda: wheel_of(
        edit=lambda whole: [zip64_of(whole[0], in_header=True), *whole[1:]]
    ),
    "with sha512 in RECORD": lambda: wheel_of(record=long_record),
    "with RECORD that leaves itself out": lambda: wheel_of(record=lambda rows: rows[:-1]),
    "with RECORD in other line ends": lambda: wheel_of(record=lambda rows: [row + "\r" for row in rows]),
    "with a name that needs UTF-8": lambda: wheel_of({"données/été.txt": b"x"}),
    "with a name that needs quotes in RECORD": lambda: wheel_of(
        edit=add(Entry("a,b.txt", b"x")), record=lambda rows: [*rows, f'"a,b.txt",{digest(b"x")},1']
    ),
    "with an empty file": lambda: wheel_of({"py.typed": b""}),
    "with purelib": lambda: wheel_of({f"{DATA}/purelib/a.py": b""}),
    "with METADATA in other line ends": lambda: wheel_of(
        info={"METADATA": metadata().replace(b"\n", b"\r\n")}
    ),
    "with a license file": lambda: wheel_of(
        info={"METADATA": metadata("License-File: LICENSE"), "licenses/LICENSE": b"MIT"}
    ),
    "with a license file from before its time": lambda: wheel_of(
        info={"METADATA": metadata("License-File: LICENSE", version="2.1")}
    ),
    "with a private classifier": lambda: wheel_of(info={"METADATA": metadata("Classifier: Private :: Ours")}),
    "with 3 MiB that do not shrink": lambda: wheel_of({"noise.bin": noise(3 << 20)}),
    **{
        f"with metadata {version}": lambda version=version: wheel_of(
            info={"METADATA": metadata(version=version)}
        )
        for version in ("1.0", "1.1", "1.2", "2.1", "2.2", "2.3", "2.4", "2.5", "2.6")
    },
}


def noise(size: int) -> bytes:
    """Return bytes that no compression shrinks, the same each time."""
    return hashlib.shake_128(b"noise").digest(size)


@pytest.mark.parametrize("label", SOUND_WHEELS)
def test_a_valid_wheel_is_accepted_without_warnings(label):
    body = SOUND_WHEELS[label]()
    given = {"sha256_digest": hashlib.sha256(body).hexdigest().upper(), "filetype": "bdist_wheel"}
    package = judged(body, fields=given)
    assert (package.name, package.version, package.warnings) == ("good-env", "1.0", ())
    assert package.contents.entry_point == "good_env:load_environment"


SOUND_SDISTS = {
    "plain": sdist_of,
    "with folders": lambda: sdist_of(before=[TarEntry(f"{STEM}/", type=tarfile.DIRTYPE, mode=0o42755)]),
    "with a pax path": lambda: sdist_of(
        pax(("path", f"{STEM}/{'été' * 40}"), ("mtime", "1.5")), TarEntry("x")
    ),
    "with a pax size that is the same": lambda: sdist_of(pax(("size", "3")), TarEntry(f"{STEM}/a", b"abc")),
    "with a GNU name": lambda: sdist_of(
        TarEntry("long", f"{STEM}/{'a' * 120}\0".encode(), tarfile.GNUTYPE_LONGNAME), TarEntry("x", b"body")
    ),
    "with a global comment": lambda: sdist_of(before=[pax(("comment", "c0ffee"), kind=tarfile.XGLTYPE)]),
    "with attributes of macOS": lambda: sdist_of(
        pax(("SCHILY.xattr.com.apple.provenance", "x"), ("LIBARCHIVE.creationtime", "1")),
        TarEntry(f"{STEM}/a"),
    ),
    "padded to a record": lambda: sdist_of(end=b"\0" * 10_240),
    "with an old header": lambda: sdist_of(TarEntry(f"{STEM}/a", b"x", type=tarfile.AREGTYPE)),
}


@pytest.mark.parametrize("label", SOUND_SDISTS)
def test_a_valid_source_archive_is_accepted_without_warnings(label):
    package = judged(SOUND_SDISTS[label](), SDIST_NAME, fields={"filetype": "sdist"})
    assert (package.name, package.kind, package.warnings) == ("good-env", "sdist", ())
    assert package.contents.entry_point == "good_env:load_environment"


FLAGGED = {
    "startup_file": lambda: wheel_of({"evil.pth": b"import evil"}),
    "data_scripts": lambda: wheel_of({f"{DATA}/scripts/run": b"#!python\n"}),
    "data_files": lambda: wheel_of({f"{DATA}/data/share/x": b""}),
    "direct_url": lambda: wheel_of(
        info={"METADATA": metadata("Requires-Dist: a @ https://example.org/a.whl")}
    ),
    "unknown_classifier": lambda: wheel_of(info={"METADATA": metadata("Classifier: Color :: Red")}),
    "nested_archive": lambda: wheel_of({"vendored.zip": b"PK\x03\x04"}),
    "bytecode": lambda: wheel_of({"good_env.pyc": b""}),
    "site_customization": lambda: wheel_of({"sitecustomize.py": b""}),
    "shadows_stdlib": lambda: wheel_of({"random.py": b""}),
    "shadows_wander": lambda: wheel_of({"verifiers/__init__.py": b""}),
    "local_version": lambda: packed(
        tar_of(
            [
                TarEntry("good_env-1.0+x/PKG-INFO", metadata().replace(b"1.0", b"1.0+x")),
                TarEntry("good_env-1.0+x/pyproject.toml", PROJECT),
            ]
        )
    ),
}


@pytest.mark.parametrize("code", OPTIONAL)
@pytest.mark.parametrize("action", ["allow", "flag", "refuse"])
def test_the_operator_configures_optional_rules(code, action):
    body = FLAGGED[code]()
    filename = "good_env-1.0+x.tar.gz" if code == "local_version" else WHEEL_NAME
    policy = {code: action}
    if action == "refuse":
        with pytest.raises(HubProblem) as caught:
            judged(body, filename, upload_policy=policy)
        assert caught.value.code == code
        return
    warnings = judged(body, filename, upload_policy=policy).warnings
    assert [one.code for one in warnings] == ([code] if action == "flag" else [])
    assert all(one.detail and one.hint for one in warnings)


@pytest.mark.parametrize(
    ("files", "code"),
    [
        ({"evil.start": b"evil:run"}, "startup_file"),
        ({f"{DATA}/purelib/evil.pth": b""}, "startup_file"),
        ({f"{DATA}/purelib/sitecustomize.py": b""}, "site_customization"),
        ({f"{DATA}/headers/a.h": b""}, "data_files"),
        ({"fake.txt": b"\0" * 257 + b"ustar" + b"\0" * 300}, "nested_archive"),
    ],
)
def test_hidden_code_is_flagged(files, code):
    policy = {"site_customization": "flag"}
    assert code in [one.code for one in judged(wheel_of(files), upload_policy=policy).warnings]


@pytest.mark.parametrize(
    "name", ["weights/model.pth", "data/table.npz", "pkg/sitecustomize.py", "data/random.txt"]
)
def test_harmless_similar_code_is_not_flagged(name):
    assert judged(wheel_of({name: b"PK\x03\x04" if name.endswith(("pth", "npz")) else b""})).warnings == ()


def test_many_findings_make_one_warning():
    (warning,) = judged(wheel_of({f"a{n}.pth": b"" for n in range(500)})).warnings
    assert warning.detail.endswith("; and 497 more")
    assert len(warning.detail) < 2000


async def test_the_response_lists_the_warnings(hub):
    answer = await hub.upload(wheel_of({"evil.pth": b"import evil"}), WHEEL_NAME)
    assert answer.status_code == 200, answer.text
    (warning,) = answer.json()["warnings"]
    assert (warning["code"], warning["detail"]) == ("startup_file", "`evil.pth` runs when Python starts")
    later = (await hub.get("/api/v1/environments/alice/good-env/versions/1.0")).json()
    assert later["warnings"] == [warning | {"filename": WHEEL_NAME}], "it stays with the version"


@pytest.mark.parametrize(
    ("constants", "code"),
    [
        ({"MAX_MEMBERS": 4}, "too_many_members"),
        ({"MAX_COMPRESSION_RATIO": 1, "COMPRESSION_RATIO_FROM_BYTES": 1}, "compression_bomb"),
        ({"MAX_METADATA_BYTES": 40}, "too_large_metadata"),
        ({"MAX_README_BYTES": 3}, "text_too_long"),
        ({"MAX_SUMMARY_CHARS": 3}, "text_too_long"),
        ({"MAX_FIELD_CHARS": 7}, "text_too_long"),
        ({"MAX_FIELD_VALUES": 1}, "text_too_long"),
        ({"MAX_PATH_CHARS": 20}, "path_too_long"),
    ],
)
def test_archives_over_a_limit_are_rejected(constants, code, monkeypatch):
    body = wheel_of(
        {"many.txt": b"x" * 9000}, info={"METADATA": metadata("Requires-Dist: a", "Requires-Dist: b")}
    )
    judged(body)
    for name, value in constants.items():
        monkeypatch.setattr(limits, name, value)
    with pytest.raises(HubProblem) as caught:
        judged(body)
    assert caught.value.code == code


@pytest.mark.parametrize(
    ("settings", "code"),
    [({"max_unpacked_bytes": 100}, "too_large_unpacked"), ({"max_upload_bytes": 100}, "too_large")],
)
def test_limits_of_sizes_are_settings(settings, code):
    with pytest.raises(HubProblem) as caught:
        judged(wheel_of({"many.txt": b"x" * 9000}), **settings)
    assert caught.value.code == code


BACKENDS = {
    "hatchling": ("hatchling.build", "[tool.hatch.build.targets.wheel]\ninclude = ['good_env']\n"),
    "setuptools": ("setuptools.build_meta", "[tool.setuptools]\npackages = ['good_env']\n"),
    "flit-core": ("flit_core.buildapi", ""),
    "poetry-core": ("poetry.core.masonry.api", ""),
    "pdm-backend": ("pdm.backend", ""),
    "uv-build": ("uv_build", "[tool.uv.build-backend]\nmodule-root = ''\n"),
}
BUILD = """
import importlib, sys
_, module, out = sys.argv
for name in ("build_sdist", "build_wheel"):
    getattr(importlib.import_module(module), name)(out)
"""


def built(backend: str, folder: Path) -> list[Path]:
    """Return the source archive and the wheel that a backend makes of one small environment."""
    module, more = BACKENDS[backend]
    package = folder / "good_env"
    package.mkdir()
    (package / "__init__.py").write_bytes(b'"""An environment."""\n\n' + MODULE)
    (package / "rows.json").write_text(json.dumps({"rows": ["é"]}))
    (folder / "README.md").write_text("# Good\n")
    (folder / "LICENSE").write_text("MIT")
    (folder / "pyproject.toml").write_text(
        f"""[build-system]
requires = ["{backend}"]
build-backend = "{module}"
[project]
name = "good-env"
version = "1.0"
description = "Good."
readme = "README.md"
license = "MIT"
license-files = ["LICENSE"]
requires-python = ">=3.11"
dependencies = ["wander-sdk"]
classifiers = ["Programming Language :: Python :: 3"]
keywords = ["text"]
[project.scripts]
good-env = "good_env:load_environment"
[project.entry-points."wander.environments"]
good-env = "good_env:load_environment"
{more}"""
    )
    out = folder / "out"
    out.mkdir()
    command = [sys.executable, "-W", "ignore", "-c", BUILD, module, str(out)]
    # uv_build looks for its binary on the path
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = os.environ | {"PATH": path}
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=120, env=environment)
    assert done.returncode == 0, done.stderr
    return sorted(out.iterdir())


@pytest.mark.parametrize("backend", BACKENDS)
def test_archives_of_common_build_backends_are_accepted(backend, tmp_path):
    files = built(backend, tmp_path)
    assert [file.name for file in files] == [WHEEL_NAME, SDIST_NAME]
    for file in files:
        package = judged(file.read_bytes(), file.name)
        assert package.warnings == ()
        assert (package.summary, package.license, package.tags) == ("Good.", "MIT", ["text"])
        assert (package.requires_python, package.requires_dist) == (">=3.11", ["wander-sdk"])
        assert package.contents.entry_point == "good_env:load_environment"
        assert "# Good" in package.readme


def test_forged_archives_are_readable_by_python():
    """The corpus spoils sound archives: what it starts from is sound to the standard library too."""
    with zipfile.ZipFile(io.BytesIO(wheel_of())) as archive:
        assert archive.testzip() is None
        assert archive.read(f"{INFO}/WHEEL") == WHEEL_FILE
        assert archive.read(f"{INFO}/entry_points.txt") == ENTRY_POINTS
    with tarfile.open(fileobj=io.BytesIO(sdist_of())) as archive:
        assert archive.getnames() == [f"{STEM}/PKG-INFO", f"{STEM}/pyproject.toml"]
