"""`import wander` is cheap, and so is the command before it knows what it has to do."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

HEAVY = {"torch", "transformers", "datasets", "trl", "peft", "numpy", "altair", "fastapi", "sqlalchemy"}
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


@pytest.mark.parametrize(
    ("line", "refused"),
    [
        ("env list", HEAVY | {"pydantic", "httpx", "rich"}),
        ("runs list", HEAVY | {"httpx", "openai", "aiohttp"}),
        ("eval --help", HEAVY | {"httpx", "openai", "aiohttp"}),
        ("search --help", HEAVY | {"httpx", "pydantic"}),
    ],
)
def test_a_command_loads_no_more_than_it_needs(line, refused, tmp_path, monkeypatch):
    for name in ("CONFIG", "DATA", "CACHE", "RUNS"):
        monkeypatch.setenv(f"WANDER_{name}_DIR", str(tmp_path))
    code = "import json, sys; from wander_client.main import main; main(sys.argv[1].split()); "
    code += "print(json.dumps(sorted(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code, line], capture_output=True, text=True, check=True)
    assert sorted(refused & set(json.loads(done.stdout.splitlines()[-1]))) == []


def test_importing_takes_little_more_than_pydantic_alone():
    pydantic = min(probe("pydantic.main,asyncio")["seconds"] for _ in range(3))
    wander = min(probe("wander")["seconds"] for _ in range(3))
    assert wander < 4 * pydantic, f"`import wander` {wander:.3f} s, pydantic and asyncio {pydantic:.3f} s"


def test_the_sdk_requires_at_most_six_distributions(members):
    sdk = next(member for member in members if member.name == "wander-sdk")
    assert len(sdk.pyproject["project"]["dependencies"]) <= 6
