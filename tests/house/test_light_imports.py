"""`import wander` is cheap, and so is the command before it knows what it has to do."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from wander_client.commands import COMMANDS

HEAVY = {"torch", "transformers", "datasets", "trl", "peft", "numpy", "altair", "fastapi", "sqlalchemy"}
MOST_MORE = 50
PROBE = """
import json, sys, time
began = time.perf_counter()
for module in sys.argv[1].split(","):
    __import__(module)
print(json.dumps({"seconds": time.perf_counter() - began, "modules": sorted(sys.modules)}))
"""


def probe(modules: str) -> dict:
    """Import modules in a fresh interpreter; return the seconds it took and what was loaded."""
    done = subprocess.run([sys.executable, "-c", PROBE, modules], capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


@pytest.mark.parametrize(
    ("module", "refused"),
    [("wander", HEAVY | {"openai", "aiohttp"}), ("wander_client.main", HEAVY | {"openai"})],
)
def test_importing_loads_nothing_heavy(module, refused):
    loaded = set(probe(module)["modules"])
    assert module in loaded
    assert sorted(loaded & refused) == []


SLOW = HEAVY | {
    "pydantic",
    "httpx",
    "rich",
    "wander",
    "openai",
    "aiohttp",
    "asyncio",
    "packaging",
}
EVERY_LINE = """
import json, os, sys
from wander_client.main import main
for line in sys.argv[1:]:
    sys.stdout.flush()
    if not (child := os.fork()):
        sys.stdout = open(os.devnull, "w")
        status = main(line.split())
        sys.__stdout__.write(json.dumps([line, status, sorted(sys.modules)]) + "\\n")
        sys.__stdout__.flush()
        os._exit(0)
    os.waitpid(child, 0)
"""


def test_a_command_without_torch_loads_little_more_than_the_help(tmp_path, monkeypatch):
    """What takes `wander --help` half as long again is some fifty small modules, or one that is slow."""
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("CONFIG", "DATA", "CACHE", "RUNS", "STATE"):
        monkeypatch.delenv(f"WANDER_{name}_DIR", raising=False)
    lines = ["--help", *(f"{name} --help" for name in COMMANDS), "env list", "runs list"]
    done = subprocess.run(
        [sys.executable, "-c", EVERY_LINE, *lines], capture_output=True, text=True, check=True, cwd=tmp_path
    )
    loaded = {line: (status, set(names)) for line, status, names in map(json.loads, done.stdout.splitlines())}
    assert [status for status, _ in loaded.values()] == [0] * len(lines)
    least = loaded["--help"][1]
    assert {line: sorted(names & SLOW) for line, (_, names) in loaded.items() if names & SLOW} == {}
    more = {line: len(names - least) for line, (_, names) in loaded.items()}
    assert {line: number for line, number in more.items() if number > MOST_MORE} == {}


def test_importing_takes_little_longer_than_pydantic():
    pydantic = min(probe("pydantic.main,asyncio")["seconds"] for _ in range(3))
    wander = min(probe("wander")["seconds"] for _ in range(3))
    assert wander < 4 * pydantic, f"`import wander` {wander:.3f} s, pydantic and asyncio {pydantic:.3f} s"


def test_the_sdk_requires_at_most_six_distributions(members):
    sdk = next(member for member in members if member.name == "wander-sdk")
    assert len(sdk.pyproject["project"]["dependencies"]) <= 6
