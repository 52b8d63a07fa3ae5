"""`wander env publisher`: workflows that may publish, added, listed and removed."""

from __future__ import annotations

import pytest
from command_line import HubRoom


@pytest.fixture
def room(hub: HubRoom, monkeypatch: pytest.MonkeyPatch) -> HubRoom:
    monkeypatch.setenv("WANDER_TOKEN", hub.token)
    return hub


def test_trusted_workflows_are_added_listed_and_removed(room: HubRoom) -> None:
    added = room.wander("env", "publisher", "add", "admin/wordle", "Acme/Envs", "--workflow", "release.yml")
    assert added.out == "trusted: github acme/envs release.yml for admin/wordle\n"
    for_all = room.wander(
        *(
            "env",
            "publisher",
            "add",
            "admin",
            "group/sub/project",
            "--kind",
            "gitlab",
            "--workflow",
            ".gitlab-ci.yml",
        ),
        *("--deployment", "production", "--json"),
    )
    assert for_all.status == 0, for_all.err
    assert (for_all.data["name"], for_all.data["issuer"]) == (None, "https://gitlab.com")
    listed = room.wander("env", "publisher", "list", "admin", "--json").data
    assert [(one["subject"], one["workflow"]) for one in listed] == [
        ("acme/envs", "release.yml"),
        ("group/sub/project", ".gitlab-ci.yml"),
    ]
    assert "admin/*" in room.wander("env", "publisher", "list", "admin").out
    removed = room.wander("env", "publisher", "remove", "admin", "1")
    assert removed.out == "no longer trusted: github acme/envs release.yml for admin/wordle\n"
    again = room.wander("env", "publisher", "remove", "admin", "1")
    assert again.status == 3
    assert "wander env publisher list admin" in again.err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("admin/x", "acme/envs"), "the file name of the workflow is missing"),
        (("admin/x", "acme", "--workflow", "a.yml"), "the form `owner/repository`"),
        (("admin/x", "acme/envs", "--workflow", "a.txt"), "`--workflow`"),
        (("admin/x", "acme/envs", "--workflow", "a.yml", "--kind", "svn"), "`--kind`"),
        (("admin/x", "sub", "--kind", "oidc"), "needs the address of its issuer"),
    ],
)
def test_invalid_publishers_are_rejected(room: HubRoom, words: tuple[str, ...], said: str) -> None:
    done = room.wander("env", "publisher", "add", *words)
    assert done.status == 2
    assert said in done.err


def test_an_unknown_issuer_is_reported(room: HubRoom) -> None:
    done = room.wander(
        *(
            "env",
            "publisher",
            "add",
            "admin/x",
            "acme/envs",
            "--workflow",
            "a.yml",
            "--issuer",
            "https://git.acme.org",
        )
    )
    assert done.status == 1
    assert "does not accept `github` tokens of `https://git.acme.org`" in done.err


def test_outside_of_a_workflow_there_is_no_token(room: HubRoom) -> None:
    done = room.wander("env", "publisher", "token")
    assert done.status == 2
    assert "not running in a CI workflow" in done.err
