"""Runs on a real hub that a new version of their environment grades again."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import httpx
import pytest
from chat_endpoint import chat_endpoint
from command_line import ENVIRONMENT, HubRoom, make_wheel
from live_hub import LiveHub
from machine import Machine

pytestmark = [pytest.mark.full, pytest.mark.timeout(900)]

EXACT = 'completion[-1]["content"] == answer'
LENIENT = 'completion[-1]["content"].strip("!") == answer'
"""How the versions of the environment grade an answer."""


def test_a_new_grader_makes_a_new_board_from_old_rollouts(
    machine: Machine, hub: LiveHub, tmp_path: Path
) -> None:
    with httpx.Client(base_url=hub.url) as http:
        room = HubRoom(cast(Any, http), hub.token, cast(Any, None))
        for version, grader in (("0.1.0", EXACT), ("0.2.0", LENIENT)):
            module = ENVIRONMENT.replace(EXACT, grader)
            room.publish(make_wheel(tmp_path, "say-again", version, module))
    with chat_endpoint(lambda messages: f"{messages[-1]['content'].split()[-1]}!") as endpoint:
        machine.wander(
            *("eval", "admin/say-again@0.1.0", "-m", "echo", "-b", endpoint.base_url, "-n", 4, "-r", 2),
            *("--out", machine.home / "run"),
        )
        posted = machine.wander("post", machine.home / "run")
        asked = len(endpoint.requests)
        words = ("runs", "regrade", "--env", "admin/say-again@0.2.0", posted["run_id"])
        (plan,) = machine.wander(*words, "--dry-run")["runs"]
        assert (plan["graded"], plan["changed"], plan["after_run"]) == (8, 8, None)
        (regraded,) = machine.wander(*words, "--post")["runs"]
        assert (regraded["graded"], regraded["changed"], regraded["complete"]) == (8, 8, True)
        assert len(endpoint.requests) == asked, "no model is called"
    board = hub.get("/api/v1/environments/admin/say-again/leaderboard?version=0.2.0").json()
    (row,) = board["rows"]
    assert (row["run_id"], row["model"], row["reward_mean"]) == (regraded["after_run"], "echo", 1.0)
    page = hub.get(regraded["compare_url"].removeprefix(hub.url))
    assert page.status_code == 200
    assert page.text.count("<h3>Example ") == 4, "the page compares every example"
    said = machine.refused(2, *words[:3], "admin/say-again@0.1.0", machine.home / "run")
    assert "already graded by version 0.1.0" in said
