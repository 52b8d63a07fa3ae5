"""Files that the command keeps for its user: crash logs, and a credentials file that was damaged."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from command_line import HubRoom, Wander
from wander_client.failures import explain


@pytest.mark.parametrize("told", ["x", "sk-secret", "\ud800", "a\nb", "é" * 5000])
def test_a_crash_log_is_readable_only_by_its_user(told: str, home: Path) -> None:
    explained = explain(RuntimeError(told))
    assert explained.code == "internal"
    (log,) = (home / "state" / "crashes").iterdir()
    assert str(log) in (explained.hint or "")
    assert log.stat().st_mode & 0o777 == 0o600
    assert log.parent.stat().st_mode & 0o777 == 0o700
    assert b"RuntimeError" in log.read_bytes()


def test_a_crash_is_explained_even_if_no_log_can_be_written(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (home / "taken").touch()
    monkeypatch.setenv("WANDER_STATE_DIR", str(home / "taken"))
    assert explain(RuntimeError("x")).code == "internal"


DAMAGED = {
    "empty": b"",
    "no JSON": b"{",
    "no text": b"\xff\xfe",
    "another object": b'{"tokens": []}',
    "deep": b"[" * 200_000,
    "a list": b"[]",
    "a folder": None,
}


@pytest.mark.parametrize("damage", DAMAGED)
def test_a_damaged_credentials_file_stops_only_commands_that_need_a_token(
    damage: str, hub: HubRoom, wander: Wander, home: Path
) -> None:
    (home / "config").mkdir()
    path, content = home / "config" / "credentials.json", DAMAGED[damage]
    path.mkdir() if content is None else path.write_bytes(content)
    os.chmod(path, 0o700)
    for words in (("search",), ("runs",), ("env", "list"), ("runs", "--posted")):
        done = hub.wander(*words, "--json")
        assert done.status == 0, (words, done.out)
    assert len(hub.wander("search", "--json").json["warnings"]) == 1
    refused = hub.wander("auth", "token", "list", "--json")
    assert refused.json["error"]["code"] == "bad_credentials"
