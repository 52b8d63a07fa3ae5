"""`wander env export`: the adapters are packages, and play under the real libraries with our rewards."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from command_line import Wander
from compat_environments import environment_with, wheel_of

ROOT = Path(__file__).parents[2]
TICTACTOE = str(ROOT / "environments" / "tictactoe")

UNDER_SKYRL = """
import asyncio, json, skyrl_gym, tictactoe_skyrl
from tictactoe.players import careless
from wander import ScriptedClient
from wander.clients.base import ModelRequest

for row in tictactoe_skyrl.rows("eval", 8, run_seed=5):
    env = skyrl_gym.make(row["env_class"], env_config={}, extras=row)
    messages, _ = env.init(row["prompt"])
    messages, said, done, total = list(messages), [], False, 0.0
    while not done:
        said.append(careless(ModelRequest(rollout_id="x", turn=0, messages=messages, seed=len(said))))
        out = env.step(said[-1])
        done, total = out["done"], total + out["reward"]
        messages += [{"role": "assistant", "content": said[-1]}, *out["observations"]]
    ours = tictactoe_skyrl.environment()
    example = ours.dataset("eval")[row["extra_info"]["index"]]
    again = asyncio.run(ours.rollout(ScriptedClient(said), example, run_seed=5))
    assert again.reward == total, (again.reward, total)
    assert [*again.prompt, *again.completion] == messages
    assert env.get_metrics() == again.metrics
    env.close()
print("same")
"""

UNDER_VERIFIERS = """
import asyncio
from tictactoe.players import careless
from tictactoe_prime_rl import environment
from wander import ScriptedClient
from wander_compat.tasksets.loading import load_taskset

async def main():
    tasks = load_taskset("tictactoe_prime_rl", split="eval", run_seed=5)
    for example in tasks.dataset("eval").examples(0, 4):
        rollout = await tasks.rollout(ScriptedClient(careless), example)
        said = [turn.message["content"] for turn in rollout.turns]
        ours = environment()
        place = ours.dataset("eval")[example.index]
        again = await ours.rollout(ScriptedClient(said), place, run_seed=5)
        assert again.reward == rollout.reward, (again.reward, rollout.reward, rollout.failure)
        assert again.metrics.items() <= rollout.metrics.items()
    await tasks.teardown()

asyncio.run(main())
print("same")
"""


@pytest.mark.parametrize("to", ["prime-rl", "skyrl", "tinker"])
def test_the_adapter_is_a_package(wander: Wander, home: Path, to: str) -> None:
    done = wander("env", "export", TICTACTOE, "--to", to, "--out", "adapter", "-a", "max_turns=6", "--json")
    assert done.status == 0, done.err
    assert done.data["files"] == ["pyproject.toml", "README.md", f"tictactoe_{to.replace('-', '_')}.py"]
    project = tomllib.loads((home / "adapter" / "pyproject.toml").read_text())
    assert {"tictactoe", "wander-integrations"} <= set(project["project"]["dependencies"])
    library = {"prime-rl": "verifiers", "skyrl": "skyrl-gym", "tinker": "tinker-cookbook"}[to]
    assert any(each.startswith(library) for each in project["project"]["dependencies"])
    assert ("wander-compat" in project["project"]["dependencies"]) == (to == "prime-rl")
    code = (home / "adapter" / done.data["files"][-1]).read_text()
    ast.parse(code)
    assert """json.loads('{"max_turns": 6}')""" in code
    texts = [file.read_text() for file in (home / "adapter").iterdir()]
    assert not any(f"@{word}@" in text for text in texts for word in ("name", "module", "use", "label"))
    again = wander("env", "export", TICTACTOE, "--to", to, "--out", "adapter")
    assert again.status != 0
    assert "is not empty" in again.err


def test_environments_that_cannot_be_exported_are_rejected(wander: Wander, home: Path) -> None:
    unknown = wander("env", "export", TICTACTOE, "--to", "other", "--out", "adapter")
    assert unknown.status == 2
    assert "use `prime-rl`, `skyrl`, `tinker`, `openenv` or `harbor`" in unknown.err
    (home / "bare").mkdir()
    (home / "bare" / "bare.py").write_text("")
    bare = wander("env", "export", "./bare", "--to", "skyrl", "--out", "adapter")
    assert "has no `pyproject.toml`" in bare.err


@pytest.mark.parametrize("to", ["prime-rl", "skyrl", "tinker", "openenv", "harbor"])
def test_an_export_without_its_plugin_names_what_to_install(
    wander: Wander, home: Path, to: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.metadata.entry_points", lambda **_: [])
    done = wander("env", "export", TICTACTOE, "--to", to, "--out", "adapter", "--json")
    assert done.json["error"]["code"] == "missing_plugin"
    assert "wander-integrations`" in done.json["error"]["hint"]
    assert not (home / "adapter").exists()


@pytest.mark.slow
def test_skyrl_plays_the_same_rollouts(wander: Wander, home: Path) -> None:
    site = home / "site"
    subprocess.run(
        [sys.executable, "-m", "pip", "install", "-q", "--target", str(site), "skyrl-gym"], check=True
    )
    assert wander("env", "export", TICTACTOE, "--to", "skyrl", "--out", "adapter").status == 0
    path = os.pathsep.join([str(home / "adapter"), str(site)])
    played = subprocess.run(
        [sys.executable, "-c", UNDER_SKYRL],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    assert played.stdout == "same\n", played.stderr
    rows = subprocess.run(
        [sys.executable, "-m", "tictactoe_skyrl", "eval", "2"],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=True,
    )
    assert [json.loads(line)["extra_info"]["index"] for line in rows.stdout.splitlines()] == [0, 1]


@pytest.mark.slow
def test_the_library_of_prime_rl_plays_the_same_rollouts(wander: Wander, home: Path) -> None:
    assert wander("env", "export", TICTACTOE, "--to", "prime-rl", "--out", "adapter").status == 0
    names = ("sdk", "compat", "plugins/wander-integrations")
    ours = (str(wheel_of(ROOT / name, home / "wheels" / name)) for name in names)
    wanted = ["verifiers==0.4.0", *ours]
    wanted.append(str(wheel_of(ROOT / "environments" / "tictactoe", home / "game")))
    python = environment_with(home / "venv", wanted)
    played = subprocess.run(
        [python, "-c", UNDER_VERIFIERS],
        env={**os.environ, "PYTHONPATH": str(home / "adapter")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert played.stdout.endswith("same\n"), played.stderr
