"""What holds for every test: how hard Hypothesis tries, which files go first, and that modules which
a test imported from its own folders are forgotten after it.
"""

from __future__ import annotations

import asyncio
import gc
import importlib
import os
import re
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, settings
from xdist.remote import Producer
from xdist.scheduler import LoadScopeScheduling
from xdist.workermanage import WorkerController

if TYPE_CHECKING:
    from sqlalchemy import Engine
    from wander_hub.settings import Settings
    from warm_programs import WarmCommands, WarmPrograms

# No deadlines: how long an example takes says more about the machine than about the code.
for name, examples in {"dev": 20, "ci": 100}.items():
    settings.register_profile(
        name, max_examples=examples, deadline=None, suppress_health_check=[HealthCheck.too_slow]
    )
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE") or ("ci" if os.environ.get("CI") else "dev"))

# Where it is set, every process of a test compiles all that it imports: 3 s for PyTorch, 4 s for the hub.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

PYTORCH = ("tests/sdk/training", "tests/client/training")
"""The folders that the first worker alone collects: to import PyTorch takes another 6 s and 500 MB."""

LONGEST_FIRST = (
    *PYTORCH,
    *("tests/docs", "tests/hub/test_hub_schema.py", "tests/house/test_walks.py"),
    *("tests/system", "tests/client", "tests/plugins", "tests/hub"),
)
"""The folders and files whose tests start first. The two files have one test of minutes each."""

TOGETHER = (*PYTORCH, "tests/system", "tests/house")
"""Folders whose short tests share a worker: each needs what is dear (PyTorch, a hub, all sources parsed)."""

PAGES = "tests/docs/test_pages.py"
"""In the long run each of its tests is given out by itself: every page has a hub of its own."""

LACKING = {
    "a sandbox": (r"bwrap|bubblewrap|namespaces|sandbox", "apt install bubblewrap"),
    "Chromium": ("Chromium", "apt install chromium"),
    "nginx": ("nginx", "apt install nginx-light"),
    "libseccomp": ("libseccomp", "apt install libseccomp2"),
    "fish or zsh": ("(fish|zsh) is not installed", "apt install fish zsh"),
    "ray": ("import 'ray'", ".venv/bin/python -m pip install ray"),
}
"""What a machine may lack: how the reasons of skipped tests name it, and the command that gets it."""

ALL_LONG = re.compile(r"^pytestmark = \[?[^\]=]*pytest\.mark\.(full|slow|gpu)\b", re.MULTILINE)
"""Finds the files that `make test` need not import, because their mark leaves out all of their tests."""

gc.disable()  # until all is imported: a fifth of the collection's time went into looking for garbage


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Import no module without a test to run, and leave the first worker's folders to it."""
    if collection_path.match("test_*.py"):
        text = collection_path.read_text()
        if config.getoption("markexpr").startswith("full and "):
            return True if "pytest.mark.full" not in text else None
        if _is_short(config) and ALL_LONG.search(text):
            return True
    ours = not _waits(config) or not _is_short(config)
    return None if ours or collection_path not in [config.rootpath / one for one in PYTORCH] else True


@pytest.fixture(autouse=True)
def umask() -> Iterator[None]:
    """Take back the umask that a command of the hub sets, which counts for the whole process."""
    before = os.umask(0o022)
    os.umask(before)
    yield
    os.umask(before)


@pytest.hookimpl(tryfirst=True)
def pytest_collection(session: pytest.Session) -> None:
    """Wait for the first worker, whose byte code the others read: to compile all takes each 20 s."""
    limit = time.monotonic() + 120
    while _waits(session.config) and not _compiled(session.config).exists() and time.monotonic() < limit:
        time.sleep(0.1)


def pytest_collection_finish(session: pytest.Session) -> None:
    """Leave what was imported out of the search for garbage: a million objects, a sixth of tests' time."""
    if hasattr(session.config, "workerinput"):
        _compiled(session.config).touch()
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
    folders = TOGETHER if _is_short(config) else ()

    class Files(LoadScopeScheduling):
        def schedule(self) -> None:
            # The first is taken for what there is to run, and it has to be the one that lacks nothing.
            every = self.registered_collections
            self.registered_collections = dict(sorted(every.items(), key=lambda one: -len(one[1])))
            super().schedule()

        def _check_nodes_have_same_collection(self) -> bool:
            every = self.registered_collections.values()
            common = [[test for test in tests if not test.startswith(PYTORCH)] for tests in every]
            return common.count(common[0]) == len(common) or super()._check_nodes_have_same_collection()

        def _assign_work_unit(self, node: WorkerController) -> None:
            collected = self.registered_collections[node]
            for scope, tests in self.workqueue.items():
                if next(iter(tests)) in collected:
                    self.workqueue.move_to_end(scope, last=False)
                    return super()._assign_work_unit(node)
            return node.shutdown()  # what is left waits for the worker that collected it

        def _split_scope(self, nodeid: str) -> str:
            file = nodeid.partition("::")[0]
            if file == PAGES and not _is_short(config):
                return nodeid
            return next((folder for folder in folders if file.startswith(folder)), file)

    return Files(config, log)


def _is_short(config: pytest.Config) -> bool:
    """Tell whether this is `make test`, whose tests are too short to share out what is dear to start."""
    return "not full" in config.getoption("markexpr")


def _waits(config: pytest.Config) -> bool:
    """Tell whether this is one of several workers, but neither the first nor one in place of a lost one."""
    given = getattr(config, "workerinput", {"workerid": "gw0", "workercount": 1})
    return 0 < int(given["workerid"].removeprefix("gw")) < given["workercount"]


def _compiled(config: pytest.Config) -> Path:
    """Return the file that says that a worker has collected its tests."""
    return Path(config.getoption("basetemp")).parent / "compiled"


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


@pytest.fixture(scope="session", autouse=True)
def warm_commands() -> Iterator[WarmCommands]:
    """Fork the commands and checks of tests from processes that have imported them: 2 s less for a hub."""
    import live_hub
    from wander.worker.process import program
    from warm_programs import WarmCommands, WarmProbes

    commands, probes = WarmCommands(), WarmProbes(program._run_in_session)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(live_hub, "starter", commands.start)
        patch.setattr(program, "_run_in_session", probes.run_in_session)
        yield commands
    commands.close()
    probes.close()


@pytest.fixture(scope="session")
def warm_programs() -> Iterator[WarmPrograms]:
    """The processes that fork workers and scripted models."""
    from warm_programs import WarmPrograms

    programs = WarmPrograms()
    yield programs
    programs.close()


@pytest.fixture(scope="module")
def warm_workers(warm_programs: WarmPrograms) -> Iterator[None]:
    """Fork the workers and scripted models of a file; files about their start and end leave this out."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(asyncio, "create_subprocess_exec", warm_programs.start)
        yield


@pytest.fixture(scope="session")
def shared_statements() -> Iterator[None]:
    """Compile each SQL statement once for the databases of all tests: a quarter of a hub test's time."""
    from wander_hub import database

    create = database.create_engine
    shared: dict[str, Any] = {}

    def create_engine(url: str, **options: Any) -> Engine:
        engine = create(url, **options)
        if engine.dialect.name == "sqlite":  # others learn from the server that they connect to
            for name in ("dialect", "_compiled_cache"):  # what one dialect compiled is found under it alone
                setattr(engine, name, shared.setdefault(name, getattr(engine, name)))
        return engine

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(database, "create_engine", create_engine)
        yield


@pytest.fixture(scope="session")
def migrated_database(tmp_path_factory: pytest.TempPathFactory, shared_statements: None) -> Path:
    """A database file that the migrations built, copied for each test."""
    from wander_hub.database import Database

    path = tmp_path_factory.mktemp("hub") / "hub.db"
    database = Database(f"sqlite:///{path}")
    database.migrate()
    database.close()
    return path


@pytest.fixture(scope="session")
def usual_settings() -> Settings:
    """Settings of a hub, copied for each test with its folder: to read them from variables takes 9 ms."""
    from wander_hub.settings import Settings

    return Settings(data=Path("named-by-each-test"), bundled_packages=False)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> Iterator[None]:
    """Say in one line at the end which tests this machine left out, and how to get what they need."""
    yield
    reasons = [str(report.longrepr) for report in terminalreporter.stats.get("skipped", [])]
    counts = {name: sum(bool(re.search(LACKING[name][0], one)) for one in reasons) for name in LACKING}
    said = [f"{count} without {name} (`{LACKING[name][1]}`)" for name, count in counts.items() if count]
    if said:
        terminalreporter.write_line(f"skipped on this machine: {', '.join(said)}")
