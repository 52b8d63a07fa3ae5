"""What holds for every environment in this repository: packaging, README, determinism, replay."""

from __future__ import annotations

import importlib.metadata
import json
import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from wander import ReplayClient, ScriptedClient, load_environment
from wander.loading import installed_environments, load_path
from wander.types import Rollout

FOLDER = Path(__file__).resolve().parents[2] / "environments"
NAMES = sorted(path.parent.name for path in FOLDER.glob("*/pyproject.toml"))
HEADINGS = [
    "What it tests",
    "Prompt",
    "Actions",
    "Rewards",
    "Start",
    "End",
    "Arguments",
    "A sample rollout",
    "Reference scores",
]
PROBE = """
import asyncio, json, sys
from wander import ScriptedClient, load_environment
from wander.seeding import derived_rng

def noise(request):
    rng = derived_rng(request.seed)
    return f"<think>x</think><move>{rng.randrange(9)}</move><reversed_text>{rng.random()}</reversed_text>"

async def main():
    env = load_environment(sys.argv[1])
    records = []
    for example in env.dataset("eval").examples(0, 10):
        rollout = await env.rollout(ScriptedClient(noise), example, run_seed=3)
        assert rollout.failure is None, rollout.failure
        records.append(rollout.model_dump(include={"prompt", "completion", "reward", "metrics", "seed"}))
    examples = env.dataset("train").examples(0, 100) + env.dataset("eval").examples(0, 100)
    print(json.dumps([[example.model_dump() for example in examples], records]))

asyncio.run(main())
"""


@pytest.fixture(params=NAMES)
def project(request) -> dict:
    parsed = tomllib.loads((FOLDER / request.param / "pyproject.toml").read_text())
    return parsed["project"] | {"folder": FOLDER / request.param}


def test_both_are_here():
    assert NAMES == ["reverse_text", "tictactoe"]


def test_each_is_found_by_its_distributions_name(project):
    assert project["name"] in installed_environments()
    env = load_environment(project["name"])
    assert env.info.name == project["name"]
    assert env.info.summary == project["description"]
    assert env.info.tags == project["keywords"]
    assert env.info.deterministic
    assert importlib.metadata.version(project["name"]) == project["version"]


def test_each_is_loaded_from_its_folder(project):
    assert load_path(project["folder"], num_examples=2).info.train_examples == 2


def test_each_readme_has_the_same_headings(project):
    readme = (project["folder"] / "README.md").read_text()
    assert [line[3:] for line in readme.splitlines() if line.startswith("## ")] == HEADINGS
    info = load_environment(project["name"]).info
    rewards = readme.split("## Rewards")[1].split("## Start")[0]
    assert [each.name for each in info.reward_functions if f"`{each.name}`" not in rewards] == []
    scores = readme.split("## Reference scores")[1]
    assert [score for score in info.reference_scores.values() if f"{score:.3f}" not in scores] == []


def test_processes_and_hash_seeds_do_not_matter(project):
    answers = [
        subprocess.run(
            [sys.executable, "-c", PROBE, project["name"]],
            env=os.environ | {"PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("0", "31337")
    ]
    assert answers[0] == answers[1]
    examples, records = json.loads(answers[0])
    assert (len(examples), len(records)) == (200, 10)


async def test_a_stored_rollout_replays_bit_for_bit(project):
    env = load_environment(project["name"])
    client = ScriptedClient(lambda request: f"<think>x</think><move>{request.turn}</move>")
    for example in env.dataset("eval").examples(0, 20):
        first = await env.rollout(client, example, run_seed=5)
        stored = Rollout.model_validate_json(first.model_dump_json())
        again = await load_environment(project["name"]).rollout(ReplayClient([stored]), example, run_seed=5)
        assert again.failure is None
        assert (again.completion, again.reward, again.metrics) == (
            first.completion,
            first.reward,
            first.metrics,
        )
        assert again.stop_reason == first.stop_reason
