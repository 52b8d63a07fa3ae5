"""Fixtures: a user's folders and variables, the command in this process, and an environment's folder."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from command_line import ENVIRONMENT, Result, Wander
from wander_client.main import main

if TYPE_CHECKING:
    from wander_client.python.environment import LoadedEnvironment

FOLDERS = ("CONFIG", "DATA", "CACHE", "RUNS", "STATE")


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Provide the folders and variables of a user without settings."""
    for name in (
        "WANDER_HUB",
        "WANDER_TOKEN",
        "WANDER_OUTPUT",
        "OPENAI_API_KEY",
        "OPENAI_BASE_URL",
        "FORCE_COLOR",
    ):
        monkeypatch.delenv(name, raising=False)
    for name in FOLDERS:
        monkeypatch.setenv(f"WANDER_{name}_DIR", str(tmp_path / name.lower()))
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def wander(home: Path, capsys: pytest.CaptureFixture[str]) -> Wander:
    """Provide a function that runs a command line in this process."""

    def run(*words: str) -> Result:
        capsys.readouterr()
        status = main(words)
        out, err = capsys.readouterr()
        return Result(status, out, err)

    return run


@pytest.fixture
def folder(home: Path) -> Path:
    """Provide the folder of a small environment."""
    return write_folder(home / "say-env")


@pytest.fixture(scope="module")
def settled_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Provide the folder in a separate home, shared by tests of a module that only read their results."""
    home = tmp_path_factory.mktemp("settled")
    with pytest.MonkeyPatch.context() as patch:
        for name in FOLDERS:
            patch.setenv(f"WANDER_{name}_DIR", str(home / name.lower()))
        patch.chdir(home)
        yield write_folder(home / "say-env")


@pytest.fixture(scope="session")
def say_env(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LoadedEnvironment]:
    """Provide the environment, loaded once for all tests that do not modify it."""
    import wander

    home = tmp_path_factory.mktemp("python")
    with pytest.MonkeyPatch.context() as patch:
        for name in FOLDERS:
            patch.setenv(f"WANDER_{name}_DIR", str(home / name.lower()))
        env = wander.load(write_folder(home / "say-env"), progress=False)
    with env:
        yield env


def write_folder(place: Path) -> Path:
    place.mkdir()
    (place / "say_env.py").write_text(ENVIRONMENT)
    (place / "README.md").write_text("# say-env\n")
    (place / "pyproject.toml").write_text(
        '[project]\nname = "say-env"\nversion = "0.1.0"\nreadme = "README.md"\nlicense = "MIT"\n'
        'dependencies = ["wander-sdk"]\n'
        '[project.entry-points."wander.environments"]\nsay-env = "say_env:load_environment"\n'
    )
    return place
