"""The command in this process, on folders of its own; the hub is the real application over ASGI."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from client_home import folder, home, say_env, settled_folder, wander
from command_line import HubRoom, HubTransport, Result, make_wheel
from lying_hub import LyingHub, ask_nobody, lying_hub
from starlette.testclient import TestClient
from wander_client.main import main

if TYPE_CHECKING:
    from wander_client.packages.building.build import Builder
    from wander_hub.settings import Settings

__all__ = ["folder", "home", "say_env", "settled_folder", "wander"]  # fixtures

HUB_URL = "https://testserver"


@pytest.fixture(scope="module", autouse=True)
def commands_fork_workers(warm_workers: None) -> None:
    """Fork the workers and scripted models of all commands here."""


@pytest.fixture(scope="session")
def builder(tmp_path_factory: pytest.TempPathFactory) -> Builder:
    """Builds projects with the rights of the test; what builds require is installed once."""
    from wander_client.packages.building.build import Builder

    return Builder(tmp_path_factory.mktemp("builder"), None)


@pytest.fixture
def hub(
    home: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    migrated_database: Path,
    usual_settings: Settings,
) -> Iterator[HubRoom]:
    """A hub with the administrator `admin`; `hub.wander` runs commands against it."""
    from wander_hub.app import create_app
    from wander_hub.database import Database
    from wander_hub.rights.tokens import first_administrator

    (home / "hub").mkdir()
    settings = usual_settings.model_copy(update={"data": home / "hub"})
    shutil.copy(migrated_database, settings.data / "hub.db")
    database = Database(settings.resolved_database_url)
    with database.write() as session:
        token = first_administrator(session)
    assert token is not None
    monkeypatch.setenv("WANDER_HUB", HUB_URL)
    # After 20 s a hub builds the search of the docs, with 2 s of processor time.
    monkeypatch.setattr("wander_hub.app._SEARCH_SECONDS", 3600.0)
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
