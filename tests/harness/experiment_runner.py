"""`experiments/run.py` and its commands, run in this process."""

from __future__ import annotations

import importlib.util
import re
import shlex
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from command_line import Wander

ROOT = Path(__file__).parents[2]


def experiment_runner(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Return `run.py`, imported with its folder and `scripts` on the path."""
    file = ROOT / "experiments/run.py"
    monkeypatch.syspath_prepend(str(file.parent))
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))
    spec = importlib.util.spec_from_file_location("experiments_run", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "experiments_run", module)
    spec.loader.exec_module(module)
    return module


def in_process(script: ModuleType, wander: Wander, folder: Path) -> Any:
    """Return a workplace that runs its commands in this process and records them."""

    class InProcess(script.Workplace):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__(folder)
            self.typed: list[str] = []

        def type(self, line: str, **options: object) -> str:
            self.typed.append(line)
            name, *rest = shlex.split(line)
            assert name == "wander"
            rest = [re.sub(r"(^|=)(?=seed-\d+/)", rf"\g<1>{self.folder}/", each) for each in rest]
            done = wander(*rest)
            assert done.status == 0, f"{line}\n{done.err}"
            return str(done.out)

    return InProcess()
