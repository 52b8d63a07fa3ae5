"""What holds for every test: how hard Hypothesis tries, which files go first, and that modules which
a test imported from its own folders are forgotten after it.
"""

from __future__ import annotations

import gc
import importlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
from hypothesis import HealthCheck, settings
from xdist.remote import Producer
from xdist.scheduler import LoadScopeScheduling

# No deadlines: how long an example takes says more about the machine than about the code.
for name, examples in {"dev": 20, "ci": 100}.items():
    settings.register_profile(
        name, max_examples=examples, deadline=None, suppress_health_check=[HealthCheck.too_slow]
    )
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE") or ("ci" if os.environ.get("CI") else "dev"))

LONGEST_FIRST = ("tests/docs", "tests/sdk/training", "tests/system", "tests/client", "tests/hub")

# Where it is set, every process of a test compiles all that it imports: 3 s for PyTorch, 4 s for the hub.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

TOGETHER = ("tests/sdk/training", "tests/system", "tests/house")
"""Folders whose short tests share a worker: each needs what is dear (PyTorch, a hub, all sources parsed)."""

gc.disable()  # until all is imported: a fifth of the collection's time went into looking for garbage


def pytest_collection_finish() -> None:
    """Leave what was imported out of the search for garbage: a million objects, a sixth of tests' time."""
    gc.freeze()
    gc.enable()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Give the longest files out first where workers share them: at the end one keeps a worker alone."""
    if hasattr(config, "workerinput"):
        items.sort(key=_turn)


@pytest.hookimpl(optionalhook=True)  # without xdist nobody asks
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> LoadScopeScheduling | None:
    """Give each worker whole files, in the short run whole folders where their tests share what is dear."""
    if config.getoption("dist") != "loadfile":
        return None
    folders = TOGETHER if "not full" in config.getoption("markexpr") else ()

    class Files(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            file = nodeid.partition("::")[0]
            return next((folder for folder in folders if file.startswith(folder)), file)

    return Files(config, log)


def _turn(item: pytest.Item) -> int:
    folder = item.path.relative_to(item.config.rootpath).as_posix()
    return next((turn for turn, start in enumerate(LONGEST_FIRST) if folder.startswith(start)), 99)


def _lies_in(module: ModuleType, folder: str) -> bool:
    # What stands there itself: some modules (`torch.ops`) make up every attribute that is asked for.
    places = [vars(module).get("__file__"), *(vars(module).get("__path__") or [])]
    return any(place and str(place).startswith(folder) for place in places)


@pytest.fixture(autouse=True)
def _own_modules(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Keep tests apart that import modules of one name, in whatever order they share a process."""
    temporary = str(tmp_path_factory.getbasetemp())
    modules, path = set(sys.modules), list(sys.path)
    yield
    # All are found before any goes: a namespace package looks for its place in the one that it is part of.
    for name in [name for name in set(sys.modules) - modules if _lies_in(sys.modules[name], temporary)]:
        del sys.modules[name]
    if sys.path != path:
        sys.path[:] = [entry for entry in sys.path if entry in path or not entry.startswith(temporary)]
        importlib.invalidate_caches()


@pytest.fixture(scope="session")
def migrated_database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A database file that the migrations built, copied for each test."""
    from wander_hub.database import Database

    path = tmp_path_factory.mktemp("hub") / "hub.db"
    database = Database(f"sqlite:///{path}")
    database.migrate()
    database.close()
    return path
