"""What holds for every environment in this repository: packaging, README, determinism, fair rewards."""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import json
import os
import re
import subprocess
import sys
import tomllib

import pytest
from bundled_environments import FOLDER, INSTALLED, PARAMS, needs_reasoning_gym
from wander import ReplayClient, ScriptedClient, load_environment
from wander.checks import check_environment
from wander.environment import LocalEnvironment
from wander.errors import ConfigError
from wander.evals import RunFolder, replay_run
from wander.loading import installed_environments, load_path
from wander.parsers import message_text
from wander.types import Rollout

SLOW = {"mcp_files": 3, "code_exec": 1, "long_context": 1, "terminal_tasks": 1}
"""Seconds in which a process or a sandbox starts; `make test` plays these less."""
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
import asyncio, importlib, json, sys
from wander import ScriptedClient, load_environment
from wander.environment import LocalEnvironment

async def play(name, count):
    handle = LocalEnvironment(load_environment(name.replace("_", "-")))
    client = ScriptedClient(importlib.import_module(f"{name}.players").random)
    records = []
    for example in await handle.examples("eval", 0, count):
        rollout = await handle.rollout(client, example, run_seed=3)
        assert rollout.failure is None, (name, rollout.failure)
        records.append(rollout.model_dump(include={"prompt", "completion", "reward", "metrics", "seed"}))
    examples = [each for split in ("train", "eval") for each in await handle.examples(split, 0, 20)]
    await handle.close()
    return [[example.model_dump() for example in examples], records]

print(json.dumps({name: asyncio.run(play(name, int(count))) for name, count in json.loads(sys.argv[1])}))
"""


def shared_out(param):
    """Leave the environment that starts a server for each rollout to the full run; it has its own tests."""
    more = [pytest.mark.full] if param.values[0] == "mcp_files" else []
    return pytest.param(*param.values, marks=[*param.marks, *more])


@pytest.fixture(params=[shared_out(param) for param in PARAMS])
def project(request) -> dict:
    return read_project(request.param)


def read_project(name: str) -> dict:
    parsed = tomllib.loads((FOLDER / name / "pyproject.toml").read_text())
    return parsed["project"] | parsed["tool"]["catalogue"] | {"folder": FOLDER / name}


def player(project: dict, kind: str):
    module = importlib.import_module(f"{project['folder'].name}.players")
    return ScriptedClient(getattr(module, project.get(kind, kind)))


async def played(project: dict, client, count: int, **arguments) -> list[Rollout]:
    handle = LocalEnvironment(load_environment(project["name"], **arguments))
    examples = await handle.examples("eval", 0, count)
    rollouts = [await handle.rollout(client, example, run_seed=5) for example in examples]
    await handle.close()
    assert [rollout.failure for rollout in rollouts] == [None] * count
    return rollouts


def mean(rollouts: list[Rollout]) -> float:
    return sum(rollout.reward for rollout in rollouts) / len(rollouts)


def test_each_environment_is_found_by_its_distribution_name(project):
    assert project["name"] in installed_environments()
    info = load_environment(project["name"]).info
    assert info.name == project["name"]
    assert info.summary == project["description"]
    assert info.tags == project["keywords"]
    assert info.deterministic != ("judge" in info.tags)
    assert importlib.metadata.version(project["name"]) == project["version"]


def test_each_environment_is_loaded_from_its_folder(project):
    assert load_path(project["folder"], num_examples=2).info.train_examples == 2


def test_each_environment_rejects_invalid_arguments(project):
    with pytest.raises(ConfigError, match="num_examples"):
        load_environment(project["name"], num_examples=0)


def test_each_readme_has_the_same_headings(project):
    readme = (project["folder"] / "README.md").read_text()
    assert [line[3:] for line in readme.splitlines() if line.startswith("## ")] == HEADINGS
    info = load_environment(project["name"]).info
    rewards = readme.split("## Rewards")[1].split("## Start")[0]
    from_kind = ("_calls", "tool_errors", "context_chars")
    own = [each.name for each in info.reward_functions if not each.name.endswith(from_kind)]
    assert [name for name in own if f"`{name}`" not in rewards] == []
    arguments = readme.split("## Arguments")[1].split("## A sample")[0]
    assert [name for name in info.arguments if f"| `{name}` |" not in arguments] == []
    scores = readme.split("## Reference scores")[1]
    assert [score for score in info.reference_scores.values() if f"{score:.3f}" not in scores] == []


@pytest.mark.full  # in one process, each is played twice below
def test_processes_and_hash_seeds_do_not_matter():
    """Two processes, at the same time, play all of them."""
    asked = json.dumps([(name, 2 if name in SLOW else 6) for name in INSTALLED])
    started = [
        subprocess.Popen(
            [sys.executable, "-c", PROBE, asked],
            env=os.environ | {"PYTHONHASHSEED": seed},
            stdout=subprocess.PIPE,
            text=True,
        )
        for seed in ("0", "31337")
    ]
    answers = [process.communicate()[0] for process in started]
    assert [process.returncode for process in started] == [0, 0]
    assert answers[0] == answers[1]
    assert sorted(json.loads(answers[0])) == INSTALLED


async def test_the_expert_earns_more_than_the_random_player(project):
    """What they earn replays bit for bit."""
    count = 2 if project["folder"].name in SLOW else 12
    best, worst = [await played(project, player(project, kind), count) for kind in ("expert", "random")]
    assert mean(best) > 0.7 > 0.6 > mean(worst)
    stored = [Rollout.model_validate_json(rollout.model_dump_json()) for rollout in best]
    again = await played(project, ReplayClient(stored), count)
    for first, second in zip(best, again, strict=True):
        kept = ("completion", "reward", "metrics", "stop_reason")
        assert [getattr(first, name) for name in kept] == [getattr(second, name) for name in kept]


async def test_the_easy_setting_shows_usable_examples(project):
    easy = project["easy"]
    (one,) = await played(project, player(project, "expert"), 1, **easy)
    asked = [message for message in one.prompt if message["role"] == "assistant"]
    assert len(asked) >= easy["show_examples"]
    assert one.reward > 0.4
    (one,) = await played(project, player(project, "random"), 1, **easy)


@pytest.mark.parametrize("reply", ["", "I do not know.", "<answer></answer><guess></guess>", "done"])
async def test_correct_format_without_content_earns_nothing(project, reply):
    if project["folder"].name == "mcp_files":
        pytest.skip("its rewards are those of wiki_search, and each reply starts a server")
    floor = 0.1 if project["folder"].name == "tictactoe" else 0.0
    count = 1 if project["folder"].name in SLOW else 3
    assert max(each.reward for each in await played(project, ScriptedClient([reply] * 20), count)) <= floor


def test_prompts_do_not_contain_answers_and_splits_do_not_overlap(project):
    env = load_environment(project["name"])
    for example in env.dataset("eval").examples(0, 40):
        said = "\n".join(message_text(message) for message in example.prompt)
        if project["folder"].name != "reverse_text" and len(str(example.answer)) > 3:
            assert not re.search(rf"(?<!\w){re.escape(str(example.answer))}(?!\w)", said), example.example_id


@pytest.mark.full
async def test_the_reference_runs_replay_exactly(project):
    runs = sorted(run for run in (project["folder"] / "reference").iterdir() if run.is_dir())
    assert {"expert", "random"} <= {run.name for run in runs}
    if not load_environment(project["name"]).info.deterministic:
        return
    for run in map(RunFolder.open, runs):
        handle = LocalEnvironment(load_environment(project["name"], **run.manifest.environment.arguments))
        report = await replay_run(handle, run.manifest, list(run.rollouts()))
        await handle.close()
        assert (report.refused, report.same) == (None, run.manifest.expected_rollouts), report.divergences[:1]


@needs_reasoning_gym
@pytest.mark.full
def test_readme_tables_match_the_reference_runs():
    spec = importlib.util.spec_from_file_location("catalogue", FOLDER.parent / "scripts" / "catalogue.py")
    catalogue = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(catalogue)
    stale = [str(path) for path, text in catalogue.pages().items() if path.read_text() != text]
    assert stale == [], "run `python scripts/catalogue.py write`"


@pytest.mark.full
def test_each_environment_passes_every_check(project):
    report = check_environment(project["folder"])
    assert [each for each in report.checks if each.status not in ("pass", "skip")] == []
