"""A policy is trained and evaluated here, pushed, and pulled by somebody else, for whom it plays the same."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from live_hub import make_token, run_hub
from machine import Machine
from wander.evals.store.folder import RunFolder

pytestmark = [pytest.mark.full, pytest.mark.timeout(1800)]
OF_THE_CLOCK = ("seconds", "model_seconds", "environment_seconds", "scoring_seconds", "started_at")
GAME = "admin/tictactoe"
PLAY = ("-n", 4, "-r", 2, "-t", "1.0", "--max-tokens", "16", "--seed", "7", "-c", "1")


def played(run: Path) -> list[Any]:
    """Return the rollouts of a run, with token ids and log-probabilities, but for what the clock told."""
    return [_untimed(one.model_dump(mode="json")) for one in RunFolder.open(run).rollouts()]


def _untimed(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _untimed(one) for key, one in value.items() if key not in OF_THE_CLOCK}
    return [_untimed(one) for one in value] if isinstance(value, list) else value


def test_another_user_can_rerun_a_row_of_a_trained_policy(
    machine: Machine, bundled: Machine, tmp_path: Path
) -> None:
    machine.wander("install", GAME)
    teacher = machine.home / "runs" / "teacher"
    optimal = "scripted:tictactoe.players:optimal"
    machine.wander("eval", GAME, "-m", optimal, "--split", "train", "-n", 40, "--out", teacher)
    machine.wander("runs", "data", teacher, "--out", "rows.jsonl")
    small = ("--hidden", 32, "--layers", 1, "--vocabulary", 330)
    machine.wander("model", "new", "tiny", "--transcripts", teacher, "--out", "tiny", *small)
    machine.wander("model", "sft", "rows.jsonl", "--model", "tiny", "--out", "sft", "--steps", 2)
    first = machine.home / "runs" / "first"
    machine.wander("eval", GAME, "-m", "./sft/model", *PLAY, "--out", first)
    posted = machine.wander("post", first)
    pushed = machine.wander("model", "push", "admin/ttt", "sft/model")
    name = f"admin/ttt@{pushed['revision'][:12]}"
    board = machine.wander("leaderboard", GAME)
    row = next(one for one in board["rows"] if one["run_id"] == posted["run_id"])
    assert row["checkpoint"] == name
    assert f"/models/{name.replace('@', '/')}" in machine.hub.get(f"/{GAME}/leaderboard").text

    home = tmp_path / "elsewhere"
    home.mkdir()
    run_hub(machine.hub.data, "user", "add", "ada")
    token = make_token(machine.hub.data, "ada")
    other = Machine(home, machine.hub, machine.mirror, {**machine.extra, "WANDER_TOKEN": token})
    other.wander("install", GAME)
    refused = other.refused(3, "eval", GAME, "-m", "hub:admin/ttt", *PLAY)
    assert "run `wander model pull admin/ttt`" in refused
    other.wander("model", "pull", "admin/ttt")
    second = home / "runs" / "second"
    other.wander("eval", GAME, "-m", "hub:admin/ttt", *PLAY, "--out", second)
    assert played(second) == played(first), "the same weights play the same, to the bit"
    pins = [json.loads((run / "run.json").read_text())["model"] for run in (first, second)]
    assert pins[0]["weights_sha256"] == pins[1]["weights_sha256"] == pushed["weights_sha256"]
    assert (pins[1]["name"], pins[1]["revision"]) == ("admin/ttt", pushed["revision"])
    again = other.run("wander", "runs", "rerun", posted["run_id"], "-c", "1", "--json")
    said = json.loads(again.stdout)["data"]
    assert (said["difference"], said["differing"]) == (0.0, []), again.stderr
    assert played(home / said["run_dir"]) == played(first)

    config = home / "grpo.toml"
    config.write_text(
        '[model]\npath = "hub:admin/ttt"\n[batch]\nrollouts = 8\ngroup_size = 4\nrows_at_once = 8\n'
        "[sampling]\nmax_tokens = 16\n[schedule]\nsteps = 1\n"
    )
    trained = home / "runs" / "trained"
    other.wander("train", GAME, config, "--out", trained)
    model = json.loads((trained / "run.json").read_text())["model"]
    assert (model["weights_sha256"], model["revision"]) == (pushed["weights_sha256"], pushed["revision"])
    assert "may not publish under `admin`" in other.refused(4, "model", "push", "admin/ttt", trained)
    mine = other.wander("model", "push", "ada/ttt", trained)
    assert (mine["owner"], mine["parameters"]) == ("ada", pushed["parameters"])
