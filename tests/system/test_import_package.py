"""A package that is imported is tried out in a virtual environment of its own before it is published."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest
from command_line import ENVIRONMENT

pytestmark = pytest.mark.full

PROJECT = """
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "found-sayer"
version = "0.3.0"
description = "Say the number."
requires-python = ">=3.11"
license = "MIT"

[tool.hatch.build]
include = ["found_sayer.py"]
"""


def test_a_package_is_loaded_checked_published_and_installed(machine):
    folder = machine.home / "found-sayer"
    folder.mkdir()
    (folder / "found_sayer.py").write_text(ENVIRONMENT)
    (folder / "pyproject.toml").write_text(PROJECT)
    before = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.iterdir()}
    kept = machine.home / "kept"
    done = machine.wander("env", "import", "path", folder, "--out", kept, "-a", "size=5", "--no-sandbox")
    assert (done["library"], done["kind"], done["examples"]) == ("wander", "single_turn", 5)
    assert done["written"] == [
        "the entry point", "the dependency on `wander-sdk`", "`README.md`", "the note of origin"
    ]  # fmt: skip
    assert done["check"]["passed"] > 15
    assert "pydantic" in (kept / "pylock.toml").read_text()
    assert {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.iterdir()} == before

    shown = machine.wander("env", "info", "admin/found-sayer")
    assert shown["origin"].startswith("found-sayer, sha256 ")
    assert shown["version"]["check"]["passed"] == done["check"]["passed"]
    (installed,) = machine.wander("install", "admin/found-sayer")
    assert installed["fresh"]
    cached, *others = machine.wander("cache", "list")
    assert [(each["state"], each["environments"]) for each in others] == [("unreferenced", [])] * 2
    (build,) = [each for each in others if list(Path(each["path"]).glob("lib/*/site-packages/hatchling"))]
    (dependencies,) = [each for each in others if each is not build]
    shared = Path(dependencies["path"]) / "lib"
    compiled = {path.parent.parent.name for path in shared.rglob("*.pyc")}
    assert {"wander", "pydantic"} <= compiled, "what the check compiled is there for the next import"
    assert not list(shared.rglob("found_sayer*"))
    assert not list(Path(dependencies["path"]).parent.glob(".making-*"))
    assert [each["environment"] for each in cached["environments"]] == ["admin/found-sayer"]
    assert (cached["state"], cached["size"] > 1_000_000) == ("ok", True)
    (again,) = machine.wander("install", "admin/found-sayer")
    assert not again["fresh"]


def test_a_package_that_does_not_load_is_not_published(machine):
    folder = machine.home / "broken-sayer"
    folder.mkdir()
    (folder / "broken_sayer.py").write_text(ENVIRONMENT + "\nraise RuntimeError('it cannot be imported')\n")
    (folder / "pyproject.toml").write_text(PROJECT.replace("found", "broken"))
    assert "it cannot be imported" in machine.refused(1, "env", "import", "path", folder)
    machine.refused(3, "env", "info", "admin/broken-sayer")


def test_a_package_that_needs_a_variable_is_checked_with_it(machine, monkeypatch):
    folder = machine.home / "keyed-sayer"
    folder.mkdir()
    asking = "    import os\n\n    assert os.environ['SAYER_KEY'] == 'x'\n    rows ="
    opened = ENVIRONMENT.replace("    rows =", asking)
    (folder / "keyed_sayer.py").write_text(opened)
    (folder / "pyproject.toml").write_text(PROJECT.replace("found", "keyed"))
    line = ("env", "import", "path", folder, "--dry-run")
    assert "add `--pass-env SAYER_KEY`" in machine.refused(1, *line)
    monkeypatch.setitem(machine.extra, "SAYER_KEY", "x")
    assert machine.wander(*line, "--pass-env", "SAYER_KEY")["check"]["failed"] == 0
