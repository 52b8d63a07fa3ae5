"""Settings by flag, variable, file and default; tokens in a file that only its owner reads."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest
from command_line import Wander
from wander.errors import DEFAULT_HUB
from wander_client.credentials import CredentialStore
from wander_client.errors import ClientError, LoginRequired, UsageError
from wander_client.settings import hub_url, load_settings

HUB = "https://hub.example.org"


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    return {"WANDER_CONFIG_DIR": str(tmp_path)}


def test_the_hub_is_set_by_flag_variable_file_or_default(environ: dict[str, str], tmp_path: Path) -> None:
    assert load_settings(environ=environ).hub == DEFAULT_HUB
    (tmp_path / "settings.toml").write_text('hub = "https://file.example.org"\n')
    assert load_settings(environ=environ).hub == "https://file.example.org"
    environ["WANDER_HUB"] = "https://variable.example.org/"
    found = load_settings(environ=environ)
    assert (found.hub, found.hub_origin) == ("https://variable.example.org", "WANDER_HUB")
    found = load_settings("https://flag.example.org", environ)
    assert (found.hub, found.hub_origin) == ("https://flag.example.org", "--hub")


def test_a_hub_may_be_named(environ: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "settings.toml").write_text(
        f'hub = "work"\n[hubs]\nwork = "{HUB}"\nhome = "http://localhost:1"\n'
    )
    assert load_settings(environ=environ).hub == HUB
    assert load_settings("home", environ).hub == "http://localhost:1"
    with pytest.raises(UsageError, match="no hub is named `wrok`"):
        load_settings("wrok", environ)


@pytest.mark.parametrize("text", ["hub = ", "hubs = 3", "[hubs]\nwork = 3\n", "\xff"])
def test_an_invalid_settings_file_is_named(text: str, environ: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "settings.toml").write_text(text, encoding="latin-1")
    with pytest.raises(UsageError, match=r"settings\.toml"):
        load_settings(environ=environ)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("https://hub.example.org/", HUB),
        ("hub.example.org", HUB),
        ("http://127.0.0.1:8600", "http://127.0.0.1:8600"),
        ("localhost", "http://localhost"),
        ("127.0.0.1:8600", "http://127.0.0.1:8600"),
        ("localhost.example.org", "https://localhost.example.org"),
        ("https://example.org/wander/", "https://example.org/wander"),
    ],
)
def test_hub_urls_have_one_form(given: str, expected: str) -> None:
    assert hub_url(given) == expected


@pytest.mark.parametrize(
    "value", ["ftp://x.org", "https://", "http://u:p@x.org", "http://x.org:port", "work"]
)
def test_invalid_hub_urls_are_rejected(value: str) -> None:
    with pytest.raises(UsageError):
        hub_url(value)


def test_the_credential_file_is_private(tmp_path: Path) -> None:
    old = os.umask(0)
    try:
        store = CredentialStore(tmp_path / "new", {})
        store.set(HUB, "wnd_secret")
    finally:
        os.umask(old)
    assert stat.S_IMODE(store.path.stat().st_mode) == 0o600
    assert stat.S_IMODE(store.path.parent.stat().st_mode) == 0o700
    assert not store.too_open()
    store.path.chmod(0o644)
    assert store.too_open()
    store.set(HUB, "wnd_other")
    assert not store.too_open()


def test_tokens_are_kept_by_hub(tmp_path: Path) -> None:
    store = CredentialStore(tmp_path, {})
    store.set(HUB, "one")
    store.set("http://localhost:1", "two")
    assert store.remove(HUB)
    assert not store.remove(HUB)
    assert store.get(HUB) is None
    found = store.get("http://localhost:1")
    assert found is not None
    assert (found.token, found.origin) == ("two", str(store.path))
    assert [path.name for path in tmp_path.iterdir()] == ["credentials.json"]


def test_the_variable_overrides_the_file(tmp_path: Path) -> None:
    store = CredentialStore(tmp_path, {"WANDER_TOKEN": " wnd_ci "}, variable_hub=HUB)
    store.set(HUB, "stored")
    found = store.get(HUB)
    assert found is not None
    assert (found.token, found.origin) == ("wnd_ci", "WANDER_TOKEN")


@pytest.mark.parametrize("empty", ["", "  "])
def test_an_empty_token_variable_is_ignored(tmp_path: Path, empty: str) -> None:
    store = CredentialStore(tmp_path, {"WANDER_TOKEN": empty}, variable_hub=HUB)
    store.set(HUB, "stored")
    with pytest.raises(LoginRequired, match="`WANDER_TOKEN` is empty") as refused:
        store.get(HUB)
    assert "unset WANDER_TOKEN" in str(refused.value.hint)


def test_a_token_is_not_shown_when_a_credential_is_printed(tmp_path: Path) -> None:
    store = CredentialStore(tmp_path, {})
    store.set(HUB, "wnd_secret")
    assert "secret" not in repr(store.get(HUB))


def test_the_only_hub_with_a_login_is_the_default(environ: dict[str, str], tmp_path: Path) -> None:
    store = CredentialStore(tmp_path, {})
    store.set(HUB, "one")
    assert load_settings(environ=environ).hub == HUB
    store.set("http://localhost:1", "two")
    assert load_settings(environ=environ).hub == DEFAULT_HUB


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"tokens": 3}', "\x00"])
def test_a_damaged_credential_file_is_named_and_not_overwritten(text: str, tmp_path: Path) -> None:
    store = CredentialStore(tmp_path, {})
    store.path.write_text(text)
    with pytest.raises(ClientError) as refused:
        store.set(HUB, "x")
    assert refused.value.code == "bad_credentials"
    assert store.path.read_text() == text


def test_a_readable_credential_file_causes_a_warning(wander: Wander, home: Path) -> None:
    store = CredentialStore(home / "config", {})
    store.set(DEFAULT_HUB, "wnd_x")
    store.path.chmod(0o644)
    result = wander("auth", "logout", "--json")
    assert result.status == 0
    assert "chmod 600" in result.json["warnings"][0]
