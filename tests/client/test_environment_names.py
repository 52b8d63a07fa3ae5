"""What a word on the command line means; nothing but an explicit path is taken from the disk."""

from __future__ import annotations

from pathlib import Path

import pytest
from command_line import Wander
from hypothesis import example, given
from hypothesis import strategies as st
from packaging.utils import canonicalize_name
from packaging.version import Version
from wander_client.errors import NotFound, UsageError
from wander_client.names import EnvironmentName, looks_like_path, parse_environment, parse_name

owners = st.from_regex(r"[a-z0-9]([a-z0-9-]{0,30}[a-z0-9])?", fullmatch=True)
names = st.from_regex(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,30}[A-Za-z0-9])?", fullmatch=True)
versions = st.from_regex(r"[0-9]{1,3}(\.[0-9]{1,3}){0,2}((a|b|rc)[0-9]{1,2})?(\.post[0-9])?", fullmatch=True)


@given(owners, names, versions)
def test_names_are_normalized(owner: str, name: str, version: str) -> None:
    found = parse_name(f"{owner}/{name}@{version}")
    assert found == EnvironmentName(owner, canonicalize_name(name), str(Version(version)))
    assert parse_name(str(found)) == found


@given(owners, names)
def test_no_version_and_latest_both_mean_the_newest(owner: str, name: str) -> None:
    assert parse_name(f"{owner}/{name}").version is None
    assert parse_name(f"{owner}/{name}@latest").version is None


@given(st.text())
@example("longer than any name of a file " * 99)
def test_any_text_is_a_name_or_a_usage_error(text: str) -> None:
    try:
        found = parse_name(text)
    except UsageError:
        return
    assert parse_name(str(found)) == found
    assert found.owner not in ("", ".", "..")
    assert "/" not in found.name


@pytest.mark.parametrize(
    "spec",
    ["", "/", "a/", "/b", "a/b/c", "a b/c", "-a/b", "a-/b", "a/-b", "../b", "a/..", "a/b@", "a/b@x", "a@1"],
)
def test_invalid_names_are_rejected(spec: str) -> None:
    with pytest.raises(UsageError):
        parse_name(spec)


def test_a_path_is_rejected_if_a_command_needs_a_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "vault").mkdir()
    with pytest.raises(UsageError) as caught:
        parse_name("./vault")
    assert caught.value.hint == (
        "pass `owner/name` or `owner/name@version`: this must be an environment on the hub, not a folder"
    )


def test_dash_underscore_dot_and_case_name_one_environment() -> None:
    assert {parse_name(f"Acme/{name}") for name in ("Reverse_Text", "reverse-text", "reverse.text")} == {
        EnvironmentName("acme", "reverse-text")
    }


def test_a_name_without_an_owner_is_not_looked_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "wordle").mkdir()
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match="the owner is missing"):
        parse_environment("wordle")


def test_a_folder_cannot_take_the_place_of_a_published_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "acme" / "wordle").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    assert parse_environment("acme/wordle") == EnvironmentName("acme", "wordle")
    assert parse_environment("./acme/wordle") == tmp_path / "acme" / "wordle"


@pytest.mark.parametrize("spec", [".", "..", "./x", "../x", "/x", "~/x", "~"])
def test_paths_look_like_paths(spec: str) -> None:
    assert looks_like_path(spec)


def test_a_missing_folder_is_reported(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="does not exist"):
        parse_environment(str(tmp_path / "nope"))


@pytest.mark.parametrize("spec", ["acme/wordle==1.0", "acme/wordle == 1.0", "acme/Wordle===1.0"])
def test_a_version_may_be_written_as_pip_does(spec: str) -> None:
    assert parse_name(spec) == EnvironmentName("acme", "wordle", "1.0")


@pytest.mark.parametrize("spec", ["acme/wordle>=1.0", "acme/wordle<2", "acme/wordle~=1.0", "acme/wordle!=1"])
def test_a_version_range_gets_a_hint(spec: str) -> None:
    with pytest.raises(UsageError) as refused:
        parse_name(spec)
    assert "`acme/wordle@1.0`" in (refused.value.hint or "")


def test_a_version_without_an_owner_gets_a_hint() -> None:
    with pytest.raises(UsageError) as refused:
        parse_name("wordle==1.0")
    assert "`owner/wordle@1.0`" in (refused.value.hint or "")
    assert "`wander search wordle`" in (refused.value.hint or "")


def test_commands_for_sources_accept_a_folder_name(
    wander: Wander, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (home / "environments" / "mine").mkdir(parents=True)
    away = ("--hub", "http://127.0.0.1:1")
    for command in (["check"], ["publish"]):
        refused = wander(*command, "environments/mine", *away)
        assert refused.status != 5, "no hub is asked"
        assert "environments/mine" in refused.err
    assert wander("check", "environments/other", *away).status == 5


def test_a_name_that_is_also_a_folder_gets_a_hint(wander: Wander, home: Path, folder: Path) -> None:
    folder.rename(home / "mine")
    place = home / "environments" / "mine"
    place.parent.mkdir()
    (home / "mine").rename(place)
    refused = wander("eval", "environments/mine", "-m", "echo", "--hub", "http://127.0.0.1:1")
    assert refused.status == 5
    assert "if you mean the folder of that name, pass `./environments/mine`" in refused.err
