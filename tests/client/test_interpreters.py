"""The Python that a package runs under: this one, another of this machine, or a refusal that names it."""

from __future__ import annotations

import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest
from packaging.pylock import Pylock
from wander.wire import FileInfo, VersionDetail
from wander_client.errors import ClientError
from wander_client.packages.building.build import Builder
from wander_client.packages.built_package import build_package
from wander_client.packages.folder import python_of
from wander_client.packages.install import wheel_file
from wander_client.packages.interpreters import HERE, Interpreter, choose_python, describe_interpreter
from wander_client.packages.uv import make_virtualenv

NEWER = f">={sys.version_info.major}.{sys.version_info.minor + 1}"


@pytest.fixture(scope="module")
def newer() -> Interpreter:
    """Another Python of this machine."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("UV_PYTHON_DOWNLOADS", "never")
        try:
            return choose_python(NEWER, "`newer`")
        except ClientError:
            pytest.skip(f"this machine has no Python {NEWER}")


def declare(folder: Path, requires: str) -> Path:
    folder.mkdir()
    (folder / "pyproject.toml").write_text(
        f'[project]\nname = "lucky"\nversion = "0.1.0"\nrequires-python = "{requires}"\n'
        'dependencies = ["wander-sdk>=0.1"]\n[project.entry-points."wander.environments"]\n'
        'lucky = "lucky:load_environment"\n[build-system]\nrequires = ["hatchling"]\n'
        'build-backend = "hatchling.build"\n'
    )
    return folder


@pytest.mark.parametrize("requires", [None, "", ">=3.11", f"=={HERE.version}"])
def test_this_python_is_used_if_its_version_matches(requires: str | None) -> None:
    assert choose_python(requires, "`newer`") == HERE


def test_an_interpreter_describes_itself() -> None:
    assert describe_interpreter(HERE.path) == HERE


def test_another_python_gets_its_own_wheels_and_markers(newer: Interpreter) -> None:
    own, other = (f"cp{one.minor.replace('.', '')}" for one in (newer, HERE))
    files = [f"b-1.0-{tag}-{tag}-manylinux_2_17_x86_64.whl" for tag in (own, other)]
    now = datetime.now(UTC)
    listed = [
        FileInfo(filename=name, kind="wheel", size=1, sha256="0" * 64, url="/x", uploaded_at=now)
        for name in files
    ]
    detail = VersionDetail(owner="a", name="b", version="1.0", uploaded_at=now, uploaded_by="a", files=listed)
    assert wheel_file(detail, newer).filename == files[0]
    lock = Pylock.from_dict(
        {
            "lock-version": "1.0",
            "created-by": "t",
            "packages": [
                {"name": name, "version": "1", "marker": f"python_version == '{one.minor}'",
                 "wheels": [{"url": f"https://x/{name}-1-py3-none-any.whl", "hashes": {"sha256": "0" * 64}}]}
                for name, one in (("mine", newer), ("theirs", HERE))
            ],
        }
    )  # fmt: skip
    chosen = [package.name for package, _ in lock.select(environment=newer.environment, tags=newer.tags)]
    assert chosen == ["mine"]


def test_a_package_for_another_python_is_built_and_its_virtual_environment_runs_it(
    newer: Interpreter, tmp_path: Path
) -> None:
    make_virtualenv(tmp_path / "venv", newer.path)
    asked = [str(tmp_path / "venv" / "bin" / "python"), "-c", "import sys; print(sys.version.split()[0])"]
    assert subprocess.run(asked, capture_output=True, text=True, check=True).stdout.strip() == newer.version
    folder = declare(tmp_path / "lucky", NEWER)
    (folder / "lucky").mkdir()
    (folder / "lucky" / "__init__.py").write_text("type Text = str\n\n\ndef load_environment(): ...\n")
    with build_package(folder, Builder(tmp_path / "data", None)) as package:
        assert package.wheel.path.name == "lucky-0.1.0-py3-none-any.whl"


@pytest.mark.parametrize(
    ("requires", "said", "hint"),
    [
        (">=99", r"`lucky` needs Python >=99, and `wander-sdk` needs >=3.11", "allow a newer Python"),
        ("<3.11", r"`lucky` needs Python <3.11, and `wander-sdk` needs >=3.11", "allow a newer Python"),
        ("three", r"`lucky` requires Python `three`, which is not a version specifier", "fix"),
        (">=3.29", r"`lucky` needs Python >=3.29; this is .*, and no other could be", "uv python install"),
    ],
)
def test_an_unavailable_python_is_named(
    requires: str, said: str, hint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("UV_PYTHON_DOWNLOADS", "never")
    folder = declare(tmp_path / "lucky", requires)
    with pytest.raises(ClientError, match=said) as refused:
        python_of(folder, tmp_path / "data", print)
    assert refused.value.code == "python_version"
    assert hint in (refused.value.hint or "")
