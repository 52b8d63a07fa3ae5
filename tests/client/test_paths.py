"""What a stranger names becomes a path below a folder of ours, or nothing."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from wander_client.errors import ClientError
from wander_client.paths import path_below

BAD = [
    "",
    ".",
    "..",
    "../x",
    "a/b",
    "/x",
    ".hidden",
    "a\n",
    "a\x00",
    "~",
    "-rf",
    "a\\b",
    "é",
    "a b",
    "x" * 256,
    "$A",
]


@pytest.mark.parametrize("bad", BAD)
@pytest.mark.parametrize("place", range(3))
def test_only_plain_names_are_accepted(tmp_path: Path, bad: str, place: int) -> None:
    parts = ["a", "b", "c"]
    parts[place] = bad
    with pytest.raises(ClientError) as refused:
        path_below(tmp_path / "root", *parts)
    assert refused.value.code == "unsafe_path"
    assert list(tmp_path.iterdir()) == [], "nothing is made before all is known"


@given(parts=st.lists(st.text(max_size=8), min_size=1, max_size=4))
def test_every_path_stays_below_the_root(tmp_path_factory: pytest.TempPathFactory, parts: list[str]) -> None:
    root = tmp_path_factory.mktemp("root")
    try:
        found = path_below(root, *parts)
    except ClientError:
        return
    assert found.resolve().is_relative_to(root.resolve())
    assert len(found.relative_to(root).parts) == len(parts)


def test_parent_folders_are_created_but_not_the_last_part(tmp_path: Path) -> None:
    found = path_below(tmp_path / "root", "a", "b", "c.whl")
    assert found.parent.is_dir()
    assert not found.exists()
    found.write_text("x")
    assert path_below(tmp_path / "root", "a", "b", "c.whl") == found


@pytest.mark.parametrize("place", range(3))
@pytest.mark.parametrize("kind", ["link to a folder", "dangling link", "link to a file", "pipe", "socket"])
def test_symbolic_links_are_not_followed(tmp_path: Path, place: int, kind: str) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "file").write_text("precious")
    parts = ["a", "b", "c"]
    spot = tmp_path.joinpath("root", *parts[: place + 1])
    spot.parent.mkdir(parents=True)
    if kind == "pipe":
        os.mkfifo(spot)
    elif kind == "socket":
        os.mknod(spot, 0o140600)
    else:
        targets = {
            "link to a folder": outside,
            "dangling link": outside / "new",
            "link to a file": outside / "file",
        }
        spot.symlink_to(targets[kind])
    with pytest.raises(ClientError) as refused:
        path_below(tmp_path / "root", *parts)
    assert refused.value.code == "unsafe_path"
    assert sorted(outside.iterdir()) == [outside / "file"]


def test_a_file_in_place_of_a_folder_is_rejected(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("x")
    with pytest.raises(ClientError) as refused:
        path_below(tmp_path, "a", "b")
    assert refused.value.code == "unsafe_path"


def test_the_root_may_be_a_symbolic_link(tmp_path: Path) -> None:
    """A user may keep the cache on another disk."""
    (tmp_path / "disk").mkdir()
    (tmp_path / "cache").symlink_to(tmp_path / "disk")
    assert path_below(tmp_path / "cache", "a", "b").parent.resolve() == tmp_path / "disk" / "a"
