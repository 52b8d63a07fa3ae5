"""The scripts of `scripts/gpu`, imported with the path that they expect."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).parents[2]


def gpu_script(name: str) -> ModuleType:
    """Return a module of `scripts/gpu`, or of `benchmarks` by its path."""
    file = ROOT / (name if "/" in name else f"scripts/gpu/{name}.py")
    title = f"gpu_{file.stem}"
    if title in sys.modules:
        return sys.modules[title]
    spec = importlib.util.spec_from_file_location(title, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[title] = module
    spec.loader.exec_module(module)
    return module
