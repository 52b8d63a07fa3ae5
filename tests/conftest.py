"""What holds for every test: modules that it imported from its own folders are forgotten after it, and where
real processes, sockets or threads are at work it gets a second try.

`make test` prints every second try as `RERUN`: that test has a race, and is to be mended.
"""

from __future__ import annotations

import gc
import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

CONCURRENT = frozenset({"asyncio", "multiprocessing", "signal", "socket", "subprocess", "threading"})
HARNESS = frozenset(path.stem for path in (Path(__file__).parent / "harness").glob("*.py"))


gc.disable()  # until all is imported: a fifth of the collection's time went into looking for garbage


def pytest_collection_finish() -> None:
    """Leave what was imported out of the search for garbage: a million objects, a sixth of tests' time."""
    gc.freeze()
    gc.enable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Let tests that depend on what other processes and threads do fail twice before they count as failed.

    The others are right or wrong the first time; looking after second tries costs each some 40 ms.
    """
    concurrent: dict[ModuleType, bool] = {}
    for item in items:
        module = getattr(item, "module", None)
        if module is None:
            continue
        if module not in concurrent:
            concurrent[module] = "system" in item.path.parts or _is_concurrent(module)
        if concurrent[module]:
            item.add_marker(pytest.mark.flaky(reruns=1))


def _is_concurrent(module: ModuleType) -> bool:
    """Tell whether a module of tests uses what starts processes, threads or servers."""
    for value in vars(module).values():
        name = value.__name__ if isinstance(value, ModuleType) else getattr(value, "__module__", None)
        if name in CONCURRENT or (
            name in HARNESS and name != module.__name__ and _is_concurrent(sys.modules[name])
        ):
            return True
    return False


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
