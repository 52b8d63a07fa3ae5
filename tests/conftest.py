"""What holds for every test: modules that it imported from its own folders are forgotten after it."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def _own_modules(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Keep tests apart that import modules of one name, in whatever order they share a process."""
    temporary = str(tmp_path_factory.getbasetemp())
    modules, path = set(sys.modules), list(sys.path)
    yield
    for name in set(sys.modules) - modules:
        module = sys.modules[name]
        # What stands there itself: some modules (`torch.ops`) make up every attribute that is asked for.
        places = [vars(module).get("__file__"), *(vars(module).get("__path__") or [])]
        if any(place and str(place).startswith(temporary) for place in places):
            del sys.modules[name]
    if sys.path != path:
        sys.path[:] = [entry for entry in sys.path if entry in path or not entry.startswith(temporary)]
        importlib.invalidate_caches()
