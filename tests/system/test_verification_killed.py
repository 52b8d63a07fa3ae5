"""A hub that is killed with -9 while it plays a run again: the next start takes the job up, and ends it."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from judging_hub import PATIENCE, settled
from live_hub import LiveHub, hub_command, live_hub, run_hub, start_program
from machine import Machine
from postgres_server import postgres_server
from small_project import pyproject
from warm_programs import ForkedCommand

pytestmark = pytest.mark.full

MODULE = """
import subprocess
import time
from pathlib import Path
from wander import MultiTurnEnv, Rubric

def length(completion):
    return float(len(completion))

def parrot(request):
    return "again " * 40

class Env(MultiTurnEnv):
    def env_response(self, messages, state):
        Path("@gate@.reached").touch()
        while not Path("@gate@").exists():
            time.sleep(0.05)
        return [{"role": "user", "content": "go on"}]

def load_environment(notes=None):
    return Env(eval_dataset=[{"question": f"q{i}"} for i in range(6)], rubric=Rubric([length]), max_turns=2)
"""


def until(holds: Callable[[], bool], what: str, hub: LiveHub | None = None) -> None:
    give_up = time.monotonic() + PATIENCE
    while not holds():
        log = hub.log.read_text()[-3000:] if hub is not None else ""
        assert time.monotonic() < give_up, f"never: {what}\n{log}"
        time.sleep(0.1)


def processes_with(word: str) -> list[int]:
    """Return the processes that have the word on their command line."""
    found = []
    for place in Path("/proc").glob("[0-9]*"):
        try:
            line = (place / "cmdline").read_bytes()
        except OSError:  # it ended meanwhile
            continue
        if word.encode() in line:
            found.append(int(place.name))
    return found


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.slow)])
def settings(request: pytest.FixtureRequest, mirror: str, tmp_path_factory: Any) -> Any:
    """Settings of a hub that verifies, on either database; a file is the gate, so not in a sandbox."""
    with ExitStack() as stack:
        chosen = {
            "WANDER_HUB_VERIFICATION": "unconfined",
            "WANDER_HUB_CHECK_VERSIONS": "false",
            "WANDER_HUB_JOB_LEASE_SECONDS": "5",
            "UV_DEFAULT_INDEX": mirror,
            "UV_CACHE_DIR": str(tmp_path_factory.getbasetemp() / "uv-cache"),
        }
        if request.param == "postgresql":
            server = stack.enter_context(postgres_server())
            chosen["WANDER_HUB_DATABASE_URL"] = stack.enter_context(server.database())
        yield chosen


def published(machine: Machine, gate: Path) -> None:
    folder = machine.home / "gated-env"
    folder.mkdir()
    (folder / "pyproject.toml").write_text(pyproject("gated-env"))
    (folder / "README.md").write_text("# gated-env\n")
    (folder / "gated_env.py").write_text(MODULE.replace("@gate@", str(gate)))
    machine.wander("publish", folder, "--no-check", "--no-lock")


def posted(machine: Machine, gate: Path, *words: str) -> str:
    """Post a run that was played while the gate was open, and shut it; returns the run's id."""
    model = "scripted:gated_env:parrot"
    run = machine.wander("eval", "admin/gated-env", "-m", model, "-n", 6, *words)
    gate.unlink()
    Path(f"{gate}.reached").unlink()
    return str(machine.wander("post", machine.home / run["run_dir"])["run_id"])


def test_a_verification_survives_the_death_of_the_hub(
    settings: dict[str, str], mirror: str, tmp_path: Path
) -> None:
    gate, home = tmp_path / "gate", tmp_path / "home"
    reached = Path(f"{gate}.reached")
    home.mkdir()
    gate.touch()
    with live_hub(tmp_path / "hub", **settings) as hub:
        machine = Machine(home, hub, mirror, {"UV_CACHE_DIR": settings["UV_CACHE_DIR"]})
        published(machine, gate)
        run_id = posted(machine, gate)
        until(reached.exists, "the hub plays the run again", hub)
        (running,) = hub.get(f"/api/v1/runs/{run_id}/verifications").json()["data"]
        assert running["state"] == "running"
        os.kill(hub.process.pid, signal.SIGKILL)
        hub.process.wait()
        until(lambda: not processes_with(run_id), "what the hub had started has ended")
        gate.touch()
    with live_hub(tmp_path / "hub", **settings) as hub:
        found = settled(hub, run_id)
        assert found["level"] == "replayed", found["level_reason"]
        (again,) = hub.get(f"/api/v1/runs/{run_id}/verifications").json()["data"]
        assert again["id"] == running["id"]
        assert (again["report"]["same"], again["report"]["differing"]) == (6, 0)
        board = hub.get("/api/v1/environments/admin/gated-env/leaderboard?runs=all").json()
        assert [(row["run_id"], row["level"]) for row in board["rows"]] == [(run_id, "replayed")]
        tokens = hub.get("/api/v1/tokens").json()["data"]
        left = [one["name"] for one in tokens if one["name"].startswith("verification")]
        assert left == [], "what the killed hub had left is gone too"
    run_hub(tmp_path / "hub", "fsck", **settings)


@pytest.mark.timeout(900)
def test_a_verification_survives_the_death_of_its_worker_and_of_the_hub(
    mirror: str, tmp_path: Path, tmp_path_factory: Any
) -> None:
    gate, home, data = tmp_path / "gate", tmp_path / "home", tmp_path / "hub"
    reached = Path(f"{gate}.reached")
    home.mkdir()
    gate.touch()
    with ExitStack() as stack:
        url = stack.enter_context(stack.enter_context(postgres_server()).database())
        settings = {
            "WANDER_HUB_DATABASE_URL": url,
            "WANDER_HUB_SERVE_JOBS": "false",
            "WANDER_HUB_JOB_LEASE_SECONDS": "5",
            "WANDER_HUB_VERIFICATION": "unconfined",
            "WANDER_HUB_VERIFICATION_FOLDER": str(tmp_path / "elsewhere"),
            "WANDER_HUB_CHECK_VERSIONS": "false",
            "UV_DEFAULT_INDEX": mirror,
            "UV_CACHE_DIR": str(tmp_path_factory.getbasetemp() / "uv-cache"),
        }

        def start_worker(hub: LiveHub) -> subprocess.Popen[bytes] | ForkedCommand:
            command, environment = hub_command(data, "work", "--hub", hub.url)
            log = stack.enter_context((tmp_path / "work.log").open("ab"))
            process = start_program(command, environment | settings, log)
            stack.callback(process.wait)
            stack.callback(process.kill)
            return process

        with live_hub(data, **settings) as hub:
            machine = Machine(home, hub, mirror, {"UV_CACHE_DIR": settings["UV_CACHE_DIR"]})
            published(machine, gate)
            run_id = posted(machine, gate)
            first = start_worker(hub)
            until(reached.exists, "the first worker plays the run again", hub)
            reached.unlink()
            first.kill()
            first.wait()
            until(lambda: not processes_with(run_id), "what the first worker had started has ended")
            second = start_worker(hub)
            until(reached.exists, "the second one takes it up", hub)
            os.kill(hub.process.pid, signal.SIGKILL)
            hub.process.wait()
        gate.touch()
        with live_hub(data, **settings) as hub:
            found = settled(hub, run_id)
            assert found["level"] == "replayed", found["level_reason"]
            (once,) = hub.get(f"/api/v1/runs/{run_id}/verifications").json()["data"]
            assert (once["report"]["same"], once["report"]["differing"]) == (6, 0)
            second.send_signal(signal.SIGTERM)
            assert second.wait(PATIENCE) == 0


def test_a_hub_without_a_sandbox_opens_no_file_that_a_run_names(mirror: str, tmp_path: Path) -> None:
    """The run says so at its page, and does not wait for a sandbox for ever."""
    gate, home = tmp_path / "gate", tmp_path / "home"
    home.mkdir()
    gate.touch()
    settings = {
        "WANDER_HUB_VERIFICATION": "unconfined",
        "WANDER_HUB_CHECK_VERSIONS": "false",
        "UV_DEFAULT_INDEX": mirror,
    }
    with live_hub(tmp_path / "hub", **settings) as hub:
        machine = Machine(home, hub, mirror, {})
        published(machine, gate)
        run_id = posted(machine, gate, "-a", f"notes={gate}")
        found = settled(hub, run_id)
        assert found["level"] == "unverifiable"
        assert "`notes`" in found["level_reason"]
