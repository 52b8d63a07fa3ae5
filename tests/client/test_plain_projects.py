"""Only plain files of a project's folder enter a build; every reader of a folder refuses or skips others."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from command_line import Wander
from received_folders import make_socket, sparse
from wander.checks.code import find_code_uses
from wander_client.errors import ClientError
from wander_client.evaluate.evaluation import source_digests
from wander_client.packages.building import build
from wander_client.packages.building.backend import _find_left_out
from wander_client.packages.building.build import require_plain_project
from wander_client.packages.library_use import read_source

Put = Callable[[Path], object]


def link_to(target: str) -> Put:
    return lambda path: path.symlink_to(target)


PUTS: dict[str, Put] = {
    "a FIFO": os.mkfifo,
    "a socket": make_socket,
    "a link to a file elsewhere": link_to("/etc/hostname"),
    "a link to a device": link_to("/dev/zero"),
    "a link to all files": link_to("/"),
    "a link to the folder above": link_to("../.."),
    "a link to itself": lambda path: path.symlink_to(path.name),
    "a link to its folder": link_to("."),
    "a link to nothing": link_to("nothing"),
    "10 GB of holes": sparse(10 << 30),
}
PLACES = ["data.bin", "say_env.d/data.bin", "a/b/c/data.py", ".gitignore", ".hidden/x"]


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("put", PUTS)
def test_the_special_file_that_makes_a_project_unsafe_is_named(put: str, place: str, folder: Path) -> None:
    (folder / place).parent.mkdir(parents=True, exist_ok=True)
    PUTS[put](folder / place)
    with pytest.raises(ClientError) as refused:
        require_plain_project(folder)
    assert refused.value.code in ("unsafe_file", "unsafe_package")
    assert f"`{place}`" in str(refused.value)
    assert refused.value.hint


def test_unreadable_files_are_named(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "access", lambda path, mode: not path.endswith("README.md"))  # root reads all
    with pytest.raises(ClientError) as refused:
        require_plain_project(folder)
    assert refused.value.code == "unsafe_file"
    assert "`README.md`" in str(refused.value)


@pytest.mark.parametrize(
    "put", ["a FIFO", "a socket", "a link to a device", "a link to its folder", "10 GB of holes"]
)
def test_commands_announce_a_build_before_it_starts(put: str, folder: Path, wander: Wander) -> None:
    PUTS[put](folder / "data.bin")
    for words in (
        ("publish", "./say-env", "--dry-run"),
        ("env", "import", "path", "./say-env", "--dry-run", "--owner", "me", "--no-sandbox"),
    ):
        ended = wander(*words, "--json")
        assert ended.status != 0, words
        assert ended.json["error"]["code"] in ("unsafe_file", "unsafe_package"), words
        assert "data.bin" in ended.json["error"]["message"], words


def test_symbolic_links_between_two_folders_are_a_cycle(folder: Path) -> None:
    for one, other in (("a", "b"), ("b", "a")):
        (folder / one).mkdir()
        (folder / one / "more").symlink_to(f"../{other}")
    with pytest.raises(ClientError) as refused:
        require_plain_project(folder)
    assert refused.value.code == "unsafe_file"


def test_folders_with_many_symbolic_links_are_visited_once(folder: Path) -> None:
    for number in range(40):  # followed each time, these are 2 ** 40 folders
        (folder / str(number)).mkdir()
        for name in "xy":
            if number < 39:
                (folder / str(number) / name).symlink_to(f"../{number + 1}")
    require_plain_project(folder)


def test_ordinary_links_and_files_that_no_build_reads_are_accepted(folder: Path) -> None:
    (folder / "again.md").symlink_to("README.md")
    (folder / "data").mkdir()
    (folder / "same").symlink_to("data")
    for name in (".git", ".venv", "__pycache__", "node_modules"):
        (folder / name).mkdir()
        os.mkfifo(folder / name / "pipe")
        (folder / name / "out").symlink_to("/etc")
    require_plain_project(folder)


def test_too_many_files_are_rejected(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "MOST_FILES", 5)
    for number in range(6):
        (folder / str(number)).touch()
    with pytest.raises(ClientError) as refused:
        require_plain_project(folder)
    assert refused.value.code == "unsafe_package"


def test_ignored_files_may_be_special_but_are_not_copied_to_the_sandbox(folder: Path) -> None:
    (folder / ".gitignore").write_text("runs/\n")
    (folder / "runs").mkdir()
    sparse(10 << 30)(folder / "runs" / "model.safetensors")
    os.mkfifo(folder / "runs" / "pipe")
    require_plain_project(folder, with_ignored=False)
    with pytest.raises(ClientError):
        require_plain_project(folder)


def test_special_files_of_a_repository_are_not_copied(folder: Path) -> None:
    make_socket(folder / "daemon.ipc")
    assert _find_left_out(str(folder), os.listdir(folder)) == {"daemon.ipc"}


# Readers that build nothing.


@pytest.mark.parametrize(
    "put", ["a FIFO", "a socket", "a link to a device", "a link to itself", "10 GB of holes"]
)
def test_sources_are_read_or_skipped(put: str, folder: Path) -> None:
    PUTS[put](folder / "other.py")
    assert find_code_uses(str(folder)) == []
    assert read_source(folder / "other.py").body == []
    digests = source_digests(folder)
    assert digests.keys() == {"pyproject.toml", "say_env.py", "README.md", "other.py"}


@pytest.mark.parametrize(
    "text", ["-" * 100_000 + "1", "a" + ".b" * 600, "a" + "[0]" * 900, "(" * 900, "not " * 50_000 + "1"]
)
def test_sources_that_nest_deep_are_skipped(text: str, folder: Path) -> None:
    from wander_client.packages import library_use

    (folder / "other.py").write_text(f"from verifiers import x as a\n__all__ = {text}\n")
    tree = read_source(folder / "other.py")
    library_use.library_of([tree])
    library_use.names_used(tree, "verifiers")
    assert library_use.list_exports(tree) == []
    assert find_code_uses(str(folder)) == []


def test_a_check_skips_special_files(folder: Path, wander: Wander) -> None:
    os.mkfifo(folder / "pipe.py")
    sparse(10 << 30)(folder / "zeros.py")
    ended = wander("check", "./say-env", "--json")
    found = {each["id"]: each["status"] for each in ended.data["checks"]}
    assert found["load.works"] == found["sources.random"] == found["determinism.replay"] == "pass"


def test_an_evaluation_skips_special_files(folder: Path, wander: Wander) -> None:
    os.mkfifo(folder / "pipe.py")
    sparse(10 << 30)(folder / "zeros.bin")
    (folder / "up").symlink_to(".")
    assert wander("eval", "./say-env", "-m", "scripted:say_env:solver", "-n", "1", "--json").status == 0
