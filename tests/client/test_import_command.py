"""`wander env import` brings a package or an evaluation to a hub, and the hub shows where it is from."""

from __future__ import annotations

import json

import pytest

MODULE = """
import verifiers as vf


class Sayer(vf.SingleTurnEnv):
    def is_completed(self, messages, state, **kwargs):
        return True


def load_environment(**kwargs):
    return Sayer(eval_dataset=[{"question": "say 1", "answer": "1"}], rubric=vf.Rubric(), **kwargs)
"""
PROJECT = """
[project]
name = "old-sayer"
version = "1.2"
description = "Say it."
license = "MIT"
dependencies = ["verifiers>=0.1.3"]

[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[tool.hatch.build]
include = ["old_sayer.py"]
"""


@pytest.fixture
def package(home):
    """A package as its author has it."""
    folder = home / "old-sayer"
    folder.mkdir()
    (folder / "old_sayer.py").write_text(MODULE)
    (folder / "pyproject.toml").write_text(PROJECT)
    return folder


@pytest.mark.full
def test_a_package_becomes_an_environment_with_its_origin(hub, package, home, monkeypatch):
    before = {path.name: path.read_bytes() for path in package.iterdir()}
    dry = hub.wander("env", "import", "path", str(package), "--no-check", "--dry-run", "--json").data
    assert (dry["environment"], dry["sent"], dry["url"]) == ("old-sayer", False, None)
    assert (dry["library"], dry["generation"]) == ("verifiers", 1)
    monkeypatch.setenv("WANDER_TOKEN", hub.token)
    out = home / "kept"
    line = ("env", "import", "path", str(package), "--no-check")
    done = hub.wander(*line, "--out", str(out), "--json").data
    assert (done["environment"], done["version"], done["sent"]) == ("admin/old-sayer", "1.2", True)
    assert {path.name: path.read_bytes() for path in package.iterdir()} == before
    assert 'old-sayer = "old_sayer:load_environment"' in (out / "pyproject.toml").read_text()
    again = hub.wander(*line, "--json").data
    assert again["sent"] is False
    refused = hub.wander(*line, "--out", str(out))
    assert refused.status == 1
    assert "not empty" in refused.err

    shown = hub.wander("env", "info", "admin/old-sayer", "--json").data
    assert shown["origin"] == f"old-sayer, sha256 {done['origin']['sha256']}, by admin"
    assert "imported   old-sayer, sha256" in hub.wander("env", "info", "admin/old-sayer").out
    page = hub.http.get("/admin/old-sayer").text
    assert "Imported into Wander from" in page
    assert shown["version"]["entry_point"] == "old_sayer:load_environment"


def test_an_import_needs_a_login_before_anything_is_fetched(hub):
    refused = hub.wander("env", "import", "path", "nowhere")
    assert refused.status == 4
    missing = hub.wander("env", "import", "path", "nowhere", "--dry-run")
    assert missing.status == 3


@pytest.mark.parametrize("command", ["path", "git", "results"])
def test_every_kind_of_import_has_help(wander, command):
    assert f"wander env import {command}" in wander("env", "import", command, "--help").out


def rows(**changes):
    said = [{"role": "user", "content": "say 1"}]
    row = {
        "prompt": said,
        "completion": [{"role": "assistant", "content": "1"}],
        "answer": "1",
        "reward": 1.0,
    }
    return "".join(json.dumps({**row, "example_id": 0, **changes}) + "\n" for _ in range(2))


@pytest.mark.full
def test_evaluations_of_other_libraries_are_imported_and_posted(hub, package, home, monkeypatch):
    monkeypatch.setenv("WANDER_TOKEN", hub.token)
    hub.wander("env", "import", "path", str(package), "--no-check")
    early = {"env": "old-sayer", "model": "a-model", "avg_reward": 1.0, "avg_right": 1.0}
    later = {"env_id": "old-sayer", "model": "a-model", "avg_metrics": {"right": 1.0}}
    files = {
        "early": {"metadata.json": json.dumps(early), "results.jsonl": rows(right=1.0)},
        "later": {"metadata.json": json.dumps(later), "results.jsonl": rows(metrics={"right": 1.0})},
        "old-sayer--a-model--1a2b3c4d": {"traces.jsonl": traces()},
    }
    for name, contents in files.items():
        folder = home / name
        folder.mkdir()
        for file, text in contents.items():
            (folder / file).write_text(text)
        line = ("env", "import", "results", str(folder), "--environment", "admin/old-sayer", "--json")
        run = hub.wander(*line).data
        assert run["environment"] == "admin/old-sayer@1.2"
        assert run["summary"]["reward_mean"] == 1.0
        posted = hub.wander("post", run["folder"], "--json").data
        assert posted["level"] == "claimed"
        assert "does not name the wheel" in posted["level_reason"]
        kept = hub.http.get(f"/api/v1/runs/{run['run_id']}").json()
        assert kept["manifest"]["model"]["name"] == "a-model"
        assert (kept["summary"]["rollouts"], kept["summary"]["reward_mean"]) == (2, 1.0)


def traces() -> str:
    def node(role, text, parent=None, sampled=False):
        return {"parent": parent, "sampled": sampled, "message": {"role": role, "content": text}}

    return "".join(
        json.dumps(
            {
                "task": {"data": {"idx": 0, "prompt": "say 1"}},
                "nodes": [node("user", "say 1"), node("assistant", "1", 0, sampled=True)],
                "rewards": {"right": {"score": 1.0, "weight": 1.0}},
                "stop_condition": "agent_completed",
            }
        )
        + "\n"
        for _ in range(2)
    )
