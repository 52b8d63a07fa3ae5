"""Locks: what a version was published with is what is installed, evaluated, replayed and verified later."""

from __future__ import annotations

import json
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from live_hub import LiveHub, live_hub
from machine import Machine
from package_shop import PackageShop, package_shop
from wander.evals.store.manifest import new_run_id

pytestmark = pytest.mark.full

GENEROUS = "def score(said: str, wanted: str) -> float:\n    return float(said == wanted)\n"
STRICT = "def score(said: str, wanted: str) -> float:\n    return 0.5 * (said == wanted)\n"
MODULE = """
from typing import Any

from say_rules import score
from wander import Messages, Rubric, SingleTurnEnv


def right(completion: Messages, answer: str) -> float:
    return score(completion[-1]["content"], answer)


def load_environment() -> SingleTurnEnv:
    rows = [{"question": f"say {n}", "answer": str(n)} for n in range(4)]
    return SingleTurnEnv(dataset=rows, eval_dataset=rows, rubric=Rubric([right]), summary="Say a number.")


def solver(request: Any) -> str:
    return request.messages[-1]["content"].removeprefix("say ")
"""


@pytest.fixture(scope="module")
def shop(mirror: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[PackageShop]:
    with package_shop(tmp_path_factory.mktemp("shop"), mirror) as running:
        running.release("say-rules", "1.0", GENEROUS)
        yield running


@pytest.fixture(scope="module")
def lock_hub(shop: PackageShop, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveHub]:
    """A hub that plays posted runs again; its code is this test's own, so it needs no sandbox."""
    cache = tmp_path_factory.mktemp("hub-uv-cache")
    folder = tmp_path_factory.mktemp("lock-hub")
    settings = {"UV_DEFAULT_INDEX": shop.url, "UV_CACHE_DIR": str(cache)}
    with live_hub(folder, WANDER_HUB_VERIFICATION="unconfined", **settings) as running:
        yield running


@pytest.fixture(scope="module")
def new_machine(lock_hub: LiveHub, shop: PackageShop, tmp_path_factory: pytest.TempPathFactory) -> Any:
    cache = tmp_path_factory.mktemp("uv-cache")

    def make(name: str) -> Machine:
        home = tmp_path_factory.mktemp(name)
        return Machine(home, lock_hub, shop.url, {"UV_CACHE_DIR": str(cache)})

    return make


def project(machine: Machine, name: str) -> Path:
    """Write an environment that needs `say-rules`."""
    folder = machine.home / name
    folder.mkdir()
    module = name.replace("-", "_")
    (folder / f"{module}.py").write_text(MODULE)
    (folder / "README.md").write_text(f"# {name}\n")
    (folder / "pyproject.toml").write_text(
        f'[project]\nname = "{name}"\nversion = "0.1.0"\nreadme = "README.md"\nlicense = "MIT"\n'
        'requires-python = ">=3.11"\ndependencies = ["wander-sdk", "say-rules"]\n'
        f'[project.entry-points."wander.environments"]\n{name} = "{module}:load_environment"\n'
        '[build-system]\nrequires = ["hatchling"]\nbuild-backend = "hatchling.build"\n'
    )
    return folder


def evaluated(machine: Machine, name: str, place: str, *options: str) -> tuple[dict[str, Any], float]:
    """Play an environment with a model that is always right; return its pin and the mean reward."""
    run = machine.home / place
    model = f"scripted:{name.replace('-', '_')}:solver"
    machine.wander("eval", f"admin/{name}@0.1.0", "-m", model, "-n", 4, "--out", run, *options)
    summary = json.loads((run / "summary.json").read_text())
    pin: dict[str, Any] = json.loads((run / "run.json").read_text())["environment"]
    return pin, summary["reward_mean"]


@pytest.fixture(scope="module")
def played(shop: PackageShop, new_machine: Any) -> Machine:
    """A machine that published an environment and played it; then its rules were released anew."""
    machine: Machine = new_machine("author")
    sent = machine.wander("publish", project(machine, "say-env"), "--no-check", "--keep-host", shop.host)
    assert sent["lock"]["packages"] > 5
    pin, reward = evaluated(machine, "say-env", "run")
    assert (pin["lock_sha256"], pin["unlocked"]) == (sent["lock"]["sha256"], None)
    assert reward == 1.0
    shop.release("say-rules", "1.1", STRICT)
    return machine


def lock_address(hub: LiveHub, name: str) -> str:
    return f"{hub.url}/api/v1/environments/admin/{name}/versions/0.1.0/pylock.toml"


def test_the_lock_alone_reproduces_a_run(played: Machine, new_machine: Any) -> None:
    stranger: Machine = new_machine("stranger")
    same = stranger.run("wander", "runs", "replay", played.home / "run", "--json")
    assert same.returncode == 0, same.stdout + same.stderr
    report = json.loads(same.stdout)["data"]
    assert (report["level"], report["same"], report["differing"]) == ("replayed", 4, 0)
    pinned = json.loads((played.home / "run" / "run.json").read_text())["environment"]
    found = report["made_with"]["environment"]
    assert [found[key] for key in ("lock_sha256", "packages_sha256", "unlocked")] == [
        pinned["lock_sha256"], pinned["packages_sha256"], None
    ]  # fmt: skip

    other = stranger.run("wander", "runs", "replay", played.home / "run", "--no-lock", "--json")
    assert other.returncode == 1, other.stdout + other.stderr
    answer = json.loads(other.stdout)
    assert answer["data"]["differing"] == 4
    found = answer["data"]["made_with"]["environment"]
    assert (found["lock_sha256"], found["unlocked"]) == (None, "chosen")
    assert found["packages_sha256"] != pinned["packages_sha256"]
    assert any("lock is ignored: the installed packages differ" in text for text in answer["warnings"])


def test_the_latest_choice_of_a_lock_is_used_and_recorded(played: Machine, new_machine: Any) -> None:
    machine: Machine = new_machine("chooser")
    (locked,) = machine.wander("install", "admin/say-env")
    pin, reward = evaluated(machine, "say-env", "by-lock")
    assert (pin["lock_sha256"], reward) == (locked["lock_sha256"], 1.0)
    (unlocked,) = machine.wander("install", "admin/say-env", "--no-lock")
    assert (unlocked["lock_sha256"], unlocked["unlocked"], unlocked["fresh"]) == (None, "chosen", True)
    pin, reward = evaluated(machine, "say-env", "without")
    assert (pin["lock_sha256"], pin["unlocked"], reward) == (None, "chosen", 0.5)
    resumed = machine.wander("eval", "--resume", machine.home / "by-lock")
    assert resumed["summary"]["reward_mean"] == 1.0, "a run goes on as it was begun"
    (again,) = machine.wander("install", "admin/say-env")
    assert (again["lock_sha256"], again["fresh"]) == (locked["lock_sha256"], False)
    assert machine.wander("env", "list")[-1]["lock_sha256"] == locked["lock_sha256"], "what is played next"
    machine.wander("runs", "replay", machine.home / "without")


def test_ignoring_the_lock_affects_only_one_run(played: Machine, new_machine: Any, lock_hub: LiveHub) -> None:
    machine: Machine = new_machine("once")
    pin, reward = evaluated(machine, "say-env", "without", "--set", "no_lock=true")
    assert (pin["lock_sha256"], pin["unlocked"], reward) == (None, "chosen", 0.5)
    posted = machine.wander("post", machine.home / "without")
    page = httpx.get(f"{lock_hub.url}/runs/{posted['run_id']}", headers={"Accept": "text/html"}, timeout=60)
    assert "run without lock file" in page.text
    pin, reward = evaluated(machine, "say-env", "with")
    assert (pin["unlocked"], reward) == (None, 1.0), "it was left aside for that run alone"
    evaluated(machine, "say-env", "again", "--set", "no_lock=true")
    assert machine.wander("env", "list")[-1]["lock_sha256"] == pin["lock_sha256"]
    assert "`no_lock`" in machine.refused(
        2, "eval", "--resume", machine.home / "with", "--set", "no_lock=true"
    )


def test_the_hub_verifies_a_run_with_its_lock(played: Machine, lock_hub: LiveHub) -> None:
    posted = played.wander("post", played.home / "run")
    run_id = json.loads((played.home / "run" / "run.json").read_text())["run_id"]
    give_up = time.monotonic() + 240
    while True:
        found = lock_hub.get(f"/api/v1/runs/{run_id}/verifications").json()["data"]
        if found and all(one["state"] not in ("queued", "running") for one in found):
            break
        assert time.monotonic() < give_up, (posted, found, lock_hub.log.read_text()[-3000:])
        time.sleep(0.2)
    assert found[0]["state"] == "done", found
    assert lock_hub.get(f"/api/v1/runs/{run_id}").json()["level"] == "replayed", found


def test_a_run_with_another_lock_is_rejected(played: Machine, tmp_path: Path) -> None:
    forged = Path(shutil.copytree(played.home / "run", tmp_path / "forged"))
    manifest = json.loads((forged / "run.json").read_text())
    manifest["environment"]["lock_sha256"] = "12" * 32
    (forged / "run.json").write_text(json.dumps(manifest))
    said = played.refused(1, "runs", "replay", forged)
    assert "the run used 1212121212121212" in said
    assert "--no-lock" in said
    manifest["run_id"] = new_run_id()
    (forged / "run.json").write_text(json.dumps(manifest))
    assert "the run used a lock that differs from the locks of `admin/say-env@0.1.0`" in played.refused(
        1, "post", forged
    )


@pytest.mark.parametrize("tool", ["uv", "pip"])
def test_pip_and_uv_install_from_the_lock_of_the_hub(
    played: Machine, lock_hub: LiveHub, tool: str, tmp_path: Path
) -> None:
    python = played.fresh_venv(f"plain-{tool}")
    address = lock_address(lock_hub, "say-env")
    if tool == "uv":
        done = played.run("uv", "pip", "sync", "--python", python, address)
    else:
        done = played.run("pip", "--python", python, "install", "--no-deps", "-r", address)
    assert done.returncode == 0, done.stderr
    code = "import say_env, say_rules; print(say_rules.score('a', 'a'))"
    loaded = subprocess.run([python, "-c", code], capture_output=True, text=True)
    assert loaded.stdout.strip() == "1.0", loaded.stderr


def test_changed_files_on_the_index_are_not_installed(
    played: Machine, shop: PackageShop, new_machine: Any, tmp_path_factory: pytest.TempPathFactory
) -> None:
    wheel = next((shop.folder / "simple" / "say-rules").glob("*-1.0-*.whl"))
    honest = wheel.read_bytes()
    machine: Machine = new_machine("careful")
    machine.extra["UV_CACHE_DIR"] = str(tmp_path_factory.mktemp("fresh-cache"))
    shop.release("say-rules", "1.0", STRICT)
    try:
        said = machine.refused(1, "install", "admin/say-env@0.1.0")
    finally:
        wheel.write_bytes(honest)
    assert "ash" in said
    assert machine.wander("env", "list") == []
    assert list((machine.home / "data" / "virtualenvs").glob("[!.]*")) == []
    machine.wander("install", "admin/say-env@0.1.0")


def test_a_version_without_a_lock_is_installed(new_machine: Any) -> None:
    machine: Machine = new_machine("elsewhere")
    folder = project(machine, "say-elsewhere")
    machine.wander("publish", folder, "--no-check", "--no-lock")
    assert machine.wander("env", "info", "admin/say-elsewhere")["version"]["lock"] is None
    (installed,) = machine.wander("install", "admin/say-elsewhere")
    assert (installed["lock_sha256"], installed["unlocked"]) == (None, "none_published")


def test_an_uninstallable_package_is_not_published_by_mistake(new_machine: Any) -> None:
    machine: Machine = new_machine("mistaken")
    folder = project(machine, "say-nothing")
    text = (folder / "pyproject.toml").read_text()
    (folder / "pyproject.toml").write_text(text.replace('"say-rules"', '"say-rules>=9"'))
    said = machine.refused(1, "publish", folder, "--no-check")
    assert "say-rules>=9" in said
    assert "--no-lock" in said
    assert machine.run("wander", "env", "info", "admin/say-nothing").returncode == 3
