"""`import wander` loads next to nothing of its own: everything else waits until it is used."""

from __future__ import annotations

import json
import subprocess
import sys


def loaded(statement: str) -> set[str]:
    """Return the modules that a fresh interpreter holds after a statement."""
    command = [sys.executable, "-c", f"{statement}\nimport json, sys\nprint(json.dumps(sorted(sys.modules)))"]
    return set(json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout))


def test_import_wander_loads_six_modules_of_its_own_beside_pydantic() -> None:
    modules = loaded("import wander")
    own = {name for name in modules if name.partition(".")[0] == "wander"}
    assert own == {"wander", *(f"wander.{name}" for name in ("errors", "lazy", "moved", "types", "version"))}
    others = modules - own - loaded("import pydantic.main, hashlib, json")
    assert len(others) <= 15, f"beside pydantic it loads {sorted(others)}"


def test_an_environment_class_loads_no_client_evaluator_or_library() -> None:
    modules = loaded("from wander import Rubric, SingleTurnEnv")
    heavy = {"aiohttp", "openai", "websockets", "zstandard", "multiprocessing", "numpy"}
    assert modules & heavy == set()
    assert {name for name in modules if name.startswith(("wander.evals", "wander.worker"))} == set()
