"""The digest of a source tree: order makes no difference, and no two trees are written alike."""

from __future__ import annotations

import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st
from wander.wire.source_tree import TreeEntry, frame_entries, is_source, tree_digest

# Few characters, digests that hold frames of other entries, and paths of every length: what would confuse a
# writer that separates fields instead of counting them.
paths = st.text(alphabet="ab/xf\x00é\n", max_size=12)
digests = st.one_of(
    st.binary(min_size=32, max_size=32),
    st.builds(
        lambda path, fill: ((7).to_bytes(8, "big") + path.encode() + b"x" + fill)[:32].ljust(32, b"f"),
        paths,
        st.binary(min_size=20, max_size=32),
    ),
)
entries = st.builds(TreeEntry, paths, st.booleans(), digests)
trees = st.lists(entries, max_size=6, unique_by=lambda one: one.path)


@given(trees.flatmap(lambda tree: st.tuples(st.just(tree), st.permutations(tree))))
def test_the_order_of_files_does_not_matter(pair: tuple[list[TreeEntry], list[TreeEntry]]) -> None:
    tree, shuffled = pair
    assert tree_digest(tree) == tree_digest(shuffled)


def parsed(text: bytes) -> list[TreeEntry]:
    """Read a tree back from its frames."""
    header = b"wander.source-tree/1\n"
    assert text.startswith(header)
    at, found = len(header), []
    while at < len(text):
        length = int.from_bytes(text[at : at + 8], "big")
        end = at + 8 + length
        kind = {b"x": True, b"f": False}[text[end : end + 1]]
        found.append(TreeEntry(text[at + 8 : end].decode(), kind, text[end + 1 : end + 33]))
        at = end + 33
    return found


@given(trees)
def test_a_tree_can_be_read_back_from_its_frames(tree: list[TreeEntry]) -> None:
    """So no two trees have the same frames."""
    assert parsed(b"".join(frame_entries(tree))) == sorted(tree, key=lambda one: one.path.encode())


@given(trees, trees)
def test_other_trees_have_other_frames(one: list[TreeEntry], other: list[TreeEntry]) -> None:
    same = sorted(one) == sorted(other)
    assert (b"".join(frame_entries(one)) == b"".join(frame_entries(other))) == same


def test_the_digest_is_the_documented_one() -> None:
    content = hashlib.sha256(b"print()\n").digest()
    frames = b"wander.source-tree/1\n"
    for path, kind in ((b"a.py", b"f"), (b"run.sh", b"x")):
        frames += len(path).to_bytes(8, "big") + path + kind + content
    tree = [TreeEntry("run.sh", True, content), TreeEntry("a.py", False, content)]
    assert tree_digest(tree) == hashlib.sha256(frames).hexdigest()


def test_invalid_trees_are_rejected() -> None:
    entry = TreeEntry("a", False, bytes(32))
    with pytest.raises(ValueError, match="twice"):
        tree_digest([entry, entry])
    with pytest.raises(ValueError, match="bytes"):
        tree_digest([TreeEntry("a", False, b"short")])


def test_files_written_by_build_backends_are_not_source() -> None:
    odd = ["PKG-INFO", "src/x.egg-info/SOURCES.txt", "x.egg-info/PKG-INFO"]
    assert not any(is_source(path) for path in odd)
    assert all(is_source(path) for path in ["x/PKG-INFO", "x.egg-info", "setup.cfg", "pyproject.toml", ""])
