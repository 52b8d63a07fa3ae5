"""Commands that change environments, roles and tokens, against the real hub application."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest
from command_line import ENVIRONMENT, HubRoom, make_wheel
from wander_client.credentials import Credential
from wander_client.hub.api import open_hub
from wander_client.names import parse_name
from wander_client.packages.install import exact_version
from wander_hub.accounts import service as accounts


@pytest.fixture
def room(hub: HubRoom, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> HubRoom:
    """A hub with `admin/say-env` in it, for an administrator who is logged in."""
    monkeypatch.setenv("WANDER_TOKEN", hub.token)
    hub.publish(make_wheel(tmp_path))
    return hub


def test_yank_and_unyank(room: HubRoom) -> None:
    done = room.wander("env", "yank", "admin/say-env@0.1.0", "--reason", "wrong rewards", "--json")
    assert (done.status, done.data["yanked"], done.data["yanked_reason"]) == (0, True, "wrong rewards")
    undone = room.wander("env", "yank", "admin/say-env@0.1.0", "--undo")
    assert undone.out == "no longer yanked: admin/say-env@0.1.0\n"
    assert room.wander("env", "yank", "admin/say-env").status == 2
    assert room.wander("env", "yank", "admin/say-env@0.1.0", "--undo", "--reason", "x").status == 2
    assert room.wander("env", "yank", "admin/say-env@9.9").status == 3


def test_deprecate_archive_and_restore(room: HubRoom) -> None:
    done = room.wander("env", "deprecate", "admin/say-env", "--reason", "biased", "--json")
    assert (done.data["status"], done.data["status_reason"]) == ("deprecated", "biased")
    assert "status     deprecated: biased" in room.wander("env", "info", "admin/say-env").out
    told: list[str] = []
    with open_hub("https://testserver", Credential(room.token, "test"), transport=room.transport) as api:
        exact_version(api, parse_name("admin/say-env"), told.append)
    assert told == ["`admin/say-env` is deprecated: biased"]
    assert (
        room.wander("env", "deprecate", "admin/say-env", "--archive").out == "admin/say-env is now archived\n"
    )
    assert room.wander("env", "deprecate", "admin/say-env", "--undo").out == "admin/say-env is now active\n"
    assert room.wander("env", "deprecate", "admin/say-env", "--undo", "--archive").status == 2
    assert room.wander("env", "deprecate", "admin/say-env@0.1.0").status == 2
    assert "reason" in room.wander("env", "deprecate", "admin/say-env", "--quarantine").err


def test_delete_asks_for_confirmation_and_is_final(room: HubRoom) -> None:
    unasked = room.wander("env", "delete", "admin/say-env@0.1.0")
    assert unasked.status == 2
    assert "--yes" in unasked.err
    assert room.wander("env", "delete", "admin/say-env@0.1.0", "--yes", "--reason", "leak").status == 0
    assert room.wander("env", "delete", "admin/say-env", "--yes").out == "deleted admin/say-env\n"
    gone = room.wander("env", "info", "admin/say-env")
    assert gone.status == 3
    assert "was deleted" in gone.err


def test_the_old_name_of_a_renamed_environment_still_works(room: HubRoom) -> None:
    assert room.wander("env", "owner", "rename", "admin/say-env", "other").status == 2, "needs a word"
    renamed = room.wander("env", "owner", "rename", "admin/say-env", "other", "--yes")
    assert renamed.out == "admin/say-env is now admin/other\n"
    found = room.wander("env", "info", "admin/say-env", "--json")
    assert (found.status, found.data["name"]) == (0, "other")
    yanked = room.wander("env", "yank", "admin/say-env@0.1.0")
    assert yanked.out == "yanked: admin/other@0.1.0\n", "changes follow too"


def test_roles_transfers_and_forks(room: HubRoom) -> None:
    with room.http.app.state.database.write() as session:
        accounts.add_user(session, "ada")
    added = room.wander("env", "owner", "add", "admin/say-env", "ada", "--role", "reader")
    assert added.out.splitlines()[-1].split("\t") == ["ada", "reader", "environment", "member"]
    assert room.wander("env", "owner", "add", "admin", "ada", "--role", "king").status == 2
    assert room.wander("env", "owner", "remove", "admin/say-env", "ada").status == 0
    assert [one["user"] for one in room.wander("env", "owner", "list", "admin", "--json").data] == ["admin"]
    assert room.wander("env", "owner", "quota", "admin").out.splitlines()[2].split("\t") == [
        "versions",
        "1",
        "no limit",
    ]
    forked = room.wander("env", "fork", "admin/say-env", "--json")
    assert forked.data["source"] == "admin/say-env@0.1.0"
    source = Path(forked.data["path"])
    assert source == Path.cwd() / "say-env"
    assert (source / "say_env.py").read_text() == ENVIRONMENT, "of its wheel, since it has no source archive"
    assert tomllib.loads((source / "pyproject.toml").read_text())["project"]["name"] == "say-env"
    again = room.wander("env", "fork", "admin/say-env", "--json")
    assert (again.status, again.json["error"]["code"]) == (1, "folder_not_empty")
    assert [path.name for path in Path.cwd().iterdir() if path.name.startswith(".")] == []
    named = room.wander("env", "fork", "admin/say-env", "--name", "told-env", "--json")
    assert named.data["source"] == "admin/say-env@0.1.0"
    project = tomllib.loads(Path("told-env/pyproject.toml").read_text())["project"]
    assert project["name"] == "told-env"
    assert project["entry-points"]["wander.environments"] == {"told-env": "say_env:load_environment"}
    moved = room.wander("env", "owner", "transfer", "admin/say-env", "nobody", "--yes")
    assert moved.status == 3


def test_organizations_are_created_listed_and_removed(room: HubRoom) -> None:
    assert room.wander("auth", "org", "new", "Lab").out == "created lab; you are its owner\n"
    assert room.wander("auth", "org", "new", "lab").status == 1
    found = [(one["name"], one["kind"]) for one in room.wander("auth", "org", "list", "--json").data]
    assert found == [("admin", "user"), ("lab", "organization")]
    assert room.wander("auth", "org", "remove", "lab").status == 2
    assert room.wander("auth", "org", "remove", "lab", "--yes").out == "deleted lab\n"
    assert "is not an organization" in room.wander("auth", "org", "remove", "admin", "--yes").err


def test_visibility_of_an_environment_and_the_default_for_new_environments(
    room: HubRoom, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert room.wander("env", "owner", "visibility", "admin/say-env", "private").status == 0
    assert (
        room.wander("env", "owner", "visibility", "admin", "private").out
        == "new environments of admin will be private\n"
    )
    assert room.wander("env", "owner", "visibility", "admin", "secret").status == 2
    assert room.wander("env", "info", "admin/say-env").status == 0
    monkeypatch.delenv("WANDER_TOKEN")
    assert room.wander("env", "info", "admin/say-env").status == 3


def test_tokens_are_created_listed_and_revoked(room: HubRoom, monkeypatch: pytest.MonkeyPatch) -> None:
    made = room.wander(
        "auth", "token", "new", "ci", "--scope", "publish", "--for", "admin/say-env", "--days", "30"
    )
    assert made.status == 0, made.err
    secret = made.out.strip()
    assert "not shown again" in made.err
    listed = room.wander("auth", "token", "list", "--json").data
    (row,) = [one for one in listed if one["name"] == "ci"]
    assert (row["scopes"], row["target"], row["revoked"]) == (["publish"], "admin/say-env", False)
    assert secret not in room.wander("auth", "token", "list").out
    monkeypatch.setenv("WANDER_TOKEN", secret)
    assert room.wander("auth", "whoami", "--json").data["owners"] == ["admin"]
    refused = room.wander("auth", "token", "new", "more")
    assert refused.status == 4
    assert "scope `manage`" in refused.err
    assert room.wander("env", "delete", "admin/say-env", "--yes").status == 4
    monkeypatch.setenv("WANDER_TOKEN", room.token)
    assert room.wander("auth", "token", "revoke", secret[:10]).status == 0
    monkeypatch.setenv("WANDER_TOKEN", secret)
    assert room.wander("auth", "whoami").status == 4
    monkeypatch.setenv("WANDER_TOKEN", room.token)
    assert room.wander("auth", "token", "new", "x", "--scope", "fly").status == 2
    assert room.wander("auth", "token", "new", "").status == 2


def test_pages_and_lists_mark_yanked_and_deprecated_versions(room: HubRoom, tmp_path: Path) -> None:
    room.publish(make_wheel(tmp_path, version="0.2.0"))
    assert room.wander("env", "yank", "admin/say-env@0.1.0").status == 0
    assert room.wander("env", "deprecate", "admin/say-env").status == 0
    shown = room.wander("env", "info", "admin/say-env")
    assert "versions   0.2.0, 0.1.0 (yanked)\n" in shown.out
    assert "status     deprecated\n" in shown.out
    heading, row = room.wander("search").out.splitlines()
    assert dict(zip(heading.split("\t"), row.split("\t"), strict=True))["status"] == "deprecated"


def test_only_similar_names_are_suggested_for_an_unknown_name(room: HubRoom) -> None:
    assert "did you mean `admin/say-env`" in room.wander("env", "info", "admin/say-evn").err
    assert "did you mean `admin/say-env`" in room.wander("env", "info", "amdin/say-env").err
    far = room.wander("env", "info", "admin/mathbox")
    assert "say-env" not in far.err
    assert far.status == 3
