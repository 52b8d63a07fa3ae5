"""The walks of docs/walks.md: their files and functions exist, their numbers are right."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SECTIONS = re.split(r"(?m)^## ", (ROOT / "docs/walks.md").read_text())[1:]
WALKS = {section.partition("\n")[0]: section for section in SECTIONS}
OTHERS = ("python -m wander.worker", "load_environment", "Load", "Hello")
"""What stands in backticks in a clause and is no function of the row's file."""


def rows(walk):
    return re.findall(r"(?m)^\| `([^`]+\.py)` \| `([^`]+)` \| (.+) \|$", walk)


def defined(path):
    """Return every name that a file defines, those in a class as `Class.name` too."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ClassDef):
            found |= {f"{node.name}.{each.name}" for each in node.body if hasattr(each, "name")}
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            found.add(node.name)
    return found


def test_there_are_four_walks():
    assert len(WALKS) == 4


@pytest.mark.parametrize("walk", WALKS.values(), ids=WALKS)
def test_a_walk_names_what_there_is(walk):
    files = [file for file, _, _ in rows(walk)]
    assert [int(number) for number in re.findall(r"(?m)^(\d+) files\.", walk)] == [len(files)]
    assert len(files) == walk.count("\n|") - 2  # every row but the two of the head
    assert sorted(set(files)) == sorted(files)
    missing = []
    for file, function, clause in rows(walk):
        named = [function, *(each for each in re.findall(r"`([^`]+)`", clause) if each not in OTHERS)]
        known = defined(ROOT / file) if (ROOT / file).is_file() else set()
        missing += [(file, name) for name in named if name not in known]
    assert missing == []
