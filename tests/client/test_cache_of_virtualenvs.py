"""Virtual environments are built once, side by side, complete or not there, and pruned."""

from __future__ import annotations

import json
import os
import platform
import shutil
import signal
import subprocess
import sys
import threading
import time
from datetime import UTC, datetime
from pathlib import Path

import pytest
from wander_client.commands.find.cache import readable
from wander_client.packages.interpreters import HERE
from wander_client.packages.store import EnvironmentStore, InstalledRecord
from wander_client.packages.virtualenvs import (
    VirtualEnvironments,
    copy_by_links,
    key_of,
    space_of,
    stale_in,
)

WAIT = 60.0


def complete(folder: Path, text: str = "python") -> None:
    (folder / "bin").mkdir(parents=True)
    (folder / "bin" / "python").write_text(text)


def test_simultaneous_builds_of_one_virtualenv_build_it_once(tmp_path):
    cache = VirtualEnvironments(tmp_path)
    building, go_on, built, seen = threading.Event(), threading.Event(), [], []

    def build(folder: Path) -> None:
        built.append(folder)
        building.set()
        assert go_on.wait(WAIT)
        complete(folder)

    def use() -> None:
        with cache.hold("one", HERE, build) as place:
            seen.append((place / "bin" / "python").read_text())

    first, second = threading.Thread(target=use), threading.Thread(target=use)
    first.start()
    assert building.wait(WAIT)
    second.start()
    assert not cache.works("one"), "what is being built has no name yet"
    go_on.set()
    first.join(WAIT)
    second.join(WAIT)
    assert seen == ["python", "python"]
    assert len(built) == 1
    assert cache.names() == ["one"]


def test_using_a_virtualenv_does_not_change_shared_files(tmp_path):
    """An installation into the copy would blame a package for the change."""
    cache, copy = VirtualEnvironments(tmp_path / "cache"), tmp_path / "copy"
    with cache.hold("one", HERE, complete) as place:
        copy_by_links(place, copy)
    os.utime(cache.root / ".runtimes" / "one", (0, 0))
    assert cache.last_used("one").year == 1970
    before = {path: path.stat().st_mtime_ns for path in copy.rglob("*")}
    cache.mark_used("one")
    assert cache.last_used("one").year > 1970
    assert {path: path.stat().st_mtime_ns for path in copy.rglob("*")} == before


def test_different_virtualenvs_are_built_in_parallel(tmp_path):
    cache = VirtualEnvironments(tmp_path)
    together = threading.Barrier(2, timeout=WAIT)

    def use(key: str) -> None:
        def build(folder: Path) -> None:
            together.wait()  # passes only while the other one builds too
            complete(folder)

        with cache.hold(key, HERE, build):
            pass

    threads = [threading.Thread(target=use, args=(key,)) for key in ("one", "two")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT)
    assert cache.names() == ["one", "two"]


def test_a_failed_build_leaves_nothing_and_keeps_the_old_virtualenv(tmp_path):
    cache = VirtualEnvironments(tmp_path)
    with cache.hold("one", HERE, complete):
        pass

    def fails(folder: Path) -> None:
        (folder / "half").write_text("x")
        raise RuntimeError("no space left")

    with pytest.raises(RuntimeError), cache.hold("one", HERE, fails, force=True):
        pass
    assert cache.works("one")
    with pytest.raises(RuntimeError), cache.hold("two", HERE, fails):
        pass
    assert cache.names() == ["one"]
    assert stale_in(cache.root) == []
    with cache.hold("one", HERE, lambda folder: complete(folder, "newer"), force=True) as place:
        assert (place / "bin" / "python").read_text() == "newer"


KILLED = """
import sys, time
from pathlib import Path
from wander_client.packages.interpreters import HERE
from wander_client.packages.virtualenvs import VirtualEnvironments

def build(folder):
    (folder / "bin").mkdir()
    (folder / "bin" / "python").write_text("half made")
    print("building", flush=True)
    time.sleep(600)

with VirtualEnvironments(Path(sys.argv[1])).hold("one", HERE, build):
    pass
"""


def test_a_killed_build_is_removed_and_never_used(tmp_path):
    cache = VirtualEnvironments(tmp_path)
    with subprocess.Popen(
        [sys.executable, "-c", KILLED, str(tmp_path)], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "building\n"
        assert stale_in(cache.root) == [], "its builder lives"
        process.send_signal(signal.SIGKILL)
        process.wait(WAIT)
    assert not cache.works("one")
    (left,) = stale_in(cache.root)
    with cache.hold("one", HERE, complete) as place:
        assert (place / "bin" / "python").read_text() == "python"
    assert not left.exists()


def test_virtualenvs_in_use_are_not_removed(tmp_path):
    cache = VirtualEnvironments(tmp_path)
    with cache.hold("one", HERE, complete):
        assert not cache.remove("one")
    assert cache.remove("one")
    assert not cache.remove("one")


def test_sizes_count_hard_links_once_and_show_what_removal_frees(tmp_path):
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "own").write_bytes(b"x" * 100)
    (folder / "shared").write_bytes(b"x" * 1000)
    os.link(folder / "shared", tmp_path / "elsewhere")
    os.link(folder / "shared", folder / "again")
    found = space_of(folder)
    assert (found.size, found.frees) == (1100, 100)


def test_sizes_are_printed_with_units():
    sizes = [0, 999, 1000, 12_345, 999_999, 1_500_000, 34_000_000_000, 2_000_000_000_000]
    assert [readable(size) for size in sizes] == [
        "0 B", "999 B", "1.0 kB", "12 kB", "1.0 MB", "1.5 MB", "34 GB", "2.0 TB"
    ]  # fmt: skip


@pytest.fixture
def store(home: Path) -> EnvironmentStore:
    return EnvironmentStore(home / "data")


def install(store: EnvironmentStore, name: str, lock: str, days: float = 0.0, *, built: bool = True) -> Path:
    """Put an installed environment into the store; returns its virtual environment."""
    key = key_of(lock, platform.python_version())
    record = InstalledRecord(
        hub="https://testserver",
        owner="acme",
        name=name,
        version="1.0",
        wheel=f"{name}-1.0-py3-none-any.whl",
        wheel_sha256="ab" * 32,
        wheel_url="https://testserver/x.whl",
        lock_sha256=lock,
        packages_sha256="cd" * 32,
        virtualenv=key,
        sdk="0.1.0",
        python="3.11.0",
        installed_at=datetime.now(UTC),
    )
    folder = store.root / "hub" / "acme" / name / "1.0-abababababab"
    folder.mkdir(parents=True)
    record.write(folder / "installed.json")
    place = store.virtualenvs.root / key
    if built:
        with store.virtualenvs.hold(key, HERE, complete):
            pass
        used = time.time() - days * 86400
        os.utime(store.virtualenvs.root / ".runtimes" / key, (used, used))
    return place


def states(wander) -> set[tuple[str, str]]:
    listed = wander("cache", "list", "--json").data
    return {
        (" ".join(each["environment"] for each in entry["environments"]), entry["state"]) for entry in listed
    }


def test_the_cache_is_listed_and_pruned(wander, store):
    install(store, "fresh", "a" * 64)
    install(store, "old", "b" * 64, days=40)
    install(store, "same-packages", "b" * 64, days=40)
    install(store, "lost", "c" * 64, built=False)
    orphan = install(store, "gone", "d" * 64, days=1)
    shutil.rmtree(store.root / "hub" / "acme" / "gone")
    unfinished = store.virtualenvs.root / ".making-dead"
    (unfinished / "work").mkdir(parents=True)
    (unfinished / ".lock").touch()
    assert states(wander) == {
        ("acme/fresh", "ok"),
        ("acme/old acme/same-packages", "ok"),
        ("acme/lost", "broken"),
        ("", "unreferenced"),
        ("", "unfinished"),
    }
    table = wander("cache", "list", "--plain").out
    assert "acme/fresh\t1.0\tabababababab\t3.11.0\t6 B\t6 B\ttoday\tok" in table
    assert "40 days ago" in table

    dry = wander("cache", "prune", "--dry-run", "--json").data
    assert {each["state"] for each in dry["removed"]} == {"broken", "unfinished", "unreferenced"}
    assert orphan.exists()
    assert unfinished.exists()
    done = wander("cache", "prune", "--json").data
    assert [each["path"] for each in done["removed"]] == [each["path"] for each in dry["removed"]]
    assert not orphan.exists()
    assert not unfinished.exists()
    assert [one.record.name for one in store.all()] == ["fresh", "old", "same-packages"]

    assert wander("cache", "prune", "--unused-for", "50").out == "nothing to remove\n"
    text = wander("cache", "prune", "--unused-for", "30").out
    assert "acme/old@1.0, acme/same-packages@1.0" in text
    assert [one.record.name for one in store.all()] == ["fresh"]
    assert len(store.virtualenvs.names()) == 1


def test_a_virtualenv_that_was_just_installed_is_not_pruned(wander, store):
    place = install(store, "new", "a" * 64)
    shutil.rmtree(store.root / "hub" / "acme")
    assert wander("cache", "prune").out == "nothing to remove\n"
    assert place.exists()


def test_uninstalling_removes_unused_virtualenvs(wander, store):
    place = install(store, "one", "a" * 64)
    install(store, "two", "a" * 64)
    wander("env", "uninstall", "acme/one")
    assert place.exists()
    wander("env", "uninstall", "acme/two")
    assert not place.exists()


def test_the_cache_folder_is_printed(wander, store):
    assert wander("cache", "dir").out.strip() == str(store.virtualenvs.root)
    assert json.loads(wander("cache", "dir", "--json").out)["data"] == {"path": str(store.virtualenvs.root)}
    assert wander("cache", "list", "--json").data == []
