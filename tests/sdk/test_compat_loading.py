"""A project written for the classic API loads and plays like one of ours, in a process of its own too."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest
from wander import adapters
from wander.clients.scripted import ScriptedClient
from wander.errors import LoadError
from wander.loading import load_path
from wander.worker.host.environment import WorkerEnvironment
from wander_compat.alias import has_upstream

MODULE = """
import random

import verifiers as vf
from verifiers.types import Messages, State
from verifiers.utils.data_utils import extract_boxed_answer
from verifiers.rubrics.rubric import Rubric
from verifiers.envs.multiturn_env import MultiTurnEnv


class Echo(MultiTurnEnv):
    async def env_response(self, messages: Messages, state: State, **kwargs) -> Messages:
        return [{"role": "user", "content": f"{random.random()}: {messages[-1]['content']}"}]


def load_environment(count: int = 2, **kwargs) -> vf.Environment:
    rows = [{"question": f"q{n}", "answer": str(n)} for n in range(count)]
    parser = vf.Parser(extract_fn=extract_boxed_answer)

    def right(parser, completion, answer):
        return 1.0 if parser.parse_answer(completion) == answer else 0.0

    return Echo(eval_dataset=rows, parser=parser, rubric=Rubric([right], parser=parser), max_turns=2)
"""
PROJECT = '[project]\nname = "classic-echo"\nversion = "1.0"\ndependencies = ["verifiers>=0.1.9"]\n'


@pytest.fixture
def project(tmp_path) -> Path:
    folder = tmp_path / "classic-echo"
    folder.mkdir()
    (folder / "classic_echo.py").write_text(MODULE)
    (folder / "pyproject.toml").write_text(PROJECT)
    return folder


async def test_a_worker_gives_the_same_rollout_as_this_process(project, tmp_path):
    worker = await WorkerEnvironment.start(
        None, None, path=project, arguments={"count": 3}, log_path=tmp_path / "log"
    )
    try:
        assert worker.info.name == "classic-echo"
        assert worker.info.kind == "multi_turn"
        assert worker.info.max_turns == 2
        assert worker.info.arguments == {"count": 3}
        (example,) = await worker.examples("eval", 1, 1)
        there = await worker.rollout(ScriptedClient(["a", "\\boxed{1}"]), example)
    finally:
        await worker.close()
    env = load_path(project, count=3)
    here = await env.rollout(ScriptedClient(["a", "\\boxed{1}"]), env.dataset("eval")[1])
    assert there.failure is None
    assert there.reward == here.reward == 1.0
    assert there.completion == here.completion


def test_a_name_that_the_api_never_had_is_reported(tmp_path):
    (tmp_path / "wrong_env.py").write_text("import verifiers as vf\nx = vf.NoSuchThing\n")
    with pytest.raises(LoadError, match="NoSuchThing"):
        load_path(tmp_path / "wrong_env.py")


def test_importing_the_loader_loads_nothing_of_the_api():
    probe = "import sys, wander.loading; print([m for m in sys.modules if m.startswith('wander_compat.v')])"
    done = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


NATIVE = """
from wander import SingleTurnEnv


def load_environment():
    return SingleTurnEnv([{"question": "q"}])
"""


def test_an_environment_of_our_own_loads_nothing_of_the_api(tmp_path):
    (tmp_path / "native_env.py").write_text(NATIVE)
    probe = (
        "import sys; from wander.loading import load_path; load_path(sys.argv[1]); "
        "print(sorted(m for m in sys.modules if m.startswith(('wander_compat', 'verifiers'))))"
    )
    command = [sys.executable, "-c", probe, str(tmp_path / "native_env.py")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "['wander_compat', 'wander_compat.alias', 'wander_compat.loading']"


def test_without_an_adapter_a_classic_environment_is_rejected(project, monkeypatch):
    monkeypatch.setattr("wander.loading.adapters", tuple)
    with pytest.raises(LoadError, match="returned a `Echo`, not an environment"):
        load_path(project)


def test_an_adapter_that_cannot_be_imported_is_named(monkeypatch):
    broken = EntryPoint("broken", "no_such_module_at_all", adapters.GROUP)
    monkeypatch.setattr(adapters, "entry_points", lambda group: [broken])
    with pytest.raises(LoadError, match="the adapter `broken` cannot be imported") as caught:
        adapters.adapters.__wrapped__()
    assert caught.value.hint == "reinstall `no_such_module_at_all` from the index that it came from"


@pytest.mark.parametrize(
    ("source", "upstream"),
    [
        ("import wander_compat.verifiers\n", False),
        ("__version__ = '0.4.0'\n", True),
    ],
)
def test_our_distribution_is_distinguished_from_upstream(source, upstream, tmp_path, monkeypatch):
    (tmp_path / "verifiers.py").write_text(source)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    assert has_upstream() is upstream
