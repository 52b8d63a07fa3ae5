"""A whole hub that an ordinary user runs, as the guides advise: it publishes, replays and ranks a run."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from judging_hub import confined, settled
from live_hub import LiveHub, hub_command, live_hub
from machine import Machine
from package_mirror import build_client_mirror

pytestmark = pytest.mark.full

TICTACTOE = Path(__file__).resolve().parents[2] / "environments" / "tictactoe"
USER = 61_236
BOARD = "/api/v1/environments/admin/tictactoe/leaderboard"


@pytest.fixture
def served() -> Iterator[tuple[LiveHub, str]]:
    """A hub of the user, in a folder that this user can reach, and the index for it and its visitors."""
    if os.geteuid() != 0:
        pytest.skip("only root can start a hub as another user; this user's own hub is tested elsewhere")
    if confined() != "sandbox":
        pytest.skip("this machine has no sandbox: `wander sandbox check` says why")
    with tempfile.TemporaryDirectory(dir="/tmp", prefix="wander-test-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        for own in ("hub", "cache", "home"):
            (folder / own).mkdir()
            os.chown(folder / own, USER, USER)
        command, environment = hub_command(folder / "hub", "version", uid=USER)
        tried = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        if tried.returncode != 0:
            pytest.skip(f"cannot become an ordinary user here: {tried.stderr.splitlines()[-1]}")
        mirror = build_client_mirror(folder / "mirror")
        settings = {"HOME": str(folder / "home"), "TMPDIR": str(folder / "home")}
        settings |= {"UV_CACHE_DIR": str(folder / "cache"), "UV_DEFAULT_INDEX": mirror}
        with live_hub(folder / "hub", uid=USER, WANDER_HUB_VERIFICATION="sandbox", **settings) as hub:
            yield hub, mirror


def test_an_ordinary_users_hub_replays_a_run_in_its_sandbox(
    served: tuple[LiveHub, str], tmp_path: Path
) -> None:
    hub, mirror = served
    assert Path(f"/proc/{hub.process.pid}").stat().st_uid == USER
    machine = Machine(tmp_path, hub, mirror, {"UV_CACHE_DIR": str(tmp_path / "uv-cache")})
    ignored = shutil.ignore_patterns("__pycache__", "build", "dist")
    source = shutil.copytree(TICTACTOE, tmp_path / "tictactoe", ignore=ignored)
    machine.wander("publish", source, "--no-check")
    machine.wander(
        "eval", "admin/tictactoe@0.1.0", "-m", "scripted:tictactoe.players:careless",
        "-n", 3, "--out", tmp_path / "run",
    )  # fmt: skip
    posted = machine.wander("post", tmp_path / "run")
    run = settled(hub, posted["run_id"])
    assert run["level"] == "replayed", run["level_reason"]
    (row,) = hub.get(BOARD).json()["rows"]
    assert (row["run_id"], row["level"]) == (run["run_id"], "replayed")
    served_files = [path for path in hub.data.rglob("*") if path != hub.log]
    assert {path.lstat().st_uid for path in served_files} == {USER}
