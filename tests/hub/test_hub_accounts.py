"""Users, owners and tokens, and the administrator's command on a hub that is being served."""

from __future__ import annotations

import contextlib
import json
import sqlite3
from datetime import datetime, timedelta

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from wander_hub import names, security
from wander_hub.accounts import repository, service
from wander_hub.cli import main as cli
from wander_hub.database import now
from wander_hub.http.problems import HubProblem
from wander_hub.rights.tokens import revoke_token


def test_a_token_has_a_valid_format_and_checksum():
    token = security.new_token()
    assert token.startswith("wnd_")
    assert len(token) == security.TOKEN_LENGTH
    assert security.well_formed(token)
    assert security.new_token() != token
    for place in (4, 20, len(token) - 1):
        other = "a" if token[place] != "a" else "b"
        assert not security.well_formed(token[:place] + other + token[place + 1 :])
    assert not security.well_formed(token[:-1])
    assert not security.well_formed("")


@hypothesis_settings(max_examples=20)  # with 100, it takes 9 s
@given(st.text(max_size=80) | st.text(max_size=80).map("Basic {}".format))
def test_no_header_breaks_the_reading_of_tokens(text):
    with contextlib.suppress(ValueError):
        found = security.token_from_header(text)
        assert found is None or isinstance(found, str)
    assert not security.well_formed(text) or len(text) == security.TOKEN_LENGTH


def test_the_database_contains_no_secret(sqlite_alone, hub):
    with sqlite3.connect(hub.settings.data / "hub.db") as connection:
        dump = "\n".join(connection.iterdump())
    for token in hub.tokens.values():
        assert token not in dump
        assert security.token_hash(token) in dump
    connection.close()


async def test_a_revoked_token_is_rejected_immediately(hub):
    prefix = hub.tokens["bob"][:10]
    with hub.database.write() as session:
        revoke_token(session, prefix)
    answer = await hub.get("/api/v1/whoami", headers=hub.auth("bob"))
    assert (answer.status_code, answer.json()["code"]) == (401, "bad_token")
    assert answer.headers["www-authenticate"].startswith("Bearer")
    public = await hub.get("/api/v1/environments", headers=hub.auth("bob"))
    assert public.status_code == 401, "what a bad token may see would be a guess"


async def test_the_last_use_of_a_token_is_recorded(hub):
    assert (await hub.get("/api/v1/whoami", headers=hub.auth())).json()["token"]["last_used_at"] is None
    assert (await hub.get("/api/v1/whoami", headers=hub.auth())).json()["token"]["last_used_at"]


@pytest.mark.parametrize(
    "name", ["api", "simple", "runs", "-a", "a-", "a_b", "a.b", "a/b", "", "x" * 40, "é", "..", "a b"]
)
def test_reserved_owner_names_are_rejected(hub, name):
    with pytest.raises(HubProblem) as refusal, hub.database.write() as session:
        service.add_user(session, name)
    assert refusal.value.code == "bad_name"


@pytest.mark.parametrize("name", ["alice", "ALICE", "wander", "admin"])
def test_existing_owner_names_are_rejected(hub, name):
    with pytest.raises(HubProblem) as refusal, hub.database.write() as session:
        service.add_user(session, name)
    assert refusal.value.code == "name_taken"


def test_every_first_segment_of_the_hub_is_reserved(hub):
    from fastapi.routing import iter_route_contexts

    app = hub.client._transport.app
    paths = [context.path for context in iter_route_contexts(app.routes)]
    first = {path.split("/")[1] for path in paths if "{" not in path.split("/")[1]} - {""}
    assert first <= names.RESERVED_OWNERS
    second = {
        path.split("/")[2] for path in paths if path.startswith("/{owner}/") and "{" not in path.split("/")[2]
    }
    assert second <= names.RESERVED_ENVIRONMENTS


def test_a_failed_write_is_rolled_back(hub):
    def add_twice() -> None:
        with hub.database.write() as session:
            service.add_user(session, "carol")
            service.add_user(session, "carol")

    with pytest.raises(HubProblem):
        add_twice()
    with hub.database.read() as session:
        assert repository.user_named(session, "carol") is None


@pytest.fixture
def command(hub, monkeypatch):
    """Run the administrator's command on the hub's data; return its outcome."""
    monkeypatch.setenv("WANDER_HUB_DATA", str(hub.settings.data))
    if not hub.database.url.startswith("sqlite"):
        monkeypatch.setenv("WANDER_HUB_DATABASE_URL", hub.database.url)

    def run(*words: str):
        return CliRunner().invoke(cli.app, list(words))

    return run


async def test_users_and_tokens_are_added_by_command(hub, command):
    added = command("user", "add", "carol", "--owner", "team", "--json")
    assert json.loads(added.stdout) == {"name": "carol", "admin": False, "owners": ["carol", "team"]}
    created = json.loads(command("token", "create", "carol", "--name", "ci", "--json").stdout)
    headers = {"Authorization": f"Bearer {created['token']}"}
    whoami = (await hub.get("/api/v1/whoami", headers=headers)).json()
    assert (whoami["user"], whoami["owners"], whoami["token"]["name"]) == ("carol", ["carol", "team"], "ci")
    rows = json.loads(command("token", "list", "--user", "carol", "--json").stdout)["data"]
    assert [(row["name"], row["revoked"]) for row in rows] == [("ci", False)]
    assert created["token"] not in command("token", "list").stdout
    assert command("token", "revoke", rows[0]["prefix"]).exit_code == 0
    assert (await hub.get("/api/v1/whoami", headers=headers)).status_code == 401


async def test_tokens_of_the_command_can_have_limited_scope_and_lifetime(hub, command):
    words = ("--scope", "publish", "--scope", "read", "--days", "2", "--json")
    secret = json.loads(command("token", "create", "alice", *words).stdout)["token"]
    whoami = (await hub.get("/api/v1/whoami", headers={"Authorization": f"Bearer {secret}"})).json()
    assert whoami["token"]["scopes"] == ["read", "publish"]
    left = datetime.fromisoformat(whoami["token"]["expires_at"]) - now()
    assert timedelta(days=1.9) < left <= timedelta(days=2)
    row = json.loads(command("token", "list", "--user", "alice", "--json").stdout)["data"][-1]
    assert (row["scopes"], row["expires_at"][:10]) == ("read publish", whoami["token"]["expires_at"][:10])
    for wrong in (("--scope", "everything"), ("--days", "0")):
        assert command("token", "create", "alice", *wrong).exit_code == 2


def test_lists_are_printed_as_tables_or_json(command):
    plain = command("user", "list").stdout.splitlines()
    assert plain[0] == "name\tadmin\towners\tstate\tcreated_at"
    assert [line.split("\t")[:3] for line in plain[1:]] == [
        ["admin", "yes", "admin"],
        ["alice", "no", "alice"],
        ["bob", "no", "bob"],
    ]
    assert len(json.loads(command("user", "list", "--json").stdout)["data"]) == 3
    assert json.loads(command("version", "--json").stdout)["version"]


@pytest.mark.parametrize(
    ("words", "status", "said"),
    [
        (["user", "add", "alice"], 1, "`alice` is already taken"),
        (["user", "add", "api"], 1, "is reserved"),
        (["token", "create", "nobody"], 1, "wander-hub user add nobody"),
        (["token", "revoke", "wnd_none"], 1, "wnd_none"),
        (["user", "list", "--data", "/dev/null/x"], 2, "there is no hub in"),
    ],
)
def test_invalid_uses_of_the_command_are_rejected(command, monkeypatch, capsys, words, status, said):
    monkeypatch.setattr("sys.argv", ["wander-hub", *words])
    if "--data" in words:
        monkeypatch.delenv("WANDER_HUB_DATABASE_URL", raising=False)  # else no folder is used
    with pytest.raises(SystemExit) as stopped:
        cli.main()
    assert stopped.value.code == status
    error = capsys.readouterr().err
    assert error.startswith("error: ")
    assert said in error


def test_help_of_every_command(command):
    for words in ([], ["serve"], ["migrate"], ["user"], ["user", "add"], ["token"], ["token", "create"]):
        answer = command(*words, "--help")
        assert answer.exit_code == 0
        assert "Usage" in answer.stdout
