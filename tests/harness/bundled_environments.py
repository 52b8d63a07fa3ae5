"""The bundled environments, and those that `make setup` skips on a machine without a C compiler."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest

FOLDER = Path(__file__).resolve().parents[2] / "environments"
NAMES = sorted(path.parent.name for path in FOLDER.glob("*/pyproject.toml"))
needs_reasoning_gym = pytest.mark.skipif(
    find_spec("reasoning_gym") is None, reason="reasoning-gym is not installed: it needs a C compiler"
)
PARAMS = [
    pytest.param(name, marks=needs_reasoning_gym if name == "reasoning_gym_tasks" else ()) for name in NAMES
]
INSTALLED = [name for name in NAMES if find_spec(name) is not None]
