"""A hub runs the commands of posted runs again in boxes of its own, and forged runs get what they deserve."""

from __future__ import annotations

import copy
import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from judging_hub import judging_hub, post, settled
from live_hub import LiveHub
from machine import Machine
from package_mirror import build_client_mirror
from sandboxes import needs_sandbox
from wander.evals.store.folder import RunFolder

ROOT = Path(__file__).resolve().parents[2]
pytestmark = [needs_sandbox, pytest.mark.full]
Record = dict[str, Any]


@pytest.fixture(scope="module")
def judge(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[LiveHub, str]]:
    """A hub whose operator allows boxes, and its index."""
    mirror = build_client_mirror(tmp_path_factory.mktemp("mirror"))
    cache = tmp_path_factory.getbasetemp() / "uv-cache"
    settings = {"WANDER_HUB_BOXES": "bwrap", "WANDER_HUB_CHECK_VERSIONS": "false"}
    with judging_hub(tmp_path_factory.mktemp("judge"), mirror, cache, **settings) as hub:
        yield hub, mirror


@pytest.fixture(scope="module")
def home(judge: tuple[LiveHub, str], tmp_path_factory: pytest.TempPathFactory) -> Machine:
    """The submitter's machine, with the environment published."""
    hub, mirror = judge
    variables = {"UV_CACHE_DIR": str(tmp_path_factory.getbasetemp() / "uv-cache")}
    machine = Machine(tmp_path_factory.mktemp("submitter"), hub, mirror, variables)
    ignored = shutil.ignore_patterns("__pycache__", "build", "dist", "reference")
    folder = shutil.copytree(
        ROOT / "environments" / "terminal_tasks", machine.home / "terminal_tasks", ignore=ignored
    )
    machine.wander("publish", folder, "--no-check")
    return machine


def evaluated(home: Machine, player: str, *words: object) -> Path:
    """Evaluate a scripted player; return the run's folder."""
    label, model = "admin/terminal-tasks", f"scripted:terminal_tasks.players:{player}"
    return home.home / home.wander("eval", label, "-m", model, "-n", 3, *words)["run_dir"]


@pytest.fixture(scope="module")
def honest(home: Machine) -> Path:
    """A run of the expert."""
    return evaluated(home, "expert")


def test_an_honest_run_of_boxes_is_replayed_and_explained(
    judge: tuple[LiveHub, str], home: Machine, honest: Path
) -> None:
    hub, _ = judge
    again = home.wander("runs", "replay", honest)
    assert (again["level"], again["same"]) == ("replayed", 3)
    found = settled(hub, str(home.wander("post", honest)["run_id"]))
    assert found["level"] == "replayed", found["level_reason"]


def records(folder: Path) -> tuple[Record, list[Record]]:
    run = RunFolder.open(folder)
    rollouts = [json.loads(rollout.model_dump_json()) for rollout in run.rollouts_in_order()]
    return json.loads((folder / "run.json").read_text()), rollouts


def planted_reward(lazy: list[Record], right: list[Record]) -> None:
    for rollout in lazy:
        rollout["reward"] = rollout["metrics"]["solved"] = 1.0


def state_of_another_run(lazy: list[Record], right: list[Record]) -> None:
    for rollout, solved in zip(lazy, right, strict=True):
        rollout["info"] = copy.deepcopy(solved["info"])
        rollout["reward"] = rollout["metrics"]["solved"] = 1.0


def edited_state(lazy: list[Record], right: list[Record]) -> None:
    for rollout in lazy:
        file = {"path": "/work/answer.txt", "kind": "file", "size": 2, "sha256": "0" * 64, "text": "1\n"}
        rollout["info"]["box"]["state"]["files"].append({**file, "executable": False})
        rollout["reward"] = rollout["metrics"]["solved"] = 1.0


def other_image(lazy: list[Record], right: list[Record]) -> None:
    state_of_another_run(lazy, right)
    for rollout in lazy:
        rollout["info"]["box"]["image"] = "sha256:" + "0" * 64


FORGERIES: list[tuple[Callable[[list[Record], list[Record]], None], str]] = [
    (planted_reward, "claimed"),
    (edited_state, "claimed"),
    (state_of_another_run, "rescored"),  # the commands do not make it, and the level says so
    (other_image, "unverifiable"),
]


@pytest.mark.parametrize(("forge", "level"), FORGERIES, ids=lambda value: getattr(value, "__name__", value))
def test_a_forged_run_of_boxes_gets_its_deserved_level(
    forge: Callable[[list[Record], list[Record]], None],
    level: str,
    judge: tuple[LiveHub, str],
    home: Machine,
    honest: Path,
) -> None:
    hub, _ = judge
    manifest, lazy = records(evaluated(home, "idle"))
    _, right = records(honest)
    assert [rollout["reward"] for rollout in lazy] == [0.0] * 3
    forge(lazy, right)
    answer = post(hub, manifest, lazy)
    assert answer.status_code == 201, answer.text
    found = settled(hub, manifest["run_id"])
    assert found["level"] == level, found["level_reason"]
    if level == "rescored":
        assert "3 left other files, and were only rescored" in found["level_reason"]
