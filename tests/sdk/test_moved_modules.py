"""Old import paths lead to the modules that were moved, and say where these are now."""

from __future__ import annotations

import importlib
import subprocess
import sys

import pytest
from wander.moved import MOVED, new_name

OLD = """import wander.compat.verifiers as vf
from wander.compat.verifiers import Rubric
print(vf.Rubric is Rubric)
"""


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("wander.compat", "wander_compat"),
        ("wander.compat.verifiers", "wander_compat.verifiers"),
        ("wander.compat.taskset_harness", "wander_compat.tasksets.harness"),
        ("wander.compatible", None),
        ("wander", None),
    ],
)
def test_the_longest_old_name_decides(old: str, new: str | None) -> None:
    assert new_name(old) == new


@pytest.mark.parametrize("old", [*MOVED, "wander.compat.verifiers", "wander.compat.alias"])
def test_an_old_name_gives_the_very_module_and_warns(old: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [each for each in sys.modules if each.startswith(("wander.compat", old))]:
        monkeypatch.delitem(sys.modules, name)
    with pytest.warns(DeprecationWarning, match="has moved: import") as warned:
        found = importlib.import_module(old)
    assert str(warned[-1].message) == f"`{old}` has moved: import `{new_name(old)}`"
    assert found is importlib.import_module(str(new_name(old)))


def test_code_of_before_runs_and_is_told_where_it_stands(tmp_path) -> None:
    script = tmp_path / "old.py"
    script.write_text(OLD)
    command = [sys.executable, "-W", "always", script]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout == "True\n"
    assert "old.py:1: DeprecationWarning: `wander.compat.verifiers` has moved" in done.stderr


def test_nothing_is_imported_before_an_old_name_is_asked_for() -> None:
    probe = "import sys, wander; print([m for m in sys.modules if 'compat' in m])"
    done = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_name_that_never_was_is_no_module() -> None:
    with pytest.raises(ModuleNotFoundError, match=r"wander\.nothing"):
        importlib.import_module("wander.nothing")
