"""An installed environment in the sandbox: the same rollouts, on record as confined, through to the hub."""

from __future__ import annotations

import json

import httpx
import pytest
from chat_endpoint import chat_endpoint
from sandboxes import needs_sandbox
from wander.evals.store.folder import RunFolder


def reversing(messages: list[dict]) -> str:
    return f"<reversed_text>{messages[-1]['content'][::-1]}</reversed_text>"


@pytest.mark.full  # tests/client/test_sandbox_command.py, within the process
@needs_sandbox
def test_an_installed_environment_runs_in_the_sandbox(machine, bundled, hub):
    with chat_endpoint(reversing) as endpoint:
        ask = ["eval", "admin/reverse-text", "-m", "reverser", "-b", endpoint.base_url, "-n", 6]
        plain, confined = machine.home / "runs" / "plain", machine.home / "runs" / "confined"
        again = machine.home / "runs" / "again"
        outside = [("--out", plain, "--no-sandbox"), ("--out", again, "--no-sandbox")]
        done = [machine.run("wander", *ask, *words) for words in (*outside, ("--out", confined))]
    assert [each.returncode for each in done] == [0, 0, 0], done
    assert ["--sandbox" in each.stderr for each in done] == [True, False, False], "it is said once"
    kept = []
    for run in (plain, confined):
        rollouts = RunFolder.open(run).rollouts()
        kept.append({each.example_id: (each.completion, each.reward, each.failure) for each in rollouts})
    assert kept[0] == kept[1]
    assert len(kept[0]) == 6
    assert json.loads((plain / "run.json").read_text())["environment"]["sandbox"] is None
    pin = json.loads((confined / "run.json").read_text())["environment"]["sandbox"]
    assert pin["tier"] == "bubblewrap"
    machine.wander("post", confined)
    run_id = json.loads((confined / "run.json").read_text())["run_id"]
    page = httpx.get(f"{hub.url}/api/v1/runs/{run_id}").raise_for_status().json()
    assert page["manifest"]["environment"]["sandbox"] == pin
