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


def test_importing_takes_little_more_than_pydantic_alone():
    pydantic = min(probe("pydantic.main,asyncio")["seconds"] for _ in range(3))
    wander = min(probe("wander")["seconds"] for _ in range(3))
    assert wander < 4 * pydantic, f"`import wander` {wander:.3f} s, pydantic and asyncio {pydantic:.3f} s"


def test_the_sdk_requires_at_most_six_distributions(members):
    sdk = next(member for member in members if member.name == "wander-sdk")
    assert len(sdk.pyproject["project"]["dependencies"]) <= 6
