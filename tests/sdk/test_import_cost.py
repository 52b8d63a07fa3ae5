"""`import wander` loads next to nothing of its own: everything else waits until it is used."""

from __future__ import annotations

import json
import subprocess
import sys


def loaded(statement: str) -> set[str]:
    """Return the modules that a fresh interpreter holds after a statement."""
    command = [sys.executable, "-c", f"{statement}\nimport json, sys\nprint(json.dumps(sorted(sys.modules)))"]
    return set(json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout))


def test_import_wander_loads_five_modules_of_its_own_next_to_pydantic() -> None:
    modules = loaded("import wander")
    own = {name for name in modules if name.partition(".")[0] == "wander"}
    assert own == {"wander", *(f"wander.{name}" for name in ("errors", "lazy", "types", "version"))}
    others = modules - own - loaded("import pydantic.main, hashlib, json")
    assert len(others) <= 15, f"beside pydantic it loads {sorted(others)}"


def test_an_environment_class_loads_no_client_evaluator_or_library() -> None:
    modules = loaded("from wander import EnvGroup, MCPEnv, Rubric, SandboxEnv, SingleTurnEnv, ToolEnv")
    heavy = {"aiohttp", "openai", "websockets", "zstandard", "multiprocessing", "numpy"}
    assert modules & heavy == set()
    assert {name for name in modules if name.startswith(("wander.evals", "wander.worker"))} == set()


WITHOUT_EXTRAS = """
import importlib, json, sys
from pathlib import Path
sys.modules |= dict.fromkeys(["torch", "transformers", "jinja2", "datasets", "trl", "huggingface_hub"])
from wander.errors import MissingExtra
from wander.train.watch.plots import read_plotted
hints = {}
for module in sys.argv[2:]:
    try:
        importlib.import_module(module)
    except MissingExtra as error:
        hints[module] = error.hint
print(json.dumps([read_plotted(Path(sys.argv[1])).known("reward"), hints]))
"""


def test_without_the_extras_the_installation_command_is_printed(tmp_path) -> None:
    (tmp_path / "metrics.jsonl").write_text('{"step": 1, "reward": 0.5}\n', encoding="utf-8")
    needed = {
        "wander.models.client": "transformers",
        "wander.models.tiny": "transformers",
        "wander.train.grpo": "train",
        "wander.train.sft": "train",
    }
    command = [sys.executable, "-c", WITHOUT_EXTRAS, str(tmp_path), *needed]
    reward, hints = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    assert reward == [[1, 0.5]]
    assert hints == {one: f"run `pip install 'wander-sdk[{extra}]'`" for one, extra in needed.items()}
