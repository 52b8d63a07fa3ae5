"""A hub grades the run of an agent program again, in boxes of its own."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from chat_endpoint import chat_endpoint
from judging_hub import judging_hub, post, settled
from live_hub import LiveHub
from machine import Machine
from package_mirror import build_client_mirror
from sandboxes import needs_sandbox
from shell_agent import COMMAND, write_project
from wander.boxes.programs import install
from wander.evals.store.folder import RunFolder

pytestmark = [needs_sandbox, pytest.mark.full]
STEPS = ("echo done > out", "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT")


def work(messages: list[dict[str, Any]]) -> bytes | str:
    """Call the shell tool with the next command, then stop."""
    step = sum(message["role"] == "assistant" for message in messages)
    if step >= len(STEPS):
        return "finished"
    function = {"name": "bash", "arguments": json.dumps({"command": STEPS[step]})}
    call = {"id": f"call_{step}", "type": "function", "function": function}
    message = {"role": "assistant", "content": "", "tool_calls": [call]}
    usage = {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15}
    choice = {"index": 0, "finish_reason": "tool_calls", "message": message}
    answer = {"id": "chatcmpl-1", "object": "chat.completion", "created": 0, "model": "scripted"}
    return json.dumps({**answer, "choices": [choice], "usage": usage}).encode()


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[LiveHub, Machine]]:
    """A hub whose operator allows boxes, and the submitter's machine with the published environment."""
    mirror = build_client_mirror(tmp_path_factory.mktemp("mirror"))
    cache = tmp_path_factory.getbasetemp() / "uv-cache"
    settings = {"WANDER_HUB_BOXES": "bwrap", "WANDER_HUB_CHECK_VERSIONS": "false"}
    with judging_hub(tmp_path_factory.mktemp("judge"), mirror, cache, **settings) as judge:
        home = tmp_path_factory.mktemp("submitter")
        machine = Machine(home, judge, mirror, {"UV_CACHE_DIR": str(cache)})
        machine.wander("publish", write_project(home / "write-done"), "--no-check")
        yield judge, machine


def evaluated(machine: Machine, agent: str, *words: object, lazy: bool = False) -> Path:
    """Let an agent play with a scripted endpoint; return the run's folder."""
    with chat_endpoint((lambda messages: "finished") if lazy else work) as endpoint:
        model = ("-m", "scripted", "-b", endpoint.base_url)
        data = machine.wander("eval", "admin/write-done", "--agent", agent, *model, "-n", 2, *words)
    return machine.home / data["run_dir"]


def posted_run(hub: LiveHub, machine: Machine, folder: Path) -> dict[str, Any]:
    run = settled(hub, str(machine.wander("post", folder)["run_id"]))
    assert RunFolder.open(folder).manifest.environment.info.kind == "agent"
    return run


def test_a_run_of_an_agent_is_rescored_with_a_reason(hub) -> None:
    judge, machine = hub
    run = posted_run(judge, machine, evaluated(machine, COMMAND))
    assert run["level"] == "rescored", run["level_reason"]
    page = judge.get(f"/runs/{run['run_id']}").text
    assert "its agent program may read the clock, so the hub did not run the program again" in page


def test_a_run_of_an_agent_that_is_declared_deterministic_is_replayed(hub) -> None:
    judge, machine = hub
    run = posted_run(judge, machine, evaluated(machine, COMMAND, "-a", "deterministic=true"))
    assert run["level"] == "replayed", run["level_reason"]


def test_a_forged_reward_of_an_agent_run_gets_the_level_claimed(hub) -> None:
    judge, machine = hub
    folder = evaluated(machine, COMMAND, lazy=True)
    rollouts = [json.loads(one.model_dump_json()) for one in RunFolder.open(folder).rollouts_in_order()]
    assert [rollout["reward"] for rollout in rollouts] == [0.0, 0.0]
    for rollout in rollouts:
        rollout["reward"] = rollout["metrics"]["solved"] = 1.0
    manifest = json.loads((folder / "run.json").read_text())
    assert post(judge, manifest, rollouts).status_code == 201
    run = settled(judge, manifest["run_id"])
    assert run["level"] == "claimed", run["level_reason"]


@pytest.mark.slow  # installs the program from PyPI
def test_a_run_of_mini_swe_agent_is_rescored(hub, monkeypatch) -> None:
    judge, machine = hub
    monkeypatch.setenv("WANDER_CACHE_DIR", machine.environment["WANDER_CACHE_DIR"])
    install("mini-swe-agent")
    run = posted_run(judge, machine, evaluated(machine, "mini-swe-agent"))
    assert run["level"] == "rescored", run["level_reason"]
