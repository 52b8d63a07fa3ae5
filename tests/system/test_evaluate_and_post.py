"""Evaluate over a real HTTP endpoint, stop it in every way, resume, post, and read the leaderboard."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest
from chat_endpoint import chat_endpoint

EXAMPLES = 24


def reversing(messages: list[dict]) -> str:
    return f"<reversed_text>{messages[-1]['content'][::-1]}</reversed_text>"


def repeating(messages: list[dict]) -> str:
    return f"<reversed_text>{messages[-1]['content']}</reversed_text>"


def lines(run: Path) -> list[str]:
    """Return the lines of a run that was stopped, without one that was being written."""
    return (run / "rollouts.jsonl").read_text().rpartition("\n")[0].splitlines()


def kept(run: Path) -> list[tuple[str, int]]:
    return [(row["example_id"], row["index"]) for row in map(json.loads, lines(run))]


@pytest.fixture
def slow_run(machine, bundled):
    """An evaluation that has been going on for some rollouts, as (process, run folder, endpoint)."""
    machine.wander("install", "admin/reverse-text")
    with chat_endpoint(reversing, delay=0.15) as endpoint:
        run = machine.home / "runs" / "stopped"
        process = machine.start(
            "wander", "eval", "admin/reverse-text", "-m", "reverser", "-b", endpoint.base_url,
            "-n", EXAMPLES, "-c", 2, "--out", run,
        )  # fmt: skip
        give_up = time.monotonic() + 120
        while not (run / "rollouts.jsonl").exists() or len(kept(run)) < 4:
            assert process.poll() is None, process.stderr.read()
            assert time.monotonic() < give_up
            time.sleep(0.02)
        yield process, run, endpoint
        if process.poll() is None:
            process.kill()
        process.communicate()


def living_processes(home: Path) -> list[str]:
    listed = subprocess.run(["ps", "-ewwo", "pid=,args="], capture_output=True, text=True, check=True).stdout
    return [line for line in listed.splitlines() if str(home) in line and "ps -ewwo" not in line]


def test_a_model_behind_an_endpoint_is_evaluated_posted_and_ranked(machine, bundled, hub):
    for name, reply in (("repeater", repeating), ("reverser", reversing)):
        with chat_endpoint(reply) as endpoint:
            run = machine.home / "runs" / name
            machine.wander(
                "eval", "admin/reverse-text", "-m", name, "-b", endpoint.base_url, "-n", 12, "--out", run
            )
            asked = [one for one in endpoint.requests if one.get("max_tokens") != 1]  # the rest are warm-up
            assert len(asked) == 12
        posted = machine.wander("post", run)
        shutil.rmtree(run)
        # From what the hub stores alone, as a stranger would.
        again = machine.wander("runs", "replay", posted["run_id"])
        assert (again["level"], again["same"], again["differing"]) == ("replayed", 12, 0)
    rows = machine.wander("leaderboard", "admin/reverse-text")["rows"]
    assert [row["model"] for row in rows] == ["reverser", "repeater"]
    assert rows[0]["reward_mean"] == 1.0
    assert rows[0]["reward_low"] > rows[1]["reward_high"]
    assert [row["level"] for row in rows] == ["complete", "complete"]
    page = hub.get("/admin/reverse-text/leaderboard")
    assert page.status_code == 200
    assert page.text.index("reverser") < page.text.index("repeater")


@pytest.mark.full
def test_posting_twice_changes_nothing(machine, bundled):
    with chat_endpoint(reversing) as endpoint:
        run = machine.home / "runs" / "twice"
        machine.wander(
            "eval", "admin/reverse-text", "-m", "twice", "-b", endpoint.base_url, "-n", 3, "--out", run
        )
    first, second = machine.wander("post", run), machine.wander("post", run)
    assert first["run_id"] == second["run_id"]


@pytest.mark.full
@pytest.mark.parametrize("stop", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM], ids=lambda one: one.name)
def test_a_stopped_run_keeps_its_rollouts_and_resumes(machine, slow_run, stop):
    process, run, endpoint = slow_run
    os.kill(process.pid, stop)
    _, said = process.communicate(timeout=60)
    if stop != signal.SIGKILL:
        assert process.returncode == 130, said
        assert "hint: " in said
        assert "--resume" in said
    before = kept(run)
    assert 4 <= len(before) < EXAMPLES
    asked = len(endpoint.requests)
    done = {row["prompt"][-1]["content"] for row in map(json.loads, lines(run))}
    machine.wander("eval", "--resume", run)
    summary = json.loads((run / "summary.json").read_text())
    assert (summary["rollouts"], summary["expected"], summary["failed"]) == (EXAMPLES, EXAMPLES, 0)
    asked_again = {request["messages"][-1]["content"] for request in endpoint.requests[asked:]}
    assert not asked_again & done, "what was kept is not asked again"
    assert machine.wander("post", run)["level"] == "complete"


@pytest.mark.full
def test_no_process_outlives_a_killed_evaluation(machine, slow_run):
    process, _, _ = slow_run
    assert living_processes(machine.home)
    process.kill()
    process.communicate()
    give_up = time.monotonic() + 90
    while living := living_processes(machine.home):
        assert time.monotonic() < give_up, living
        time.sleep(0.1)
