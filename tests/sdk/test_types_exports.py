"""`import wander` gives the names and loads no more than they need."""

from __future__ import annotations

import ast
import importlib
import inspect
import json
import subprocess
import sys

import pytest
import wander

PROBE = """
import json, sys
import wander
light = sorted(name for name in sys.modules)
wander.SingleTurnEnv, wander.MultiTurnEnv, wander.ScriptedClient, wander.load_environment
print(json.dumps([light, sorted(sys.modules)]))
"""
HEAVY = {"torch", "openai", "aiohttp", "datasets", "fastapi", "sqlalchemy", "transformers", "numpy"}


@pytest.fixture(scope="module")
def loaded() -> list[set[str]]:
    done = subprocess.run([sys.executable, "-c", PROBE], capture_output=True, text=True, check=True)
    return [set(names) for names in json.loads(done.stdout)]


def test_nothing_heavy_is_loaded_by_the_import_or_by_writing_an_environment(loaded):
    for names in loaded:
        assert names & HEAVY == set()


def test_environments_are_loaded_when_they_are_used(loaded):
    at_import, after_use = loaded
    own = {name.removeprefix("wander.") for name in at_import if name.startswith("wander.")}
    assert own == {"errors", "lazy", "types", "version"}
    assert "wander.envs.single_turn" in after_use


@pytest.mark.parametrize("name", wander.__all__)
def test_every_exported_name_exists(name):
    assert getattr(wander, name) is not None
    assert name in dir(wander)


def test_the_namespace_is_small_and_explains_missing_names():
    assert len(set(wander.__all__)) == len(wander.__all__) <= 40
    with pytest.raises(AttributeError, match="module `wander` has no attribute `Nothing`"):
        _ = wander.Nothing


def test_lazy_names_are_in_their_listed_modules():
    guarded = next(node for node in ast.parse(inspect.getsource(wander)).body if isinstance(node, ast.If))
    for node in guarded.body:
        for alias in node.names:
            assert alias.name in wander.__all__
            there, here = (
                getattr(importlib.import_module(node.module), alias.name),
                getattr(wander, alias.name),
            )
            if inspect.ismodule(here):  # a package that is called as the function of its name
                assert inspect.signature(here) == inspect.signature(there)
            else:
                assert here is there
