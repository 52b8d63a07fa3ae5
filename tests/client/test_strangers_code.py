"""What packages of strangers would run while they are installed, outside of any sandbox, does not run."""

from __future__ import annotations

import base64
import hashlib
import io
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest
from wander.checks.package import check_package
from wander_client.context import CommonOptions, Invocation, set_current
from wander_client.environments.sandbox import allow_builds, choose_policy
from wander_client.errors import ClientError, UsageError
from wander_client.packages.install import packages_in
from wander_client.packages.uv import install_into, make_virtualenv, run_uv
from wander_client.terminal.output import Output


def write_wheel(place: Path, members: dict[str, str]) -> Path:
    info = "starter-1.0.dist-info"
    members = {
        **members,
        f"{info}/entry_points.txt": "[wander.environments]\nstarter = starter:load_environment\n",
        f"{info}/METADATA": "Metadata-Version: 2.1\nName: Starter\nVersion: 1.00\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = ""
    for path, text in members.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()
        record += f"{path},sha256={digest},{len(text.encode())}\n"
    wheel = place / "starter-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for path, text in {**members, f"{info}/RECORD": f"{record}{info}/RECORD,,\n"}.items():
            archive.writestr(path, text)
    return wheel


def test_listing_and_checking_packages_does_not_start_their_python(tmp_path: Path) -> None:
    """Which would run their `.pth` files."""
    mark = tmp_path / "ran"
    wheel = write_wheel(tmp_path, {"starter.pth": f"import pathlib; pathlib.Path({str(mark)!r}).touch()\n"})
    made, place = tmp_path / "made", tmp_path / "place"
    run_uv(["venv", "--quiet", "--no-project", "--python", sys.executable, str(made)], doing="making")
    run_uv(
        ["pip", "install", "--quiet", "--no-deps", "--no-index", "--python", str(made), str(wheel)],
        doing="installing",
    )
    made.rename(place)
    assert packages_in(place) == {"starter": "1.0"}
    found = check_package(None, "somebody/starter", place / "bin" / "python")
    assert {one.id: one.status for one in found}["package.name"] == "pass"
    assert not mark.exists()


REFUSED = {
    "pyvenv.cfg": "data/pyvenv.cfg",
    "PyVenv.cfg": "data/PyVenv.cfg",
    "pip.conf": "data/pip.conf",
    "bin/activate": "data/bin/activate",
    "bin/Activate.ps1": "scripts/Activate.ps1",
    "bin/activate_this.py": "scripts/activate_this.py",
    "bin/pip3.12": "data/bin/pip3.12",
    "bin/PYTHON": "data/bin/PYTHON",
    "bin/below": "data/bin/below/command",
    "lib64": "data/lib64",
    "lib/libc.so.6": "data/lib/libc.so.6",
    "lib/python3.11/os.py": "data/lib/python3.11/os.py",
    "man": "data/man/man1/x.1",
    "Share": "data/Share/x",
    ".gitignore": "data/.gitignore",
    "CACHEDIR.TAG": "data/CACHEDIR.TAG",
}
"""What a wheel would put somewhere, and how it names that."""


@pytest.mark.parametrize(
    "place",
    [*[*REFUSED][:4], *(pytest.param(each, marks=pytest.mark.full) for each in [*REFUSED][4:])],
)
def test_a_wheel_with_files_outside_of_site_packages_is_rejected(place: str, tmp_path: Path) -> None:
    wheel = write_wheel(tmp_path, {f"starter-1.0.data/{REFUSED[place]}": "x"})
    make_virtualenv(tmp_path / "venv", Path(sys.executable))
    options = ["install", "--quiet", "--no-deps", "--no-index", str(wheel)]
    with pytest.raises(ClientError) as refused:
        install_into(tmp_path / "venv", options, doing="installing it")
    if refused.value.code == "uv_failed":  # uv itself refuses some, which may change
        return
    assert refused.value.code == "unsafe_package"
    assert f"`Starter 1.00` installs `{place}" in str(refused.value)


def test_a_wheel_with_ordinary_files_is_installed(tmp_path: Path) -> None:
    usual = (
        "data/share/man/man1/x.1",
        "data/etc/x/y.json",
        "scripts/starter",
        "headers/x.h",
        "purelib/more.py",
    )
    wheel = write_wheel(tmp_path, {f"starter-1.0.data/{path}": "#!python\n" for path in usual})
    make_virtualenv(tmp_path / "venv", Path(sys.executable))
    options = ["install", "--quiet", "--no-deps", "--no-index", str(wheel)]
    install_into(tmp_path / "venv", options, doing="installing it")
    for path in ("share/man/man1/x.1", "etc/x/y.json", "bin/starter"):
        assert (tmp_path / "venv" / path).exists()


def test_builds_are_always_announced(tmp_path: Path) -> None:
    mark = tmp_path / "ran"
    body = io.BytesIO()
    with tarfile.open(fileobj=body, mode="w:gz") as archive:
        for name, text in (
            ("PKG-INFO", "Metadata-Version: 2.1\nName: built\nVersion: 1.0\n"),
            (
                "pyproject.toml",
                '[build-system]\nrequires = []\nbuild-backend = "own"\nbackend-path = ["."]\n',
            ),
            ("own.py", f"import pathlib; pathlib.Path({str(mark)!r}).touch()\nraise SystemExit(1)\n"),
        ):
            member = tarfile.TarInfo(f"built-1.0/{name}")
            member.size = len(text)
            archive.addfile(member, io.BytesIO(text.encode()))
    source = tmp_path / "built-1.0.tar.gz"
    source.write_bytes(body.getvalue())
    venv = tmp_path / "venv"
    run_uv(["venv", "--quiet", "--no-project", "--python", sys.executable, str(venv)], doing="making")
    command = [
        "pip",
        "install",
        "--no-deps",
        "--python",
        str(venv),
        "--no-index",
        f"built @ {source.as_uri()}",
    ]
    here = Invocation(CommonOptions(), Output("plain"))
    try:
        set_current(here)
        with pytest.raises(ClientError) as refused:
            run_uv(command, doing="installing")
        assert refused.value.code == "build_needed"
        assert not mark.exists(), "its code ran"
        with pytest.raises(UsageError):
            allow_builds(here, True, choose_policy(True, None))
        allow_builds(here, True, None)
        with pytest.raises(ClientError, match="installing failed"):
            run_uv(command, doing="installing")
        assert mark.exists(), "the user said so"
    finally:
        set_current(None)
