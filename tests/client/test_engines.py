"""Engines are found by their entry points, and loaded when an evaluation or its workers ask for one."""

from __future__ import annotations

import importlib.metadata
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from command_line import Wander
from wander_client.engines import GROUP

WORDS = ("-m", "scripted:say_env:solver", "-n", "1")


@pytest.fixture
def without_plugins(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hide the engines that are installed here."""
    entry_points = importlib.metadata.entry_points

    def others(**wanted: Any) -> Any:
        return () if wanted.get("group") == GROUP else entry_points(**wanted)

    monkeypatch.setattr(importlib.metadata, "entry_points", others)


@pytest.mark.usefixtures("without_plugins")
@pytest.mark.parametrize("option", [("--engine", "ray"), ("--worker", "ray://head:6379/2")])
def test_an_engine_that_is_not_installed_is_named(
    wander: Wander, folder: Path, option: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WANDER_HUB", "https://hub.example.org")
    done = wander("eval", str(folder), *WORDS, *option, "--json")
    error = done.json["error"]
    assert (done.status, error["code"]) == (1, "missing_plugin")
    index = "https://hub.example.org/wander/index/"
    assert error["hint"] == f"run `pip install --index-url {index} wander-ray`"


def test_commands_without_an_engine_import_no_engine(folder: Path) -> None:
    command = ["eval", str(folder), *WORDS]
    program = f"import sys; from wander_client.main import main; assert main({command}) == 0"
    done = subprocess.run(
        [sys.executable, "-c", f"{program}; assert 'wander_ray' not in sys.modules"],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr


def test_a_missing_ray_is_named(wander: Wander, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    error = wander("eval", str(folder), *WORDS, "--engine", "ray", "--json").json["error"]
    assert (error["code"], error["hint"]) == ("missing_extra", "install it: `pip install 'ray>=2.49'`")
