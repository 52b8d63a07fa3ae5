"""Commands that talk to the hub, against the real hub application."""

from __future__ import annotations

import csv
import hashlib
import io
import json
import re
import stat
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import httpx
import pytest
from command_line import HubRoom, Wander, make_wheel
from saved_runs import write_run
from wander.wire.transfers import NewUpload, UploadFile
from wander_client.commands.account import login
from wander_client.errors import ClientError, LoginRequired, NotFound, Unavailable
from wander_client.hub.api import HubApi, open_hub
from wander_client.hub.transfer import publish_files


@pytest.fixture
def logged_in(hub: HubRoom, monkeypatch: pytest.MonkeyPatch) -> HubRoom:
    monkeypatch.setenv("WANDER_TOKEN", hub.token)
    return hub


@pytest.fixture
def published(logged_in: HubRoom, tmp_path: Path) -> HubRoom:
    logged_in.publish(make_wheel(tmp_path))
    return logged_in


def test_login_checks_the_token_and_stores_it_privately(
    hub: HubRoom, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(f"{hub.token}\n"))
    result = hub.wander("login", "--token-stdin", "--json")
    assert result.status == 0
    assert result.data["user"] == "admin"
    assert hub.token not in result.out + result.err
    stored = home / "config" / "credentials.json"
    assert stat.S_IMODE(stored.stat().st_mode) == 0o600
    who = hub.wander("auth", "whoami", "--json")
    assert (who.data["user"], who.data["token_from"]) == ("admin", str(stored))
    assert hub.token not in who.out
    assert hub.wander("auth", "logout").status == 0
    assert hub.wander("auth", "whoami").status == 4


def test_an_invalid_token_is_rejected_and_not_stored(
    hub: HubRoom, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("wnd_wrong\n"))
    result = hub.wander("login", "--token-stdin")
    assert result.status == 4
    assert "hint:" in result.err
    assert "wnd_wrong" not in result.out + result.err
    assert not (home / "config" / "credentials.json").exists()


def test_a_login_waits_for_the_token_of_a_hub_that_starts(
    hub: HubRoom, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = home / "token"
    written = iter(["wnd_of_the_hub_before", "", hub.token])
    clock = SimpleNamespace(
        monotonic=time.monotonic, sleep=lambda seconds: file.write_text(f"{next(written)}\n")
    )
    monkeypatch.setattr(login, "time", clock)
    result = hub.wander("login", "--token-file", "token", "--wait", "60", "--json")
    assert result.status == 0, result.out
    assert result.data["user"] == "admin"
    assert next(written, None) is None


def test_login_from_a_missing_file_prints_how_to_wait(hub: HubRoom) -> None:
    result = hub.wander("login", "--token-file", "token")
    assert result.status == 3
    assert "wander login --token-file token --wait 60" in result.err
    assert hub.wander("login", "--token-file", "token", "--token-stdin").status == 2


def test_a_login_without_a_token_names_the_hub(hub: HubRoom, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(""))
    for words in (["login"], ["login", "--token-stdin"]):
        result = hub.wander(*words)
        assert result.status == 2
        assert "https://testserver" in result.err


@pytest.mark.parametrize("token", ["", "two words", "größe"])
def test_text_that_is_not_a_token_is_not_sent(
    token: str, hub: HubRoom, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(f"{token}\n"))
    assert hub.wander("login", "--token-stdin").status in (2, 4)


def test_login_without_a_terminal_names_the_flag(hub: HubRoom, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(""))
    result = hub.wander("login")
    assert result.status == 2
    assert "--token-stdin" in result.err


def test_an_empty_hub_is_reported(hub: HubRoom) -> None:
    assert hub.wander("search", "--json").data == []
    assert hub.wander("search").out.splitlines()[0].startswith("environment\t")


def test_search_finds_what_was_published(published: HubRoom) -> None:
    result = published.wander("search", "say")
    assert result.status == 0
    header, row = (line.split("\t") for line in result.out.splitlines())
    assert dict(zip(header, row, strict=True))["environment"] == "admin/say-env"
    data = published.wander("search", "--tag", "game", "--json").json
    assert [(one["owner"], one["name"]) for one in data["data"]] == [("admin", "say-env")]
    assert data["next"] is None
    assert published.wander("search", "nothing-like-it", "--json").data == []
    nothing = published.wander("search", "nothing-like-it").err.splitlines()
    assert re.fullmatch(r"no matching environments on http\S+\nnext: wander search", "\n".join(nothing))


def test_info_shows_one_environment_and_one_version(published: HubRoom) -> None:
    result = published.wander("env", "info", "admin/Say_Env")
    assert result.status == 0
    assert result.out.startswith("admin/say-env 0.1.0\nSay a number.\n")
    data = published.wander("env", "info", "admin/say-env@0.1.0", "--json").data
    assert data["version"]["files"][0]["filename"] == "say_env-0.1.0-py3-none-any.whl"
    assert data["installed"] == []
    assert published.wander("env", "info", "admin/say-env", "--readme").out == "# Say\n\nSay it.\n\n"


@pytest.mark.parametrize(
    "words",
    [("env", "info", "admin/sya-env"), ("leaderboard", "admin/sya-env"), ("install", "admin/sya-env")],
)
def test_an_unknown_name_gets_a_suggestion(words: tuple[str, ...], published: HubRoom) -> None:
    result = published.wander(*words)
    assert result.status == 3
    assert "`admin/say-env`" in result.err
    assert "code" in published.wander(*words, "--json").json["error"]


def test_an_unknown_version_is_not_found(published: HubRoom) -> None:
    result = published.wander("env", "info", "admin/say-env@9.9", "--json")
    assert result.status == 3
    assert result.json["error"]["code"] == "version_not_found"


def test_an_invalid_wheel_fails_with_the_error_of_the_hub(logged_in: HubRoom, tmp_path: Path) -> None:
    wheel = tmp_path / "say_env-0.1.0-py3-none-any.whl"
    wheel.write_bytes(b"PK no wheel")
    with hub_api(logged_in) as api, pytest.raises(ClientError) as caught:
        send_wheel(api, wheel)
    assert caught.value.status == 1
    assert caught.value.code not in ("failed", "unexpected_answer")


def test_an_upload_without_a_token_needs_login(hub: HubRoom, tmp_path: Path) -> None:
    wheel = make_wheel(tmp_path)
    with (
        open_hub("https://testserver", None, transport=hub.transport) as api,
        pytest.raises(LoginRequired),
    ):
        send_wheel(api, wheel)


def test_downloads_are_checked_against_their_digest(published: HubRoom, tmp_path: Path) -> None:
    with hub_api(published) as api:
        file = api.version("admin", "say-env", "0.1.0").files[0]
        target = tmp_path / "got" / file.filename
        assert api.download(file.url, target, file.sha256) == file.sha256
        other = tmp_path / "got" / "other.whl"
        with pytest.raises(ClientError, match="has the digest"):
            api.download(file.url, other, "0" * 64)
    assert [path.name for path in (tmp_path / "got").iterdir()] == [file.filename]


def test_the_index_lists_the_packages_of_an_owner(published: HubRoom) -> None:
    with hub_api(published) as api:
        files = api.index_files("admin", "say-env")
        assert files is not None
        assert files[0].hashes.sha256
        assert files[0].url.startswith("https://testserver/")
        assert api.index_files("admin", "other") is None


def test_a_run_is_posted_ranked_and_viewed(published: HubRoom, home: Path) -> None:
    run = write_run(home / "runs" / "one", rewards=[1.0, 0.0, 1.0, 1.0])
    shown = published.wander("post", str(run), "--dry-run", "--json")
    assert [one["filename"] for one in shown.data["files"]] == ["run.json", "rollouts.jsonl.zst"]
    first = published.wander("post", "one", "--json")
    assert first.status == 0, first.out
    assert first.data["level"] == "complete"
    assert first.data["new"] is True
    again = published.wander("post", str(run), "--json").data
    assert (again["run_id"], again["new"]) == (first.data["run_id"], False)
    assert published.wander("post", str(run)).out.startswith(f"already posted {first.data['run_id']}")
    board = published.wander("leaderboard", "admin/say-env", "--json").data
    assert [(row["model"], row["reward_mean"]) for row in board["rows"]] == [("scripted:say", 0.75)]
    (row,) = csv.DictReader(io.StringIO(published.wander("leaderboard", "admin/say-env", "--csv", "-").out))
    assert (row["rank_low"], row["reward_mean"], row["rollouts"]) == ("1", "0.75", "4")
    (home / "runs").rename(home / "gone")
    seen = published.wander("view", first.data["run_id"], "--json").data
    assert seen["summary"]["reward_mean"] == 0.75
    assert [one["reward"] for one in seen["rollouts"]] == [1.0, 0.0, 1.0, 1.0]


def test_a_run_on_a_folder_is_not_posted(logged_in: HubRoom, home: Path) -> None:
    run = write_run(home / "runs" / "local", rewards=[1.0], owner=None)
    result = logged_in.wander("post", str(run))
    assert result.status == 1
    assert "wander publish" in result.err


def test_a_run_that_contains_a_secret_is_not_posted(
    published: HubRoom, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-a-very-secret-key")
    run = write_run(home / "runs" / "leak", rewards=[1.0], said="my key is sk-a-very-secret-key")
    result = published.wander("post", str(run), "--json")
    assert (result.status, result.json["error"]["code"]) == (1, "secret_found")
    assert "very-secret" not in result.out
    monkeypatch.setenv("JUDGES_API_KEY", "jk-of-the-endpoint-of-judges")
    other = write_run(home / "runs" / "alerts", rewards=[1.0])
    (other / "alerts.jsonl").write_text('{"message": "401 for jk-of-the-endpoint-of-judges"}\n')
    result = published.wander("post", str(other), "--json")
    assert (result.status, result.json["error"]["code"]) == (1, "secret_found")
    assert "`alerts.jsonl` contains the value of JUDGES_API_KEY" in result.json["error"]["message"]


def test_posting_without_a_token_needs_login(hub: HubRoom, home: Path) -> None:
    run = write_run(home / "runs" / "one", rewards=[1.0])
    assert hub.wander("post", str(run)).status == 4


def test_an_unreachable_hub_prints_how_to_start_a_hub(wander: Wander) -> None:
    result = wander("search", "--hub", "http://127.0.0.1:9")
    assert result.status == 5
    assert "wander-hub serve" in result.err
    error = wander("search", "--hub", "http://127.0.0.1:9", "--json").json["error"]
    assert (error["code"], error["retryable"]) == ("hub_unreachable", True)


def answering(status: int, body: bytes = b"", **headers: str) -> HubApi:
    def handle(request: httpx.Request) -> httpx.Response:
        seen.append(request.url.path)
        return httpx.Response(status, content=body, headers=headers)

    seen: list[str] = []
    api = HubApi("http://h", transport=httpx.MockTransport(handle), sleep=lambda seconds: None)
    api.seen = seen  # type: ignore[attr-defined]
    return api


def test_only_a_newline_ends_a_rollout() -> None:
    said = "one\u2028two\u0085three\x0bfour"
    line = {"example_id": "1", "index": 0, "seed": 1, "prompt": [], "completion": [], "stop_reason": said}
    spaced = json.dumps(line, ensure_ascii=False, separators=(",\r", ":\r"))
    found = list(answering(200, f"{spaced}\n{spaced}".encode()).rollouts("r"))
    assert [one.stop_reason for one in found] == [said, said]


def test_a_run_is_downloaded_before_it_is_replayed() -> None:
    class Sent(httpx.SyncByteStream):
        ended = False

        def __iter__(self) -> Iterator[bytes]:
            line = b'{"example_id": "1", "index": 0, "seed": 1, "prompt": [], "completion": []}\n'
            yield from [line] * 3

        def close(self) -> None:
            self.ended = True

    sent = Sent()
    api = HubApi("http://h", transport=httpx.MockTransport(lambda _: httpx.Response(200, stream=sent)))
    rollouts = api.rollouts("r")
    next(rollouts)
    assert sent.ended
    assert len(list(rollouts)) == 2


@pytest.mark.parametrize(
    ("status", "body", "kind"),
    [
        (200, b"<html>hello</html>", Unavailable),
        (200, b'{"data": 3}', Unavailable),
        (404, b"not here", Unavailable),
        (500, b"oops", Unavailable),
        (502, b"", Unavailable),
        (302, b"", Unavailable),
    ],
)
def test_a_server_that_is_not_a_hub_is_reported(status: int, body: bytes, kind: type[ClientError]) -> None:
    with pytest.raises(kind) as caught:
        answering(status, body).environments()
    assert caught.value.status == 5


@pytest.mark.parametrize(
    ("status", "kind", "exit_status"),
    [
        (401, LoginRequired, 4),
        (403, LoginRequired, 4),
        (404, NotFound, 3),
        (409, ClientError, 1),
        (503, Unavailable, 5),
    ],
)
def test_problems_become_errors_with_the_code_of_the_hub(
    status: int, kind: type[ClientError], exit_status: int
) -> None:
    problem = {
        "title": "no access here",
        "status": status,
        "code": "some_code",
        "hint": "do this",
        "request_id": "r1",
    }
    with pytest.raises(kind) as caught:
        answering(status, json.dumps(problem).encode()).whoami()
    error = caught.value
    assert (error.status, error.code, error.hint, str(error)) == (
        exit_status,
        "some_code",
        "do this",
        "no access here",
    )


def test_reads_are_retried_while_the_hub_is_busy_and_writes_are_not() -> None:
    api = answering(503, **{"Retry-After": "1"})
    with pytest.raises(Unavailable):
        api.whoami()
    assert len(api.seen) == 3  # type: ignore[attr-defined]
    with pytest.raises(Unavailable):
        api.change("DELETE", "/api/v1/tokens/wnd_1234", None)
    assert len(api.seen) == 4  # type: ignore[attr-defined]


def test_the_token_is_only_sent_to_the_hub(tmp_path: Path) -> None:
    seen: dict[str, str | None] = {}

    def handle(request: httpx.Request) -> httpx.Response:
        seen[request.url.host] = request.headers.get("Authorization") or None
        return httpx.Response(200, content=b"x")

    api = HubApi("http://hub.example", "wnd_secret", transport=httpx.MockTransport(handle))
    api.download("/files/x.whl", tmp_path / "a", None)
    api.download("http://storage.example/x.whl", tmp_path / "b", None)
    assert seen == {"hub.example": "Bearer wnd_secret", "storage.example": None}


def hub_api(hub: HubRoom):  # type: ignore[no-untyped-def]
    from wander_client.credentials import Credential

    return open_hub("https://testserver", Credential(hub.token, "test"), transport=hub.transport)


def send_wheel(api: HubApi, wheel: Path) -> None:
    """Publish a wheel as `wander publish` does."""
    content = wheel.read_bytes()
    file = UploadFile(
        filename=wheel.name, kind="wheel", size=len(content), sha256=hashlib.sha256(content).hexdigest()
    )
    wanted = NewUpload(owner="admin", name="say-env", version="0.1.0", files=[file])
    publish_files(api, wanted, {wheel.name: io.BytesIO(content)})
