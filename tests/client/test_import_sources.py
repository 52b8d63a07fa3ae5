"""Packages come from repositories, with a note of where they were."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from wander_client.errors import ClientError, NotFound, UsageError
from wander_client.packages.building.build import Builder
from wander_client.packages.origins.git import clone_project, parse_address

LOADER = "import verifiers as vf\n\ndef load_environment(**kwargs):\n    return vf.SingleTurnEnv(**kwargs)\n"
PROJECT = '[project]\nname = "my-env"\nversion = "1.0"\n'


def git(repository: Path, *arguments: str) -> str:
    identity = ("-c", "user.name=t", "-c", "user.email=t@example.org", "-c", "protocol.file.allow=always")
    done = subprocess.run(
        ["git", "-C", repository, *identity, *arguments], check=True, capture_output=True, text=True
    )
    return done.stdout.strip()


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A bare repository with two commits; the first is tagged, hooks lie in wait."""
    source = tmp_path / "source"
    folder = source / "environments" / "my-env"
    folder.mkdir(parents=True)
    (folder / "my_env.py").write_text(LOADER)
    (folder / "pyproject.toml").write_text(PROJECT)
    git(source, "init", "-q", "-b", "main")
    git(source, "add", ".")
    git(source, "commit", "-q", "-m", "one")
    git(source, "tag", "v1")
    (folder / "pyproject.toml").write_text(PROJECT.replace("1.0", "1.1"))
    git(source, "commit", "-q", "-a", "-m", "two")
    git(source, "branch", "feature/x", "v1")
    bare = tmp_path / "envs.git"
    git(source, "clone", "-q", "--bare", str(source), str(bare))
    return bare


def brought(text: str, work: Path) -> tuple[str, str | None]:
    work.mkdir()
    folder, origin = clone_project(text, work, Builder(work, None))
    return (folder / "pyproject.toml").read_text().split('"')[-2], origin.revision


def test_a_branch_a_tag_and_a_commit_are_fetched(repository, tmp_path, builder):
    inner = "#subdirectory=environments/my-env"
    first = git(repository, "rev-parse", "v1")
    newest = git(repository, "rev-parse", "main")
    for number, (revision, version, commit) in enumerate(
        [
            ("", "1.1", newest),
            ("@main", "1.1", newest),
            ("@v1", "1.0", first),
            ("@feature/x", "1.0", first),
            (f"@{first}", "1.0", first),
        ]
    ):
        found = brought(f"git+file://{repository}{revision}{inner}", tmp_path / f"work{number}")
        assert found == (version, commit), revision
    work = tmp_path / "plain"
    work.mkdir()
    folder, origin = clone_project(f"{repository}@v1{inner}", work, builder)
    assert origin.source == f"git+file://{repository}#subdirectory=environments/my-env"
    assert not (folder / ".git").exists()


@pytest.mark.parametrize("wrong", ["#subdirectory=../..", "#subdirectory=nowhere"])
def test_a_missing_folder_of_a_repository_is_reported(repository, tmp_path, wrong):
    with pytest.raises(NotFound):
        brought(f"file://{repository}{wrong}", tmp_path / "work")


@pytest.mark.parametrize("wrong", ["{envs}@nothing", f"{{envs}}@{'0' * 40}", "{tmp}/nothing.git"])
def test_errors_of_git_are_printed(repository, tmp_path, wrong):
    address = wrong.format(envs=repository, tmp=tmp_path)
    with pytest.raises(ClientError) as refused:
        brought(f"file://{address}", tmp_path / "work")
    assert (refused.value.code, bool(refused.value.detail)) == ("git_failed", True)


def test_hooks_do_not_run_and_submodules_are_not_fetched(repository, tmp_path, monkeypatch, builder):
    clone = tmp_path / "clone"
    git(tmp_path, "clone", "-q", str(repository), str(clone))
    git(clone, "submodule", "add", "-q", str(repository), "inner")
    git(clone, "commit", "-q", "-m", "three")
    git(clone, "push", "-q", "origin", "main")
    marker = tmp_path / "ran"
    hook = tmp_path / "template" / "hooks" / "post-checkout"
    hook.parent.mkdir(parents=True)
    hook.write_text(f"#!/bin/sh\ntouch {marker}\n")
    hook.chmod(0o755)
    monkeypatch.setenv("GIT_TEMPLATE_DIR", str(hook.parents[1]))
    work = tmp_path / "work"
    work.mkdir()
    folder, _ = clone_project(f"file://{repository}@main", work, builder)
    assert (folder / ".gitmodules").is_file()
    assert not list((folder / "inner").iterdir())
    assert not marker.exists()


def test_a_link_out_of_a_repository_is_rejected(repository, tmp_path):
    clone = tmp_path / "clone"
    git(tmp_path, "clone", "-q", str(repository), str(clone))
    (clone / "secrets").symlink_to("/etc/passwd")
    git(clone, "add", ".")
    git(clone, "commit", "-q", "-m", "three")
    git(clone, "push", "-q", "origin", "main")
    with pytest.raises(ClientError, match="outside the folder"):
        brought(f"file://{repository}", tmp_path / "work")


@pytest.mark.parametrize(
    ("text", "url", "revision", "subdirectory"),
    [
        ("https://h/x.git@main#subdirectory=a/b", "https://h/x.git", "main", "a/b"),
        ("git+https://me@h/x.git", "https://me@h/x.git", None, None),
        ("https://me:secret@h/x@v1", "https://me:secret@h/x", "v1", None),
        ("git@h:team/x.git", "git@h:team/x.git", None, None),
        ("git@h:team/x.git@feature/y", "git@h:team/x.git", "feature/y", None),
        ("ssh://git@h:22/x.git@v2#egg=x&subdirectory=c", "ssh://git@h:22/x.git", "v2", "c"),
    ],
)
def test_repository_addresses_are_parsed(text, url, revision, subdirectory):
    found = parse_address(text)
    assert (found.url, found.revision, found.subdirectory) == (url, revision, subdirectory)
    assert "secret" not in found.shown


@pytest.mark.parametrize(
    "text", ["nothing-here", "ext::sh -c true", "-u x", "https://h/x.git@", "https://h/x@-o"]
)
def test_invalid_addresses_are_rejected(text):
    with pytest.raises(UsageError):
        parse_address(text)
