"""`wander.Hub` against the real hub application: answers, errors, surroundings."""

from __future__ import annotations

import asyncio
import json
import traceback
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest
import wander
from command_line import HubRoom, make_wheel
from package_mirror import build_mirror
from saved_runs import write_run
from wander.errors import RunError
from wander.evals.store.jsonl import blocks
from wander.wire import LeaderboardRow
from wander_client import (
    ClientError,
    Hub,
    LoginRequired,
    NotFound,
    Unavailable,
    UsageError,
    errors,
)
from wander_client.credentials import CredentialStore
from wander_hub.accounts import service as accounts
from wander_hub.rights.tokens import add_token

TEMPLATE = """
[project]
name = "say-env"
version = "{version}"
readme = "README.md"
requires-python = ">=3.11"
license = "MIT"
description = "Say a number."
dependencies = ["wander-sdk"]
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"
[project.entry-points."wander.environments"]
say-env = "say_env:load_environment"
"""


@pytest.fixture(scope="module")
def mirror(tmp_path_factory: pytest.TempPathFactory) -> str:
    return build_mirror(tmp_path_factory.mktemp("mirror"), ["hatchling"])


@pytest.fixture
def room(hub: HubRoom, tmp_path: Path, mirror: str, monkeypatch: pytest.MonkeyPatch) -> HubRoom:
    """A hub with `admin/say-env` in three versions."""
    monkeypatch.setenv("UV_DEFAULT_INDEX", mirror)
    for version in ("0.1.0", "0.2.0", "0.3.0"):
        hub.publish(make_wheel(tmp_path, version=version))
    return hub


@pytest.fixture
def mine(room: HubRoom) -> Hub:
    return Hub(token=room.token, transport=room.transport)


def test_settings_and_token_are_shared_with_the_command(
    room: HubRoom, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stranger = Hub(transport=room.transport)
    assert stranger.url == "https://testserver"
    with pytest.raises(LoginRequired):
        stranger.whoami()
    CredentialStore(home / "config").set(stranger.url, room.token)
    assert stranger.whoami().user == "admin", "a login elsewhere counts from the next call on"
    monkeypatch.setenv("WANDER_TOKEN", "wnd_wrong")
    with pytest.raises(LoginRequired):
        stranger.whoami()
    assert Hub(token=room.token, transport=room.transport).whoami().user == "admin"
    monkeypatch.setenv("WANDER_HUB", "https://another.example")
    assert Hub().url == "https://another.example"
    assert Hub("https://testserver/").url == "https://testserver"


def test_responses_are_typed_values(mine: Hub) -> None:
    (found,) = mine.search("say")
    assert (found.owner, found.name, found.latest_version) == ("admin", "say-env", "0.3.0")
    assert list(mine.search(tag="none")) == []
    assert [one.version for one in mine.versions("admin/say-env")] == ["0.3.0", "0.2.0", "0.1.0"]
    info = mine.info("admin/say-env@0.2.0")
    assert (info.version.version, info.latest.version, info.installed) == ("0.2.0", "0.3.0", [])
    assert mine.whoami().owners == ["admin"]


def test_lists_load_pages_only_as_needed(
    mine: Hub, room: HubRoom, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(3):
        mine.post(
            write_run(home / "runs" / f"r{number}", rewards=[1.0], said=str(number), model=f"m{number}")
        )
    asked = room.note_requests(monkeypatch)
    monkeypatch.setattr("wander_client.hub.api.PAGE", 1)
    board = mine.leaderboard("admin/say-env@0.1.0")
    assert sorted(row.model for row in board) == ["m0", "m1", "m2"]
    assert len(asked) == 3
    assert len(mine.leaderboard("admin/say-env@0.1.0", limit=2)) == 2
    with pytest.raises(ClientError) as none_wanted:
        mine.leaderboard("admin/say-env@0.1.0", limit=0)
    assert none_wanted.value.code == "invalid_request"
    assert [run.manifest.model.name for run in mine.runs(environment="admin/say-env")] == ["m2", "m1", "m0"]
    assert [run.level for run in mine.runs(environment="admin/say-env", model="m1")] == ["complete"]
    rows = mine.search()
    asked.clear()
    next(rows)
    assert len(asked) == 1


def test_a_folder_becomes_a_row_of_a_leaderboard(
    mine: Hub,
    room: HubRoom,
    folder: Path,
    home: Path,
    recwarn: pytest.WarningsRecorder,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (folder / "pyproject.toml").write_text(TEMPLATE.format(version="0.4.0"))
    published = mine.publish(folder, check=False, lock=False)
    assert (published.version.version, len(published.sent)) == ("0.4.0", 2)
    assert f"{published!r}".startswith("<Publication admin/say-env@0.4.0: sent say_env-0.4.0-py3")
    told = capsys.readouterr()
    assert (told.out, "building say-env" in told.err, "uploading: 100%" in told.err) == ("", True, True)
    assert mine.publish(folder, check=False, lock=False).sent == frozenset()
    with room.http.app.state.database.write() as session:
        accounts.add_user(session, "ada")
    monkeypatch.setenv("WANDER_TOKEN", room.token)
    forked = room.wander("env", "fork", "admin/say-env@0.4.0", "./mine", "--json")
    assert forked.status == 0, forked.out
    source = {path.name: path.read_bytes() for path in (home / "mine").iterdir()}
    assert source == {path.name: path.read_bytes() for path in folder.iterdir()}, "as it was published"
    run = write_run(home / "runs" / "one", rewards=[1.0, 0.0, 1.0], version="0.1.0")
    posted = mine.post(run)
    assert "posting: 100%" in capsys.readouterr().err
    quiet = Hub(token=room.token, transport=room.transport, progress=False)
    assert quiet.post(run).run_id == posted.run_id
    assert capsys.readouterr().err == ""
    assert (posted.level, posted.summary.reward_mean) == ("complete", pytest.approx(2 / 3))
    assert mine.post(posted.run_id[:8]).sha256 == posted.sha256
    board = mine.leaderboard("admin/say-env@0.1.0")
    row = board[0]
    assert isinstance(row, LeaderboardRow)
    assert (len(board), row.run_id, row.posted_by) == (1, posted.run_id, "admin")
    assert board[:1] == list(board)
    shown = board._repr_html_()
    assert "<td>scripted:say</td><td>0.6667</td>" in shown
    assert f"{board!r}" == f"<Board {board.name} of admin/say-env@0.1.0: 1 rows, 0.6667 by scripted:say>"
    assert mine.leaderboard("admin/say-env@0.1.0", level="replayed").leaderboard.rows == []
    mine.post(run, private=True)
    warned = recwarn.pop(UserWarning)
    assert "already posted publicly" in str(warned.message)
    assert warned.filename == __file__


def test_table_cells_are_escaped(mine: Hub, home: Path) -> None:
    mine.post(write_run(home / "runs" / "one", rewards=[1.0], model="<b>best</b>"))
    assert "<td>&lt;b&gt;best&lt;/b&gt;</td>" in mine.leaderboard("admin/say-env@0.1.0")._repr_html_()


def nothing(home: Path) -> Path:
    (home / "empty").mkdir(exist_ok=True)
    return home / "empty"


def other_bytes(home: Path) -> Path:
    (home / "say-env" / "pyproject.toml").write_text(TEMPLATE.format(version="0.1.0"))
    return home / "say-env"


Call = Callable[[Hub, Path], object]
PROMISES: dict[str, tuple[type[ClientError], str, Call]] = {
    "an unknown environment": (
        NotFound,
        "environment_not_found",
        lambda hub, home: hub.info("nobody/nothing"),
    ),
    "an unknown version": (
        NotFound,
        "version_not_found",
        lambda hub, home: list(hub.versions("admin/say-env")) and hub.info("admin/say-env@9"),
    ),
    "an unknown environment to install": (
        NotFound,
        "environment_not_found",
        lambda hub, home: hub.install("nobody/nothing"),
    ),
    "an unknown leaderboard": (
        NotFound,
        "environment_not_found",
        lambda hub, home: hub.leaderboard("nobody/nothing"),
    ),
    "a name without its owner": (UsageError, "usage", lambda hub, home: hub.info("say-env")),
    "a version that is none": (UsageError, "usage", lambda hub, home: hub.install("admin/say-env@new")),
    "a level that is none": (UsageError, "usage", lambda hub, home: hub.verify("x" * 8, level="best")),  # type: ignore[arg-type]
    "a folder that is not there": (NotFound, "not_found", lambda hub, home: hub.publish(home / "gone")),
    "an owner that there is not": (
        NotFound,
        "owner_not_found",
        lambda hub, home: hub.publish(home / "say-env", owner="bob"),
    ),
    "a folder without a package": (UsageError, "not_a_package", lambda hub, home: hub.publish(nothing(home))),
    "other bytes for a version": (
        ClientError,
        "version_exists",
        lambda hub, home: hub.publish(other_bytes(home), check=False, lock=False),
    ),
    "an unknown run": (NotFound, "run_not_found", lambda hub, home: hub.post("nosuchrun")),
    "a run that was not posted": (
        NotFound,
        "run_not_found",
        lambda hub, home: hub.verify(write_run(home / "runs" / "two", rewards=[1.0])),
    ),
    "a run of a folder": (
        ClientError,
        "local_environment",
        lambda hub, home: hub.post(write_run(home / "runs" / "three", rewards=[1.0], owner=None)),
    ),
    "a filter that is none": (
        ClientError,
        "invalid_request",
        lambda hub, home: hub.leaderboard("admin/say-env", level="best"),
    ),
}


class _NewerHub(httpx.BaseTransport):
    """Answers as the hub does, and tells something more in every object."""

    def __init__(self, hub: httpx.BaseTransport) -> None:
        self._hub = hub

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        answer = self._hub.handle_request(request)
        answer.read()
        more = json.loads(answer.content, object_hook=lambda found: found | {"told_since": "a later release"})
        return httpx.Response(answer.status_code, json=more)


def test_responses_of_a_newer_hub_are_read(room: HubRoom) -> None:
    newer = Hub(token=room.token, transport=_NewerHub(room.transport))
    assert [found.name for found in newer.search()] == ["say-env"]
    assert newer.info("admin/say-env").latest_version == "0.3.0"
    with pytest.raises(NotFound, match="there is no environment `admin/say-what`"):
        newer.info("admin/say-what")


def test_a_missing_owner_is_reported_before_a_build(
    mine: Hub, room: HubRoom, folder: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def build(folder: Path, builder: object) -> None:
        raise AssertionError("it was built")

    monkeypatch.setattr("wander_client.packages.built_package.build_package", build)
    (folder / "pyproject.toml").write_text(TEMPLATE.format(version="0.4.0"))
    with pytest.raises(NotFound, match="there is no owner `bob`"):
        mine.publish(folder, owner="bob")
    with pytest.raises(UsageError, match="both private and internal"):
        mine.publish(folder, private=True, internal=True)
    with room.http.app.state.database.write() as session:
        token = add_token(session, accounts.add_user(session, "ada"), "hers")
    # Whether somebody has that name, a stranger is not told.
    with pytest.raises(NotFound, match="there is no owner `admin`") as caught:
        Hub(token=token, transport=room.transport).publish(folder, owner="admin")
    assert caught.value.hint == "you can publish under `ada`"


@pytest.mark.parametrize("promise", PROMISES)
def test_every_problem_has_its_own_exception(promise: str, mine: Hub, folder: Path, home: Path) -> None:
    kind, code, call = PROMISES[promise]
    with pytest.raises(ClientError) as caught:
        call(mine, home)
    assert (type(caught.value), caught.value.code) == (kind, code)
    assert kind.status in errors.EXIT_CODES


def test_an_incomplete_run_is_posted_only_if_requested(mine: Hub, home: Path) -> None:
    run = write_run(home / "runs" / "one", rewards=[1.0, 0.0])
    rows = b"".join(blocks(run / "rollouts.jsonl.zst")).splitlines(keepends=True)
    (run / "rollouts.jsonl.zst").unlink()
    (run / "rollouts.jsonl").write_bytes(rows[0])
    with pytest.raises(ClientError, match="1 of 2 rollouts are missing") as caught:
        mine.post(run)
    assert caught.value.code == "incomplete_run"
    assert mine.post(run, incomplete=True).level == "claimed"
    (run / "run.json").write_text("{}")
    with pytest.raises(RunError):
        mine.post(run)


def test_a_run_that_contains_a_token_is_not_posted(mine: Hub, room: HubRoom, home: Path) -> None:
    with pytest.raises(ClientError) as caught:
        mine.post(write_run(home / "runs" / "one", rewards=[1.0], said=room.token))
    assert caught.value.code == "secret_found"
    assert room.token not in str(caught.value)


def test_wrong_empty_and_missing_tokens_are_reported(room: HubRoom, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(LoginRequired) as wrong:
        Hub(token="wnd_wrong", transport=room.transport).whoami()
    assert wrong.value.request_id
    with pytest.raises(LoginRequired) as missing:
        Hub(transport=room.transport).whoami()
    assert (missing.value.request_id, missing.value.retryable) == (None, False)
    monkeypatch.setenv("WANDER_TOKEN", " ")
    with pytest.raises(LoginRequired, match="is empty"):
        list(Hub(transport=room.transport).search())


def test_a_token_without_the_required_right_is_reported(
    room: HubRoom, mine: Hub, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WANDER_TOKEN", room.token)
    reader = Hub(token=room.wander("auth", "token", "new", "r").out.strip(), transport=room.transport)
    assert reader.whoami().token.scopes == ["read"]
    with pytest.raises(LoginRequired) as caught:
        reader.post(write_run(home / "runs" / "one", rewards=[1.0]))
    assert (caught.value.code, caught.value.request_id is None) == ("token_scope", False)


def test_unreachable_hubs_and_other_servers_are_reported(home: Path) -> None:
    with pytest.raises(Unavailable) as down:
        Hub("http://127.0.0.1:9").info("admin/say-env")
    assert (down.value.code, down.value.retryable) == ("hub_unreachable", True)
    with pytest.raises(UsageError):
        Hub("nonsense")


def test_a_traceback_shows_the_hint_and_the_request_id(mine: Hub) -> None:
    with pytest.raises(NotFound) as caught:
        mine.info("nobody/nothing")
    error = caught.value
    shown = "".join(traceback.format_exception(error))
    assert error.request_id
    assert error.hint
    assert f"hint: {error.hint}" in shown
    assert error.request_id in shown


async def test_calls_work_while_a_loop_runs(mine: Hub) -> None:
    assert (await asyncio.to_thread(mine.whoami)).user == "admin"
    assert mine.info("admin/say-env").latest.version == "0.3.0"
    assert [one.name for one in mine.search()] == ["say-env"]


def test_threads_may_share_a_hub_object(mine: Hub) -> None:
    with mine, ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda _: mine.info("admin/say-env").latest.version, range(8)))
    assert found == ["0.3.0"] * 8
    assert mine.whoami().user == "admin", "closed connections are opened again"


def test_the_methods_of_a_hub_are_recorded() -> None:
    plain = {name for name in vars(Hub) if not name.startswith("_")}
    assert plain == {
        *("search", "info", "versions", "publish", "fork", "install", "post", "leaderboard", "run", "runs"),
        *("verify", "whoami", "push_model", "pull_model", "close"),
    }
    assert (Hub.info.__doc__ or "").startswith("Return the details")
    assert wander.Hub is Hub
