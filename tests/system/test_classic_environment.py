"""A project written for the classic `verifiers` is published, installed by name, evaluated, and replayed."""

from __future__ import annotations

import json
import shutil
import subprocess

import pytest
from machine import Machine
from package_mirror import build_mirror

pytestmark = pytest.mark.slow  # the virtual environment holds pyarrow and pandas

MODULE = """
import verifiers as vf
from datasets import Dataset


def load_environment(**kwargs) -> vf.Environment:
    rows = [{"question": f"say {n}", "answer": str(n)} for n in range(4)]
    parser = vf.XMLParser(["answer"])

    def right(completion, answer, parser):
        return 1.0 if parser.parse_answer(completion) == answer else 0.0

    rubric = vf.Rubric([right], parser=parser)
    return vf.SingleTurnEnv(dataset=Dataset.from_list(rows), parser=parser, rubric=rubric)


def two(request):
    return "<answer>2</answer>"
"""
PROJECT = """
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "classic-sayer"
version = "0.1.0"
description = "Say the number."
requires-python = ">=3.11"
dependencies = ["verifiers==0.1.5"]

[tool.hatch.build]
include = ["classic_sayer.py"]
"""


@pytest.fixture(scope="module")
def full_mirror(tmp_path_factory) -> str:
    """What our `verifiers` needs, without what is ours."""
    folder = tmp_path_factory.mktemp("full-mirror")
    address = build_mirror(folder, ["verifiers", "wander-client", "hatchling"])
    for ours in ("wander-sdk", "wander-client", "wander-compat", "verifiers"):
        shutil.rmtree(folder / "simple" / ours)
    return address


@pytest.fixture
def machine(tmp_path_factory, tmp_path, hub, full_mirror) -> Machine:
    home = tmp_path / "home"
    home.mkdir()
    uv_cache = tmp_path_factory.getbasetemp() / "uv-cache"
    return Machine(home, hub, full_mirror, {"UV_CACHE_DIR": str(uv_cache)})


def test_an_old_pin_gets_verifiers_from_the_hub(machine):
    folder = machine.home / "classic-sayer"
    folder.mkdir()
    (folder / "classic_sayer.py").write_text(MODULE)
    (folder / "pyproject.toml").write_text(PROJECT)
    machine.wander("publish", folder, "--no-check")
    machine.wander("install", "admin/classic-sayer")
    python = next(machine.home.glob("data/**/bin/python"))
    probe = "import verifiers, wander; print(verifiers.__name__, verifiers.__version__)"
    done = subprocess.run([python, "-c", probe], capture_output=True, text=True, check=True)
    assert done.stdout.split()[0] == "wander_compat.verifiers"
    lock = next(machine.home.glob("data/**/pylock.toml")).read_text()
    assert "verifiers-0.3.1" in lock
    assert str(machine.home) not in lock
    run = machine.wander("eval", "admin/classic-sayer", "-m", "scripted:classic_sayer:two", "-n", "4")
    assert run["summary"]["reward_mean"] == 0.25, json.dumps(run)
