"""Folders that are only read, that two machines share, or that lie on another file system."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

BWRAP = shutil.which("bwrap")
pytestmark = pytest.mark.skipif(BWRAP is None, reason="bubblewrap mounts folders that are only read")


def confined(machine, mounts: list[str], *words: object, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Run `wander` with some mounts on a machine."""
    view = [str(BWRAP), "--dev-bind", "/", "/", *mounts]
    return subprocess.run(
        [*view, *machine.command("wander", *words)],
        cwd=cwd,
        env=machine.environment,
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        timeout=200,
    )


def data_of(done: subprocess.CompletedProcess[str]) -> Any:
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout)["data"]


def read_only(*folders: Path) -> list[str]:
    return [word for one in folders for word in ("--ro-bind", str(one), str(one))]


@pytest.mark.full
def test_installed_environments_run_from_read_only_folders(machine, bundled, tmp_path):
    for name in ("config", "cache", "state"):
        (machine.home / name).mkdir(exist_ok=True)
    (installed,) = machine.wander("install", "admin/tictactoe")
    everything = read_only(machine.home)
    evaluation = ("-m", "scripted:tictactoe.players:optimal", "-n", 1, "--json")
    for words in (
        ("env", "list", "--json"),
        ("install", "admin/tictactoe", "--json"),
        ("eval", "admin/tictactoe", *evaluation),
        ("eval", f"admin/tictactoe@{installed['version']}", *evaluation),
    ):
        data_of(confined(machine, everything, *words, cwd=tmp_path))
    refused = confined(machine, everything, "install", "admin/reverse-text", cwd=tmp_path)
    assert refused.returncode != 0
    assert "Traceback" not in refused.stderr + refused.stdout
    assert "this is a bug" not in refused.stderr
    assert str(machine.home / "data") in refused.stderr


def test_a_cache_on_another_file_system_works(machine, bundled, tmp_path):
    (machine.home / "cache").mkdir(exist_ok=True)
    other = ["--tmpfs", str(machine.home / "cache")]
    done = confined(machine, other, "install", "admin/tictactoe", "--json", cwd=tmp_path)
    assert "tictactoe" in json.dumps(data_of(done))
