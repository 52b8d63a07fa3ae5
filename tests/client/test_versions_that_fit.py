"""Which version and which wheel of an environment are installed: the newest that this machine can have."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from command_line import HubRoom, make_wheel
from wander_client.credentials import Credential
from wander_client.errors import ClientError
from wander_client.hub.api import HubApi, open_hub
from wander_client.names import parse_name
from wander_client.packages.install import choose_version, exact_version

NEVER = ">=3.99"
ELSEWHERE = "cp311-cp311-win32"


@pytest.fixture
def api(hub: HubRoom, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[HubApi]:
    """A hub with releases that fit here and others that do not."""
    monkeypatch.setenv("WANDER_TOKEN", hub.token)
    releases: dict[str, dict[str, str]] = {
        "0.9": {},
        "1.0": {},
        "1.1": {"requires_python": NEVER},
        "1.2": {"tags": ELSEWHERE},
        "1.3rc1": {},
    }
    for version, more in releases.items():
        hub.publish(make_wheel(tmp_path, version=version, **more))
    with open_hub("https://testserver", Credential(hub.token, "test"), transport=hub.transport) as api:
        yield api


def chosen(api: HubApi, word: str) -> tuple[str, list[str]]:
    told: list[str] = []
    detail, _, file = choose_version(api, parse_name(word), told.append)
    assert file.filename.startswith(f"say_env-{detail.version}-")
    return detail.version, told


def test_the_newest_compatible_version_is_used_and_newer_ones_are_named(api: HubApi) -> None:
    version, told = chosen(api, "admin/say-env")
    assert version == "1.0"
    assert "1.2" in " ".join(told)
    assert "1.0" in " ".join(told)


@pytest.mark.parametrize(
    ("word", "code"), [("1.1", "python_version"), ("1.2", "no_wheel"), ("1.2.0", "no_wheel")]
)
def test_an_incompatible_version_gets_a_compatible_suggestion(api: HubApi, word: str, code: str) -> None:
    with pytest.raises(ClientError) as refused:
        chosen(api, f"admin/say-env@{word}")
    assert refused.value.code == code
    assert "wander install admin/say-env@1.0`" in (refused.value.hint or "")


@pytest.mark.parametrize("word", ["0.9", "0.9.0", "0.9.0.0"])
def test_a_compatible_version_is_found_in_any_spelling(api: HubApi, word: str) -> None:
    assert chosen(api, f"admin/say-env@{word}") == ("0.9", [])


def test_yanked_and_deleted_versions_are_skipped(api: HubApi, hub: HubRoom) -> None:
    assert hub.wander("env", "yank", "admin/say-env@1.0", "--reason", "wrong").status == 0
    assert chosen(api, "admin/say-env")[0] == "0.9"
    assert hub.wander("env", "delete", "admin/say-env@0.9", "--yes", "--reason", "leak").status == 0
    assert chosen(api, "admin/say-env")[0] == "1.3rc1"


@pytest.mark.parametrize("word", ["0.9", "0.9.0"])
def test_a_deleted_version_is_reported_with_the_available_versions(
    api: HubApi, hub: HubRoom, word: str
) -> None:
    assert hub.wander("env", "delete", "admin/say-env@0.9", "--yes", "--reason", "leak").status == 0
    with pytest.raises(ClientError) as refused:
        exact_version(api, parse_name(f"admin/say-env@{word}"))
    assert (refused.value.code, refused.value.detail) == ("version_deleted", "leak")
    assert "`1.0`" in (refused.value.hint or "")
    assert "0.9" not in (refused.value.hint or "")
    done = hub.wander("install", f"admin/say-env@{word}", "--json")
    assert done.status == 3


@pytest.mark.parametrize("word", ["1.3rc1", "1.3.0rc1", "1.3.0.0rc1"])
def test_a_leaderboard_is_found_by_any_spelling_of_its_version(hub: HubRoom, api: HubApi, word: str) -> None:
    assert api.whole_leaderboard("admin", "say-env", version=word).version == "1.3rc1"
    assert hub.wander("leaderboard", f"admin/say-env@{word}").status == 0
