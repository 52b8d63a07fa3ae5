"""Environments that take too much: each ends with the right words, and the host goes on."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path

import pytest
from sandboxes import answered, came_up, confined, marked, needs_groups, needs_sandbox, none_left, played
from wander.errors import LoadError
from wander.sandbox import SandboxPolicy
from wander.sandbox.control_groups import ControlGroup, new_control_group

pytestmark = needs_sandbox

EAT = """
taken = []
for _ in range(100):
    taken.append(bytearray(os.urandom(1 << 20) * 10))
answer = len(taken)
"""
EAT_IN_CHILDREN = """
children = []
for _ in range(4):
    child = os.fork()
    if child == 0:
        taken = bytearray(os.urandom(1 << 20) * 120)
        time.sleep(2)
        os._exit(0)
    children.append(child)
answer = sum(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0 for child in children)
"""


@needs_groups
async def test_memory_of_one_process_is_limited(tmp_path):
    async with confined(tmp_path, "memory=300M") as environment:
        rollout = await played(environment, EAT)
        assert rollout.failure is not None
        assert rollout.failure.boundary == "environment"
        assert "ran out of memory: the sandbox allows 300 MiB" in rollout.failure.message
        assert await answered(environment, "answer = 1 + 1") == 2, "the next worker plays on"


@pytest.mark.full
@needs_groups
async def test_memory_of_all_processes_together_is_limited(tmp_path):
    async with confined(tmp_path, "memory=300M") as environment:
        rollout = await played(environment, EAT_IN_CHILDREN)
        if rollout.failure is None:
            assert json.loads(rollout.completion[1]["content"]) < 4
        else:
            assert "out of memory" in rollout.failure.message


async def test_memory_is_limited_without_control_groups(tmp_path, monkeypatch):
    monkeypatch.setattr("wander.worker.process.sandboxed.new_control_group", lambda policy: ControlGroup())
    async with confined(tmp_path, "memory=768M") as environment:
        rollout = await played(environment, EAT)
        assert rollout.failure is not None
        assert "MemoryError" in rollout.failure.message
        assert await answered(environment, "answer = 1 + 1") == 2, "the same worker plays on"


@pytest.mark.full
async def test_processor_time_is_limited(tmp_path):
    async with confined(tmp_path, "cpu=3") as environment:
        rollout = await played(environment, "while True: pass")
        assert rollout.failure is not None
        assert "used up the 3 s of processor time that the sandbox allows" in rollout.failure.message
        assert rollout.failure.retryable


OVERTIME = {
    "blocks": "time.sleep(600)",
    "waits": "answer = asyncio.sleep(600)",
    "stops": "os.kill(os.getpid(), signal.SIGSTOP)",
    "is deaf": "signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals()); time.sleep(600)",
}


@pytest.mark.full
async def test_the_time_of_a_rollout_is_limited(tmp_path):
    async def overtime(name: str, code: str) -> None:
        (tmp_path / name).mkdir()
        async with confined(tmp_path / name, "rollout=5") as environment:
            failure = (await played(environment, code)).failure
            assert failure is not None
            assert (failure.boundary, failure.type) == ("environment", "RolloutTimeout"), name
            assert "more than the 5 s that the sandbox allows" in failure.message
            assert await answered(environment, "answer = 1 + 1") == 2, "the next worker plays on"

    await asyncio.gather(*(overtime(name, code) for name, code in OVERTIME.items()))


BOMB = """
import os, sys, time
if os.fork() == 0:
    while True:
        try:
            os.fork()
        except OSError:
            time.sleep(0.05)
"""


async def test_a_fork_bomb_is_limited_and_ends_with_its_worker(tmp_path, monkeypatch):
    monkeypatch.setenv("SANDBOX_TEST_BOMB", f"bomb-{os.getpid()}-{tmp_path.name}")
    mark = os.environ["SANDBOX_TEST_BOMB"]
    async with confined(tmp_path, "processes=40", environ=["SANDBOX_TEST_BOMB"]) as environment:
        await played(environment, f"subprocess.Popen([sys.executable, '-S', '-c', {BOMB!r}])\nanswer = 0")
        most = 0
        for _ in range(600):
            most = max(most, len(marked(mark)))
            if most >= 35:
                break
            await asyncio.sleep(0.05)
        assert 35 <= most <= 45  # its own, and bubblewrap's
    assert await none_left(mark)


async def test_detached_children_end_with_their_worker(tmp_path, monkeypatch):
    monkeypatch.setenv("SANDBOX_TEST_HIDDEN", f"hidden-{os.getpid()}-{tmp_path.name}")
    mark = os.environ["SANDBOX_TEST_HIDDEN"]
    async with confined(tmp_path, environ=["SANDBOX_TEST_HIDDEN"]) as environment:
        code = "answer = subprocess.call(['sh', '-c', 'setsid sh -c \"sleep 600 & sleep 600\" & exit 0'])"
        assert await answered(environment, "answer = 1") == 1
        before = len(marked(mark))
        assert await answered(environment, code) == 0
        assert await came_up(mark, before + 2)
    assert await none_left(mark)


async def test_a_flood_of_output_is_cut(tmp_path):
    async with confined(tmp_path, "log=64K") as environment:
        code = "[print('x' * 1023) for _ in range(600)]; answer = 'still here'"
        assert await answered(environment, code) == "still here"
        assert await answered(environment, "print('more'); answer = 2") == 2
    log = (tmp_path / "worker.log").read_bytes()
    assert log.endswith(b"\n[the log is full at 65536 bytes; further output is dropped]\n")
    assert len(log) < 65536 + 100


async def test_printed_output_is_in_the_log(tmp_path):
    async with confined(tmp_path) as environment:
        assert (
            await answered(environment, "print('to stdout'); os.system('echo from a child'); answer = 0") == 0
        )
    assert (tmp_path / "worker.log").read_text() == "to stdout\nfrom a child\n"


async def test_a_crash_while_loading_has_the_environment_boundary(tmp_path):
    with pytest.raises(LoadError, match="ended with status 7 before it was loaded") as raised:
        async with confined(tmp_path, arguments={"at_load": "print('last words'); os._exit(7)"}):
            pass
    assert "last words" in str(raised.value)


@pytest.mark.full
async def test_loading_has_a_time_limit_in_the_sandbox(tmp_path):
    with pytest.raises(LoadError, match="not loaded within 3 s"):
        async with confined(tmp_path, arguments={"at_load": "time.sleep(600)"}, startup_timeout=3.0):
            pass


async def test_control_groups_are_removed(tmp_path, monkeypatch):
    made: list[Path] = []

    def recorded(policy: SandboxPolicy) -> ControlGroup:
        group = new_control_group(policy)
        made.extend(Path(joined).parent for joined in group.joined)
        return group

    monkeypatch.setattr("wander.worker.process.sandboxed.new_control_group", recorded)
    async with confined(tmp_path) as environment:
        await played(environment, "os.kill(os.getpid(), signal.SIGKILL)")
        assert await answered(environment, "answer = 2") == 2
    assert [folder for folder in made if folder.exists()] == []
