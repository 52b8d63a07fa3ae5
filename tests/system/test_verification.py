"""Forged runs on a real hub: it plays each again in its sandbox, and gives it the level that it earns."""

from __future__ import annotations

import copy
import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from judging_hub import Record, confined, judging_hub, post, settled
from live_hub import LiveHub
from machine import Machine
from wander import Hub
from wander.evals.store.folder import RunFolder
from wander.evals.store.manifest import new_run_id

pytestmark = pytest.mark.full

ROOT = Path(__file__).resolve().parents[2]
Forgery = Callable[[Record, list[Record]], object]


@pytest.fixture(scope="module")
def judge(tmp_path_factory: pytest.TempPathFactory, mirror: str) -> Iterator[LiveHub]:
    """A hub that plays posted runs again."""
    data, cache = tmp_path_factory.mktemp("judge"), tmp_path_factory.getbasetemp() / "uv-cache"
    with judging_hub(data, mirror, cache, WANDER_HUB_CHECK_VERSIONS="false") as hub:
        yield hub


@pytest.fixture(scope="module")
def home(judge: LiveHub, mirror: str, tmp_path_factory: pytest.TempPathFactory) -> Machine:
    """A machine that has published tic-tac-toe in two versions and played the first."""
    folder = tmp_path_factory.mktemp("submitter")
    cache = tmp_path_factory.getbasetemp() / "uv-cache"
    machine = Machine(folder, judge, mirror, {"UV_CACHE_DIR": str(cache)})
    ignored = shutil.ignore_patterns("__pycache__", "build", "dist")
    source = Path(shutil.copytree(ROOT / "environments" / "tictactoe", folder / "tictactoe", ignore=ignored))
    machine.wander("publish", source, "--no-check")
    machine.wander(
        "eval", "admin/tictactoe@0.1.0", "-m", "scripted:tictactoe.players:careless",
        "-n", 5, "-r", 2, "--seed", 3, "--out", folder / "run",
    )  # fmt: skip
    text = (source / "pyproject.toml").read_text()
    (source / "pyproject.toml").write_text(text.replace('version = "0.1.0"', 'version = "0.2.0"'))
    machine.wander("publish", source, "--no-check")
    return machine


@pytest.fixture(scope="module")
def honest(home: Machine) -> tuple[Record, list[Record]]:
    """The manifest and the rollouts of a run that was really played."""
    folder = RunFolder.open(home.home / "run")
    manifest = folder.manifest.model_dump(mode="json", by_alias=True)
    return manifest, [one.model_dump(mode="json") for one in folder.rollouts()]


def lost(rollouts: list[Record]) -> Record:
    return min(rollouts, key=lambda one: one["reward"])


def raise_reward(manifest: Record, rollouts: list[Record]) -> None:
    lost(rollouts)["reward"] = 1.0


def raise_every_reward(manifest: Record, rollouts: list[Record]) -> None:
    for one in rollouts:
        one["reward"] = 1.0


def raise_a_hair(manifest: Record, rollouts: list[Record]) -> None:
    rollouts[0]["reward"] += 1e-9


def raise_metric(manifest: Record, rollouts: list[Record]) -> None:
    metrics = rollouts[0]["metrics"]
    metrics[next(iter(metrics))] += 1.0


def invent_metric(manifest: Record, rollouts: list[Record]) -> None:
    rollouts[0]["metrics"]["elegance"] = 1.0


def change_opponent(manifest: Record, rollouts: list[Record]) -> None:
    answers = [m for m in rollouts[0]["completion"] if m["role"] == "user"]
    answers[0]["content"] += " You are winning."


def change_reply(manifest: Record, rollouts: list[Record]) -> None:
    rollouts[0]["completion"][0]["content"] = "<move>5</move>"


def change_reply_and_turn(manifest: Record, rollouts: list[Record]) -> None:
    for message in (rollouts[0]["completion"][0], rollouts[0]["turns"][0]["message"]):
        message["content"] = "I resign."


def drop_last_turn(manifest: Record, rollouts: list[Record]) -> None:
    longest = max(rollouts, key=lambda one: len(one["turns"]))
    del longest["turns"][-1], longest["completion"][-1]


def change_prompt(manifest: Record, rollouts: list[Record]) -> None:
    rollouts[0]["prompt"][-1]["content"] += " Hint: play the center."


def change_rollout_seed(manifest: Record, rollouts: list[Record]) -> None:
    rollouts[0]["seed"] += 1


def change_example_seed(manifest: Record, rollouts: list[Record]) -> None:
    for one in rollouts:
        one["seed"] += one["example_id"] == rollouts[0]["example_id"]


def another_runs_seed(manifest: Record, rollouts: list[Record]) -> None:
    manifest["seed"] = 12345


def change_stop_reason(manifest: Record, rollouts: list[Record]) -> None:
    rollouts[0]["stop_reason"] = "max_turns_reached"


def publish_more(manifest: Record, rollouts: list[Record]) -> None:
    rollouts[0]["info"]["opponent"] = "asleep"


def hide_truncation(manifest: Record, rollouts: list[Record]) -> None:
    rollouts[0]["truncated"] = not rollouts[0]["truncated"]


def swap_examples(manifest: Record, rollouts: list[Record]) -> None:
    one, other = rollouts[0], next(r for r in rollouts if r["example_id"] != rollouts[0]["example_id"])
    one["example_id"], other["example_id"] = other["example_id"], one["example_id"]
    one["index"], other["index"] = other["index"], one["index"]


def one_game_for_all(manifest: Record, rollouts: list[Record]) -> None:
    best = max(rollouts, key=lambda one: one["reward"])
    for one in rollouts:
        for name in ("completion", "turns", "reward", "metrics", "stop_reason", "info", "usage"):
            one[name] = copy.deepcopy(best[name])


def replies_of_another_example(manifest: Record, rollouts: list[Record]) -> None:
    one, other = rollouts[0], next(r for r in rollouts if r["prompt"] != rollouts[0]["prompt"])
    for name in ("completion", "turns"):
        one[name], other[name] = other[name], one[name]


def other_arguments(manifest: Record, rollouts: list[Record]) -> None:
    manifest["environment"]["arguments"] = {"opponent": "random"}


def harder_arguments(manifest: Record, rollouts: list[Record]) -> None:
    manifest["environment"]["arguments"] = {"max_random_move_prob": 0.0}


def other_task_set(manifest: Record, rollouts: list[Record]) -> None:
    manifest["task_set_sha256"] = "1" * 64


def invented_examples(manifest: Record, rollouts: list[Record]) -> None:
    renamed = {name: f"easy-{name}" for name in manifest["example_ids"]}
    manifest["example_ids"] = list(renamed.values())
    for one in rollouts:
        one["example_id"] = renamed[one["example_id"]]


def claims_to_be_random(manifest: Record, rollouts: list[Record]) -> None:
    raise_every_reward(manifest, rollouts)
    manifest["environment"]["info"]["deterministic"] = False


def other_weights(manifest: Record, rollouts: list[Record]) -> None:
    manifest["environment"]["info"]["reward_functions"][0]["weight"] += 1


PLAYED: dict[str, tuple[Forgery, Any]] = {
    "one reward": (raise_reward, 1),
    "every reward": (raise_every_reward, ...),
    "a reward by a hair": (raise_a_hair, 1),
    "a metric": (raise_metric, 1),
    "a metric more": (invent_metric, 1),
    "the environment's words": (change_opponent, 1),
    "the model's words": (change_reply, 1),
    "the model's words and its turn": (change_reply_and_turn, 1),
    "a turn less": (drop_last_turn, 1),
    "the prompt": (change_prompt, 1),
    "an example's seed": (change_example_seed, 2),
    "the run's seed": (another_runs_seed, ...),
    "the stop reason": (change_stop_reason, 1),
    "what it published": (publish_more, 1),
    "truncation": (hide_truncation, 1),
    "one good game for all examples": (one_game_for_all, ...),
    "replies of another example": (replies_of_another_example, 2),
    "harder arguments": (harder_arguments, None),
    "other arguments": (other_arguments, None),
    "another task set": (other_task_set, None),
    "invented examples": (invented_examples, None),
    "claimed randomness": (claims_to_be_random, None),
    "other weights": (other_weights, None),
}
"""Each with how many rollouts differ: an ellipsis for some, None if the manifest is contradicted."""


def test_an_honest_run_is_replayed_and_another_user_requests_it_again(judge, home, honest) -> None:
    manifest, rollouts = honest
    assert post(judge, manifest, rollouts).status_code == 201
    run = settled(judge, manifest["run_id"])
    assert run["level"] == "replayed", run["level_reason"]
    again = home.wander("runs", "verify", manifest["run_id"], "--sample", 4)
    assert (again["level"], again["report"]["replayed"], again["report"]["sampled"]) == ("replayed", 4, True)
    with_sandbox = again["made_with"]["environment"]["sandbox"] is not None
    assert with_sandbox == (confined() == "sandbox")
    with Hub(judge.url, judge.token) as hub:
        found = hub.verify(manifest["run_id"], sample=3)
        assert found.report is not None
        assert (found.state, found.report.replayed, found.report.differing) == ("done", 3, 0)
    tokens = home.run("wander", "auth", "token", "list").stdout
    assert "verification" not in tokens, "the token of a job ends with it"


def test_only_a_newline_ends_a_line_of_a_run(judge, honest) -> None:
    manifest, rollouts = copy.deepcopy(honest)
    manifest["run_id"] = new_run_id()
    for one in rollouts:
        one["started_at"] += "\u2028\u0085\x0b\x1c"
    spaced = [json.dumps(one, ensure_ascii=False, separators=(",\r", ":\r")) for one in rollouts]
    assert post(judge, manifest, "".join(f"{one}\n" for one in spaced).encode()).status_code == 201
    run = settled(judge, manifest["run_id"])
    assert run["level"] == "replayed", run["level_reason"]


@pytest.mark.timeout(900)  # the hub replays a dozen runs, one after the other
def test_forged_runs_get_the_level_claimed(judge, honest) -> None:
    posted = {}
    for name, (forge, _) in PLAYED.items():
        manifest, rollouts = copy.deepcopy(honest)
        manifest["run_id"] = new_run_id()
        forge(manifest, rollouts)
        answer = post(judge, manifest, rollouts)
        assert answer.status_code == 201, (name, answer.text)
        assert answer.json()["level"] == "complete", name
        posted[name] = manifest["run_id"]
    for name, (_, differing) in PLAYED.items():
        run = settled(judge, posted[name])
        assert (name, run["level"]) == (name, "claimed"), run["level_reason"]
        (found,) = judge.get(f"/api/v1/runs/{posted[name]}/verifications").json()["data"]
        report = found["report"]
        assert (name, report["contradicted"]) == (name, differing is None), report
        assert (name, report["differing"] > 0) == (name, differing is not None), report
        if isinstance(differing, int):
            assert (name, report["differing"]) == (name, differing)
    board = judge.get("/api/v1/environments/admin/tictactoe/leaderboard?version=0.1.0").json()
    assert {row["level"] for row in board["rows"]} <= {"replayed", "claimed"}


def drop_the_bad(manifest: Record, rollouts: list[Record]) -> None:
    rollouts.remove(lost(rollouts))


def hide_the_bad(manifest: Record, rollouts: list[Record]) -> None:
    lost(rollouts).update(
        reward=None, metrics={}, failure={"boundary": "model", "type": "Down", "message": "was down"}
    )


def repeat_the_good(manifest: Record, rollouts: list[Record]) -> None:
    rollouts[-1] = copy.deepcopy(max(rollouts, key=lambda one: one["reward"]))


def add_the_good(manifest: Record, rollouts: list[Record]) -> None:
    rollouts.append({**copy.deepcopy(rollouts[0]), "index": 7})


def not_a_number(manifest: Record, rollouts: list[Record]) -> None:
    rollouts[0]["reward"] = float("nan")


def other_version(manifest: Record, rollouts: list[Record]) -> None:
    manifest["environment"]["version"] = "0.2.0"


def no_such_version(manifest: Record, rollouts: list[Record]) -> None:
    manifest["environment"]["version"] = "7.0.0"


AT_THE_DOOR: dict[str, tuple[Forgery, int, str]] = {
    "a bad one dropped": (drop_the_bad, 201, "rollouts missing"),
    "a bad one said to have failed": (hide_the_bad, 201, "rollouts failed"),
    "a good one repeated": (repeat_the_good, 422, ""),
    "a good one added": (add_the_good, 422, ""),
    "a rollout's seed": (change_rollout_seed, 422, "its seed differs from an earlier rollout"),
    "examples swapped": (swap_examples, 422, "its seed differs from an earlier rollout"),
    "a reward that is no number": (not_a_number, 422, ""),
    "another version's name": (other_version, 409, "wheel_mismatch"),
    "a version that is not there": (no_such_version, 422, ""),
}


@pytest.mark.parametrize("name", AT_THE_DOOR)
def test_some_forgeries_are_rejected_when_posted(name: str, judge, honest) -> None:
    forge, status, reason = AT_THE_DOOR[name]
    manifest, rollouts = copy.deepcopy(honest)
    manifest["run_id"] = new_run_id()
    forge(manifest, rollouts)
    answer = post(judge, manifest, rollouts)
    assert answer.status_code == status, answer.text
    assert reason in answer.text
    if status == 201:
        assert answer.json()["level"] == "claimed"
        assert judge.get(f"/api/v1/runs/{manifest['run_id']}/verifications").json() == {"data": []}


def test_a_truncated_file_is_rejected(judge, honest) -> None:
    manifest, rollouts = copy.deepcopy(honest)
    manifest["run_id"] = new_run_id()
    body = b"".join(json.dumps(one).encode() + b"\n" for one in rollouts)
    assert post(judge, manifest, body[:-40]).status_code == 422
    assert judge.get(f"/api/v1/runs/{manifest['run_id']}").status_code == 404
