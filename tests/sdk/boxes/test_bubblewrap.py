"""Boxes by bubblewrap: commands, files, limits, and what must not work in them."""

from __future__ import annotations

import asyncio
import os
import resource
import time

import pytest
from sandboxes import needs_groups, needs_sandbox
from wander.boxes import supervised
from wander.boxes.base import BoxLimits, BoxSpec
from wander.boxes.bubblewrap import BubblewrapBackend
from wander.boxes.supervised import Supervisor
from wander.errors import SandboxError

pytestmark = needs_sandbox


async def start(**options):
    limits = BoxLimits(**{"memory_mb": 256, "disk_mb": 16, "processes": 32, "seconds": 120, **options})
    return await BubblewrapBackend().start(BoxSpec(limits=limits))


ROOT_IN_FULL = pytest.mark.parametrize(
    "spec", ["system", pytest.param("root", marks=pytest.mark.full)], indirect=True
)
"""For tests that take seconds: in the short run, boxes over the system's folders do."""


async def test_a_command_runs_as_root_of_its_own_system_with_a_fixed_environment(box, monkeypatch):
    monkeypatch.setenv("SECRET_OF_THE_HOST", "x")
    result = await box.exec("id -u; hostname; pwd; env | sort; echo error >&2; exit 3")
    lines = result.output.splitlines()
    assert lines[:3] == ["0", "box", "/work"]
    assert "SECRET_OF_THE_HOST" not in result.output
    assert {"HOME=/root", "TZ=UTC", "PYTHONHASHSEED=0"} <= set(lines)
    assert lines[-1] == "error"
    assert result.exit_status == 3
    assert not result.timed_out


async def test_a_command_may_have_arguments_folder_variables_and_input(box):
    words = ["sh", "-c", 'cat; echo "$NAME $PWD"']
    result = await box.exec(words, working_folder="/tmp", environment={"NAME": "a b"}, stdin=b"input\n")
    assert result.output == "input\na b /tmp\n"


async def test_commands_that_cannot_run_are_results(box):
    assert (await box.exec(["no-such-program"])).exit_status == 127
    assert (await box.exec(["/work"])).exit_status == 126
    missing = await box.exec("true", working_folder="/missing")
    assert missing.exit_status == 126
    assert "/missing" in missing.output
    assert (await box.exec("kill -9 $$")).exit_status == 137
    assert (await box.exec("exit 126")).output == ""
    for words in (["echo", "a\0b"], ["echo", "\ud800"], ["echo", "long" * 100_000]):
        unreadable = await box.exec(words)
        assert unreadable.exit_status == 126
        assert "cannot run `echo`: " in unreadable.output


def change_supervisors(monkeypatch, processes=None, **changed):
    """Start supervisors with other options than the backend's, or with a limit on their own processes."""
    start_supervisor = Supervisor.start

    async def start_changed(**options):
        soft, hard = resource.getrlimit(resource.RLIMIT_NPROC)
        resource.setrlimit(resource.RLIMIT_NPROC, (processes or soft, hard))
        try:
            return await start_supervisor(**{**options, **changed})
        finally:
            resource.setrlimit(resource.RLIMIT_NPROC, (soft, hard))

    monkeypatch.setattr(Supervisor, "start", start_changed)


async def test_a_command_that_the_supervisor_cannot_start_is_a_failure_of_the_box(monkeypatch):
    change_supervisors(monkeypatch, groups=["/dev/full"])
    box = await start()
    with pytest.raises(SandboxError, match="No space left on device"):
        await box.exec("true")
    await box.stop()
    change_supervisors(monkeypatch, processes=1)
    with pytest.raises(SandboxError, match="Resource temporarily unavailable"):
        await start()
    monkeypatch.undo()
    with pytest.raises(SandboxError, match="/proc/missing"):
        await BubblewrapBackend().start(BoxSpec(working_folder="/proc/missing"))


@pytest.mark.usefixtures("many_open_files")
async def test_a_box_runs_beside_many_open_files():
    box = await start()
    assert (await box.exec("echo here")).output == "here\n"
    await box.stop()


async def test_limits_above_those_of_the_host_are_lowered(monkeypatch):
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    monkeypatch.setattr(supervised, "_OPEN_FILES", 2 * most)
    box = await start()
    assert (await box.exec("ulimit -n")).output == f"{most}\n"
    await box.stop()


@ROOT_IN_FULL
async def test_a_time_limit_kills_the_group_but_not_the_background_or_the_box(box):
    await box.exec("setsid sleep 7777 >/dev/null 2>&1 &")
    begun = time.monotonic()
    result = await box.exec("echo begun; sleep 8888 & sleep 8888", seconds=3)
    assert time.monotonic() - begun < 60
    assert (result.output, result.exit_status, result.timed_out) == ("begun\n", 124, True)
    listed = await box.exec("ps -ef || ps")
    assert "8888" not in listed.output
    assert "7777" in listed.output


async def test_a_background_process_keeps_running_without_blocking_commands(box):
    wait = "until test -e /work/go; do sleep 0.05; done"
    result = await box.exec(f"({wait}; echo late; echo done > /work/late) & echo now")
    assert result.output == "now\n"
    done = await box.exec("touch go; until test -s late; do sleep 0.05; done; cat late")
    assert done.output == "done\n"


async def test_output_is_cut_in_the_middle(box):
    result = await box.exec("echo first; yes | head -c 5000000; echo; echo last", output_bytes=1000)
    assert result.output.startswith("first\n")
    assert result.output.endswith("last\n")
    assert result.left_out_bytes == 5_000_012 - 1000
    assert len(result.output) < 1100


@ROOT_IN_FULL
async def test_a_flood_of_output_ends_with_the_time_limit(box):
    result = await box.exec("yes", seconds=2, output_bytes=100)
    assert result.timed_out
    assert result.left_out_bytes > 0


async def test_files_are_uploaded_and_downloaded(box):
    await box.upload({"/work/a/b.bin": b"\xff\0", "/root/t.txt": "text"})
    await box.upload({"/work/run": "#!/bin/sh\necho ran\n"}, executable=True)
    assert await box.download("/work/a/b.bin") == b"\xff\0"
    assert (await box.exec("/work/run; cat /root/t.txt")).output == "ran\ntext"
    with pytest.raises(FileNotFoundError):
        await box.download("/work/missing")
    with pytest.raises(ValueError, match="larger than 1 bytes"):
        await box.download("/work/a/b.bin", most_bytes=1)
    with pytest.raises(ValueError, match="not a normal absolute path"):
        await box.upload({"/work/../etc/x": b""})
    await box.exec("mkfifo /work/pipe")
    with pytest.raises(ValueError, match="not a file"):
        await box.download("/work/pipe")


async def test_files_never_leave_the_box(box, tmp_path):
    (tmp_path / "secret").write_text("secret of the host")
    await box.exec(f"mkdir -p {tmp_path}; ln -s {tmp_path}/secret /work/out; ln -s {tmp_path} /work/folder")
    with pytest.raises(FileNotFoundError):
        await box.download("/work/out")
    await box.upload({"/work/folder/new": "x", "/work/out": "y"})
    assert sorted(os.listdir(tmp_path)) == ["secret"]
    assert (tmp_path / "secret").read_text() == "secret of the host"


async def test_a_box_has_no_external_network(box):
    listening = await box.exec("cat /proc/net/dev")
    assert [line.split(":")[0].strip() for line in listening.output.splitlines()[2:]] == ["lo"]


async def test_changes_of_the_root_folder_stay_in_the_box(busybox_root):
    spec = BoxSpec(root=busybox_root, limits=BoxLimits(disk_mb=16))
    before = {path: os.lstat(path).st_mtime_ns for path in (busybox_root, f"{busybox_root}/etc/passwd")}
    first, second = [await BubblewrapBackend().start(spec) for _ in range(2)]
    try:
        changed = await first.exec("echo planted >> /etc/passwd && rm -r /work && mkdir /work && rm /bin/yes")
        assert changed.exit_status == 0, changed.output
        assert "planted" not in (await second.exec("cat /etc/passwd")).output
        assert (await second.exec("yes | head -n1; cat /work/old.txt")).output == "y\nold\n"
    finally:
        await asyncio.gather(first.stop(), second.stop())
    assert before == {path: os.lstat(path).st_mtime_ns for path in before}
    assert first.image_digest == second.image_digest


async def test_disk_usage_is_limited(box):
    result = await box.exec(
        "dd if=/dev/zero of=/tmp/big bs=1M count=64; dd if=/dev/zero of=/dev/shm/x bs=1M count=99"
    )
    assert "No space left" in result.output
    assert (await box.exec("rm /tmp/big; echo works")).output == "works\n"


@needs_groups
async def test_memory_is_limited_and_the_box_survives():
    box = await start(memory_mb=64)
    try:
        grows = "import time\nx = []\nwhile True: x.append(bytearray(1 << 20))"
        result = await box.exec(["python3", "-c", grows])
        assert result.exit_status == 137
        assert (await box.exec("echo works")).output == "works\n"
    finally:
        await box.stop()


@ROOT_IN_FULL
async def test_a_fork_bomb_is_limited_and_ends_at_the_time_limit(box):
    result = await box.exec("f() { f | f & }; f; sleep 100", seconds=1)
    assert result.exit_status == 124
    state = await box.final_state()
    assert state.files == []
    count = await box.exec("ls -d /proc/[0-9]* | wc -l", seconds=10)
    assert count.exit_status != 0 or int(count.output.split()[-1]) <= 40


async def test_the_first_process_cannot_be_killed_and_orphans_are_reaped(box):
    await box.exec("kill -9 1; kill -STOP 1; kill -9 -1")
    await box.exec("for i in $(seq 100); do (true &); done")
    assert (await box.exec("echo alive")).output == "alive\n"
    assert "Z" not in (await box.exec("cat /proc/[0-9]*/stat | cut -d' ' -f3")).output


async def test_dangerous_system_calls_are_blocked(box):
    status = (await box.exec("cat /proc/self/status")).output
    assert "Seccomp:\t2" in status
    assert "NoNewPrivs:\t1" in status
    attempts = ("unshare -Ur true", "mount -t tmpfs none /tmp", "mount -o remount,rw /dev", "chroot / true")
    for attempt in attempts:
        assert (await box.exec(attempt)).exit_status != 0, attempt


async def test_no_descriptor_of_the_supervisor_reaches_a_command(box):
    assert (await box.exec("ls /proc/self/fd | wc -l")).output.split() == ["4"]


async def test_open_files_of_the_first_process_cannot_be_used(box):
    grown = await box.exec("head -c 1000000 /dev/zero > /proc/1/fd/2; truncate -s 1M /proc/1/fd/2")
    assert grown.exit_status != 0
    assert (await box.exec("echo alive")).output == "alive\n"


async def test_a_failed_start_reports_why(monkeypatch):
    monkeypatch.setattr("wander.boxes.bubblewrap._FIRST", "/no/such/program")
    with pytest.raises(SandboxError, match="/no/such/program"):
        await start()


async def test_a_box_stops_after_its_lifetime_with_an_error():
    box = await start(seconds=3)
    try:
        with pytest.raises(SandboxError, match=r"lifetime of 3 s"):
            await box.exec("sleep 100")
        with pytest.raises(SandboxError, match="lifetime"):
            await box.upload({"/work/x": b""})
    finally:
        await box.stop()


async def test_stopping_ends_everything_and_may_be_repeated():
    box = await start()
    running = asyncio.ensure_future(box.exec("setsid sleep 54321 & sleep 54321"))
    await box.exec("until ps -ef | grep -q '[s]leep 54321'; do :; done")
    await asyncio.gather(box.stop(), box.stop())
    with pytest.raises(SandboxError):
        await running
    with pytest.raises(SandboxError, match="stopped"):
        await box.exec("true")
    assert not [name for name in os.listdir("/proc") if name.isdigit() and _runs(name, b"54321")]


async def test_a_cancelled_command_is_killed(box):
    running = asyncio.ensure_future(box.exec("sleep 65432"))
    await box.exec("until (ps -ef || ps) | grep -q '[s]leep 65432'; do :; done")
    running.cancel()
    result = await box.exec("while (ps -ef || ps) | grep -q '[s]leep 65432'; do :; done")
    assert result.exit_status == 0


@pytest.mark.parametrize(
    ("spec_fields", "reason"),
    [
        ({"image": "debian"}, "no images"),
        ({"root": "/no/such/folder"}, "does not exist"),
    ],
)
async def test_unsupported_options_of_bubblewrap_are_errors(spec_fields, reason):
    with pytest.raises(SandboxError, match=reason):
        await BubblewrapBackend().start(BoxSpec(**spec_fields))


async def test_a_root_folder_without_programs_is_an_error(tmp_path):
    with pytest.raises(SandboxError, match="has no `/bin/cat`"):
        await BubblewrapBackend().start(BoxSpec(root=str(tmp_path)))


def _runs(process: str, words: bytes) -> bool:
    try:
        with open(f"/proc/{process}/cmdline", "rb") as file:
            return words in file.read()
    except OSError:
        return False
