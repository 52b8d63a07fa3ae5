"""The command in this process, on folders of its own; the hub is the real application over ASGI."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from command_line import ENVIRONMENT, HubRoom, HubTransport, Result, Wander, make_wheel
from lying_hub import LyingHub, ask_nobody, lying_hub
from starlette.testclient import TestClient
from wander_client.main import main

if TYPE_CHECKING:
    from wander_client.packages.building.build import Builder
    from wander_client.python.environment import LoadedEnvironment

HUB_URL = "https://testserver"


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Folders and variables of a user who has set nothing."""
    for name in (
        "WANDER_HUB",
        "WANDER_TOKEN",
        "WANDER_OUTPUT",
        "OPENAI_API_KEY",
        "OPENAI_BASE_URL",
        "FORCE_COLOR",
    ):
        monkeypatch.delenv(name, raising=False)
    for name in ("CONFIG", "DATA", "CACHE", "RUNS", "STATE"):
        monkeypatch.setenv(f"WANDER_{name}_DIR", str(tmp_path / name.lower()))
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def wander(home: Path, capsys: pytest.CaptureFixture[str]) -> Wander:
    """Run a command line in this process."""

    def run(*words: str) -> Result:
        capsys.readouterr()
        status = main(words)
        out, err = capsys.readouterr()
        return Result(status, out, err)

    return run


@pytest.fixture
def folder(home: Path) -> Path:
    """An environment's folder."""
    return write_folder(home / "say-env")


@pytest.fixture(scope="module")
def settled_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The same, in a home of its own, for what the tests of a module make once and only read."""
    home = tmp_path_factory.mktemp("settled")
    with pytest.MonkeyPatch.context() as patch:
        for name in ("CONFIG", "DATA", "CACHE", "RUNS", "STATE"):
            patch.setenv(f"WANDER_{name}_DIR", str(home / name.lower()))
        patch.chdir(home)
        yield write_folder(home / "say-env")


@pytest.fixture(scope="session")
def say_env(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LoadedEnvironment]:
    """The same environment, loaded from Python once for all tests that change nothing of it."""
    import wander

    home = tmp_path_factory.mktemp("python")
    with pytest.MonkeyPatch.context() as patch:
        for name in ("CONFIG", "DATA", "CACHE", "RUNS", "STATE"):
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


@pytest.fixture(scope="session")
def builder(tmp_path_factory: pytest.TempPathFactory) -> Builder:
    """Builds projects with the rights of the test; what builds require is installed once."""
    from wander_client.packages.building.build import Builder

    return Builder(tmp_path_factory.mktemp("builder"), None)


@pytest.fixture
def hub(
    home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, migrated_database: Path
) -> Iterator[HubRoom]:
    """A hub with the administrator `admin`; `hub.wander` runs commands against it."""
    from wander_hub.app import create_app
    from wander_hub.database import Database
    from wander_hub.rights.tokens import first_administrator
    from wander_hub.settings import Settings

    (home / "hub").mkdir()
    settings = Settings(data=home / "hub", bundled_packages=False)
    shutil.copy(migrated_database, settings.data / "hub.db")
    database = Database(settings.resolved_database_url)
    with database.write() as session:
        token = first_administrator(session)
    assert token is not None
    monkeypatch.setenv("WANDER_HUB", HUB_URL)
    with TestClient(create_app(settings, database=database), base_url=HUB_URL) as client:

        def run(*words: str) -> Result:
            capsys.readouterr()
            status = main(words, transport=HubTransport(client))
            out, err = capsys.readouterr()
            return Result(status, out, err)

        yield HubRoom(client, token, run)


@pytest.fixture
def behind(hub: HubRoom, home: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[LyingHub]:
    """A lying hub before a real one that has `admin/say-env`; commands go to it."""
    (tmp_path / "built").mkdir()
    hub.publish(make_wheel(tmp_path / "built"))

    def ask(method: str, path: str, headers: dict[str, str], body: bytes) -> tuple[int, Any, bytes]:
        answer = hub.http.request(method, path, headers=headers, content=body, follow_redirects=False)
        # The content is decoded already, and names the hub by the address that it has behind the lying one.
        kept = {name: value for name, value in answer.headers.items() if name != "content-encoding"}
        return answer.status_code, kept, answer.content.replace(HUB_URL.encode(), liar.url.encode())

    with lying_hub(ask) as liar:
        monkeypatch.setenv("WANDER_HUB", liar.url)
        yield liar


@pytest.fixture
def stranger() -> Iterator[LyingHub]:
    """A server of somebody else, to which nothing may be sent."""
    with lying_hub(ask_nobody) as server:
        yield server
