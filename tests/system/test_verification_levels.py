"""Levels on a real hub: copies, outside observations, hidden chance, bundled environments, checks."""

from __future__ import annotations

import copy
import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from bundled_environments import INSTALLED, PARAMS
from chat_endpoint import ChatEndpoint, chat_endpoint
from judging_hub import Record, awaited, confined, judging_hub, post, settled
from live_hub import LiveHub
from machine import Machine
from package_mirror import build_client_mirror
from small_project import pyproject
from wander.evals.store.folder import RunFolder
from wander.evals.store.manifest import new_run_id

pytestmark = pytest.mark.full

ROOT = Path(__file__).resolve().parents[2]
JUDGED_BY_A_MODEL = {"judge_writing"}  # declared not deterministic: scored again from the recorded verdicts

IN_CI = {
    *("tictactoe", "reverse_text", "code_exec", "database_session", "long_context", "mcp_files"),
    *("judge_writing", "negotiation", "gym_frozenlake", "reasoning_gym_tasks"),
}
"""An environment of every kind. `tests/environments` replays the reference runs of all of them."""

CHANCE = """
import random, time
from wander import MultiTurnEnv, Rubric

def length(completion):
    return float(len(completion))

class Env(MultiTurnEnv):
    def env_response(self, messages, state):
        said = {
            "set": lambda: " ".join({"ace", "king", "queen", "jack", "ten", "nine", "eight", "seven"}),
            "random": lambda: str(random.random()),
            "clock": lambda: str(time.time_ns()),
        }
        return [{"role": "user", "content": said[self.source]()}]

def load_environment(source="set"):
    env = Env(eval_dataset=[{"question": f"q{i}"} for i in range(4)], rubric=Rubric([length]), max_turns=2)
    env.source = source
    return env
"""
JUDGED = """
import itertools
from wander import ScriptedClient, SingleTurnEnv
from wander.clients.base import Client
from wander.rubrics.judge import JudgeRubric, judge_score

asked = itertools.count()

class Judge(Client):
    model = "a model that somebody else runs"

    async def complete(self, request):
        verdict = f'{{"verdict": {(next(asked) % 7) / 10}}}'
        return await ScriptedClient([verdict]).complete(request)

def load_environment():
    rows = [{"question": f"q{i}", "answer": str(i)} for i in range(6)]
    rubric = JudgeRubric([judge_score], client=Judge(), attempts=1)
    return SingleTurnEnv(eval_dataset=rows, rubric=rubric, deterministic=False)
"""


@pytest.fixture(scope="module")
def mirror(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The libraries of bundled environments are here too: they are large, so elsewhere they are not."""
    large = ["gymnasium", *(["reasoning-gym"] if "reasoning_gym_tasks" in INSTALLED else [])]
    return build_client_mirror(tmp_path_factory.mktemp("mirror"), *large)


@pytest.fixture(scope="module")
def judge(tmp_path_factory: pytest.TempPathFactory, mirror: str) -> Iterator[LiveHub]:
    """A hub that plays posted runs again and checks versions."""
    data, cache = tmp_path_factory.mktemp("judge"), tmp_path_factory.getbasetemp() / "uv-cache"
    with judging_hub(data, mirror, cache) as hub:
        yield hub


@pytest.fixture(scope="module")
def home(judge: LiveHub, mirror: str, tmp_path_factory: pytest.TempPathFactory) -> Machine:
    """The submitter's machine."""
    cache = tmp_path_factory.getbasetemp() / "uv-cache"
    return Machine(tmp_path_factory.mktemp("submitter"), judge, mirror, {"UV_CACHE_DIR": str(cache)})


@pytest.fixture(scope="module")
def model() -> Iterator[ChatEndpoint]:
    """A model that finds a free cell and turns a text round, and says much about it."""
    with chat_endpoint(answered) as endpoint:
        yield endpoint


def answered(messages: list[dict[str, Any]]) -> str:
    text = str(messages[-1]["content"])
    free = re.findall(r"[0-8]", text)
    last = text.rpartition("\n")[2]
    return (
        f"<think>I was told {' and '.join(text.split()[-20:])}, so I go on from there.</think>"
        f"<move>{free[-1] if free else 0}</move><action>down</action>"
        f"<reversed_text>{last[::-1]}</reversed_text>"
    )


def project(home: Machine, name: str, body: str) -> Path:
    """Write the project of an environment, and publish it."""
    folder = home.home / name
    folder.mkdir()
    module = name.replace("-", "_")
    (folder / "pyproject.toml").write_text(pyproject(name))
    (folder / "README.md").write_text(f"# {name}\n")
    (folder / f"{module}.py").write_text(body)
    home.wander("publish", folder, "--no-check")
    return folder


def slow(param: Any) -> Any:
    return pytest.param(*param.values, marks=[*param.marks, pytest.mark.slow])


def evaluated(home: Machine, label: str, model: ChatEndpoint, *words: object) -> Path:
    """Evaluate a published environment; return the run's folder."""
    data = home.wander("eval", label, "-m", "echo", "-b", model.base_url, *words)
    return home.home / data["run_dir"]


def posted(home: Machine, run: Path) -> str:
    return str(home.wander("post", run)["run_id"])


@pytest.mark.parametrize("name", [one if one.values[0] in IN_CI else slow(one) for one in PARAMS])
def test_a_bundled_environment_is_replayed_in_another_virtualenv_and_under_another_hash_seed(
    name: str, judge: LiveHub, home: Machine, model: ChatEndpoint
) -> None:
    ignored = shutil.ignore_patterns("__pycache__", "build", "dist")
    folder = shutil.copytree(ROOT / "environments" / name, home.home / name, ignore=ignored)
    home.wander("publish", folder, "--no-check")
    label = f"admin/{name.replace('_', '-')}"
    run = evaluated(home, label, model, "-n", 5, "-r", 2, "--seed", 3)
    if name not in JUDGED_BY_A_MODEL:
        again = home.wander("runs", "replay", run)  # in a process with another hash seed
        assert (again["level"], again["same"]) == ("replayed", 10)
    # The hub has an installation of its own.
    found = settled(judge, posted(home, run))
    assert found["level"] == ("rescored" if name in JUDGED_BY_A_MODEL else "replayed"), found["level_reason"]


@pytest.mark.parametrize("source", ["set", "random", "clock"])
def test_hidden_randomness_is_detected_and_the_first_difference_reported(
    source: str, judge: LiveHub, home: Machine, model: ChatEndpoint
) -> None:
    if not (home.home / "chance-env").exists():
        project(home, "chance-env", CHANCE)
    run = posted(home, evaluated(home, "admin/chance-env", model, "-n", 4, "-a", f"source={source}"))
    found = settled(judge, run)
    assert found["level"] == "claimed", found["level_reason"]
    (verification,) = judge.get(f"/api/v1/runs/{run}/verifications").json()["data"]
    differing = verification["report"]["differing"]
    page = judge.get(f"/api/v1/verifications/{verification['id']}/divergences").json()
    assert page["total"] == differing > 0
    first = page["data"][0]
    assert (first["part"], first["message"]) == ("completion", 1)
    assert first["difference"].startswith("message 1 of the completion is `")


def test_rewards_of_a_judge_are_at_most_complete(judge: LiveHub, home: Machine, model: ChatEndpoint) -> None:
    project(home, "judged-env", JUDGED)
    run = evaluated(home, "admin/judged-env", model, "-n", 6)
    honest = settled(judge, posted(home, run))
    assert honest["level"] == "complete", honest["level_reason"]
    assert "taken as recorded" in honest["level_reason"]
    folder = RunFolder.open(run)
    manifest = folder.manifest.model_dump(mode="json", by_alias=True)
    rollouts = [one.model_dump(mode="json") for one in folder.rollouts()]
    for name, forge in (("reward", raise_reward), ("words", other_words), ("verdict", other_verdict)):
        forged, changed = {**manifest, "run_id": new_run_id()}, copy.deepcopy(rollouts)
        forge(changed[0])
        assert post(judge, forged, changed).status_code == 201
        found = settled(judge, forged["run_id"])
        assert (name, found["level"]) == (name, "claimed"), found["level_reason"]
        assert (
            "1 of 6 rollouts produced different results when the hub rescored them" in found["level_reason"]
        )


def raise_reward(rollout: Record) -> None:
    rollout["reward"] = 1.0


def other_words(rollout: Record) -> None:
    rollout["completion"][0]["content"] = rollout["turns"][0]["message"]["content"] = "a better answer"


def other_verdict(rollout: Record) -> None:
    rollout["info"]["judge_answers"][0]["answer"] = '{"verdict": 1.0}'


def test_published_versions_are_checked_in_the_sandbox(judge: LiveHub, home: Machine) -> None:
    path = "/api/v1/environments/admin/tictactoe/versions/0.1.0/check"

    def ended() -> Record | None:
        found = judge.get(path).json()
        return None if found.get("state") in (None, "queued", "running") else found

    found = awaited(judge, ended)
    assert found["state"] == "done", found
    assert (found["summary"]["failed"], found["summary"]["warned"]) == (0, 0), found["summary"]
    assert found["summary"]["passed"] > 20
    assert (found["made_with"]["sandbox"] is not None) == (confined() == "sandbox")
    assert "checks by this hub" in judge.get("/admin/tictactoe").text


def test_the_requester_can_cancel_a_verification(judge: LiveHub, home: Machine) -> None:
    newest = judge.get("/api/v1/runs?environment=admin/tictactoe").json()["data"][0]["run_id"]
    asked = home.wander("runs", "verify", newest, "--sample", 1, "--no-wait")
    done = home.run("wander", "runs", "verify", newest, "--cancel", "--json")
    if done.returncode == 3:  # it was done before it could be called off
        assert judge.get(f"/api/v1/verifications/{asked['id']}").json()["state"] == "done"
        return
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["data"][0]["id"] == asked["id"]

    def ended() -> Record | None:
        found: Record = judge.get(f"/api/v1/verifications/{asked['id']}").json()
        return None if found["state"] in ("queued", "running") else found

    assert awaited(judge, ended)["state"] in ("canceled", "done")
